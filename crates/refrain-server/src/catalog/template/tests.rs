//! Tests of matching URIs against templates.

use super::*;
use serde_json::json;

pub(super) fn matched(template: &str, uri: &str) -> Option<Value> {
    find_in(&Pattern::parse(template).unwrap(), uri)
}

pub(super) fn find_in(pattern: &Pattern, uri: &str) -> Option<Value> {
    find([(pattern, ())].into_iter(), uri).map(|(variables, ())| variables)
}

/// Templates of RFC 6570, their expansions and the variables found in them.
const EXAMPLES: &str = r##"
# 1.2, the levels
{var}            value                      {"var": "value"}
{hello}          Hello%20World%21           {"hello": "Hello World!"}
{+hello}         Hello%20World!             {"hello": "Hello World!"}
{+path}/here     /foo/bar/here              {"path": "/foo/bar"}
here?ref={+path} here?ref=/foo/bar          {"path": "/foo/bar"}
X{#var}          X#value                    {"var": "value"}
X{#hello}        X#Hello%20World!           {"hello": "Hello World!"}
map?{x,y}        map?1024,768               {"x": "1024", "y": "768"}
{x,hello,y}      1024,Hello%20World%21,768  {"x": "1024", "hello": "Hello World!", "y": "768"}
{+x,hello,y}     1024,Hello%20World!,768    {"x": "1024", "hello": "Hello World!", "y": "768"}
{+path,x}/here   /foo/bar,1024/here         {"path": "/foo/bar", "x": "1024"}
{#x,hello,y}     #1024,Hello%20World!,768   {"x": "1024", "hello": "Hello World!", "y": "768"}
{#path,x}/here   #/foo/bar,1024/here        {"path": "/foo/bar", "x": "1024"}
X{.var}          X.value                    {"var": "value"}
X{.x,y}          X.1024.768                 {"x": "1024", "y": "768"}
{/var}           /value                     {"var": "value"}
{/var,x}/here    /value/1024/here           {"var": "value", "x": "1024"}
{;x,y}           ;x=1024;y=768              {"x": "1024", "y": "768"}
{;x,y,empty}     ;x=1024;y=768;empty        {"x": "1024", "y": "768", "empty": ""}
{?x,y}           ?x=1024&y=768              {"x": "1024", "y": "768"}
{?x,y,empty}     ?x=1024&y=768&empty=       {"x": "1024", "y": "768", "empty": ""}
?fixed=yes{&x}   ?fixed=yes&x=1024          {"x": "1024"}
{&x,y,empty}     &x=1024&y=768&empty=       {"x": "1024", "y": "768", "empty": ""}
{var:3}          val                        {"var": "val"}
{var:30}         value                      {"var": "value"}
{list}           red,green,blue             {"list": "red,green,blue"}
{list*}          red,green,blue             {"list": ["red", "green", "blue"]}
{keys*}          semi=%3B,dot=.,comma=%2C   {"keys": ["semi=;", "dot=.", "comma=,"]}
{+path:6}here    /foo/bhere                 {"path": "/foo/b"}
{+list}          red,green,blue             {"list": "red,green,blue"}
{+list*}         red,green,blue             {"list": ["red", "green", "blue"]}
{+keys*}         semi=;,dot=.,comma=%2C     {"keys": ["semi=;", "dot=.", "comma=,"]}
{#path:6}here    #/foo/bhere                {"path": "/foo/b"}
{#list}          #red,green,blue            {"list": "red,green,blue"}
{#list*}         #red,green,blue            {"list": ["red", "green", "blue"]}
X{.var:3}        X.val                      {"var": "val"}
X{.list}         X.red,green,blue           {"list": "red,green,blue"}
X{.list*}        X.red.green.blue           {"list": ["red", "green", "blue"]}
{/var:1,var}     /v/value                   {"var": "value"}
{/list}          /red,green,blue            {"list": "red,green,blue"}
{/list*}         /red/green/blue            {"list": ["red", "green", "blue"]}
{/keys*}         /semi=%3B/dot=./comma=%2C  {"keys": ["semi=;", "dot=.", "comma=,"]}
{;hello:5}       ;hello=Hello               {"hello": "Hello"}
{;list}          ;list=red,green,blue       {"list": "red,green,blue"}
{;list*}         ;list=red;list=green;list=blue {"list": ["red", "green", "blue"]}
{?var:3}         ?var=val                   {"var": "val"}
{?list}          ?list=red,green,blue       {"list": "red,green,blue"}
{?list*}         ?list=red&list=green&list=blue {"list": ["red", "green", "blue"]}
{&var:3}         &var=val                   {"var": "val"}
{&list}          &list=red,green,blue       {"list": "red,green,blue"}
{&list*}         &list=red&list=green&list=blue {"list": ["red", "green", "blue"]}
# 3.2, the operators
{half}           50%25                      {"half": "50%"}
{x,empty}        1024,                      {"x": "1024", "empty": ""}
{x,undef}        1024                       {"x": "1024"}
{+half}          50%25                      {"half": "50%"}
{base}index      http%3A%2F%2Fexample.com%2Fhome%2Findex {"base": "http://example.com/home/"}
{+base}index     http://example.com/home/index {"base": "http://example.com/home/"}
foo{#empty}      foo#                       {"empty": ""}
foo{#undef}      foo                        {}
{.who}           .fred                      {"who": "fred"}
{.half,who}      .50%25.fred                {"half": "50%", "who": "fred"}
www{.dom*}       www.example.com            {"dom": ["example", "com"]}
X{.empty}        X.                         {"empty": ""}
X{.undef}        X                          {}
X{.empty_keys*}  X                          {"empty_keys": []}
{/half,who}      /50%25/fred                {"half": "50%", "who": "fred"}
{/who,dub}       /fred/me%2Ftoo             {"who": "fred", "dub": "me/too"}
{/var,empty}     /value/                    {"var": "value", "empty": ""}
{/var,undef}     /value                     {"var": "value"}
{;half}          ;half=50%25                {"half": "50%"}
{;v,empty,who}   ;v=6;empty;who=fred        {"v": "6", "empty": "", "who": "fred"}
{;v,bar,who}     ;v=6;who=fred              {"v": "6", "who": "fred"}
{?who}           ?who=fred                  {"who": "fred"}
{?x,y,undef}     ?x=1024&y=768              {"x": "1024", "y": "768"}
{&var:3}         &var=val                   {"var": "val"}
{&x,y,undef}     &x=1024&y=768              {"x": "1024", "y": "768"}
"##;

/// Checks each row of a table: template, URI, variables. `null`: the URI does not match.
fn check_table(table: &str) {
    let is_row = |line: &&str| !line.is_empty() && !line.starts_with("# ");
    for line in table.lines().filter(is_row) {
        let (template, rest) = line.split_once(' ').unwrap();
        let (uri, variables) = rest.trim_start().split_once(' ').unwrap();
        let variables: Option<Value> = serde_json::from_str(variables).unwrap();
        assert_eq!(matched(template, uri), variables, "{template} {uri}");
    }
}

#[test]
fn rfc_examples_match_with_their_variables() {
    check_table(EXAMPLES);
    let error = Pattern::parse("up{+path}{var}/here").unwrap_err();
    assert_eq!(error.flaw, TemplateFlaw::Adjacent);
}

#[test]
fn pairs_match_in_any_order_if_all_are_named() {
    let of = |uri| matched("s://x{?q,limit,tag*}", uri);
    let all = json!({"q": "a=/b?", "limit": "3", "tag": ["x", "y"]});
    assert_eq!(of("s://x?tag=x&limit=3&q=a=/b?&tag=y"), Some(all));
    assert_eq!(of("s://x"), Some(json!({"tag": []})));
    assert_eq!(of("s://x?q"), Some(json!({"q": "", "tag": []})));
    for none in [
        "s://x?",
        "s://x?other=1",
        "s://x?q=1&other=1",
        "s://x?q=1&q=2",
        "s://x?q=1&&limit=2",
        "s://x?q=1&",
        "s://x?q=1#top",
        "s://x?Q=1",
        "s://x?qq=1",
        "s://x&q=1",
        "s://x/y?q=1",
    ] {
        assert_eq!(of(none), None, "{none}");
    }
    let two = |uri| matched("s:{?a}{&b}", uri);
    assert_eq!(two("s:?a=1&b=2"), Some(json!({"a": "1", "b": "2"})));
    assert_eq!(two("s:?b=2"), None);
}

#[test]
fn values_are_decoded_and_must_be_utf8() {
    let of = |uri| matched("x://{a}/end", uri);
    assert_eq!(of("x://%c3%a9%2F+/end"), Some(json!({"a": "é/+"})));
    assert_eq!(of("x://é b/end"), Some(json!({"a": "é b"})));
    for none in [
        "x://%/end",
        "x://%2/end",
        "x://%zz/end",
        "x://%C3/end",
        "x://%ff%fe/end",
        "x://a/end%",
        "x:///end",
        "x://a/b/end",
        "x://a?b/end",
        "x://a#b/end",
        "x://a/END",
        "x://a/end/",
    ] {
        assert_eq!(of(none), None, "{none}");
    }
    // An encoded character neither matches literal text nor is split.
    assert_eq!(matched("x:{a}2F", "x:%2F2F"), Some(json!({"a": "/"})));
    assert_eq!(matched("x:{a}F", "x:%2F"), None);
}

#[test]
fn literal_text_matches_in_any_encoding() {
    for template in ["x://café bar/{a}", "x://caf%c3%A9%20bar/{a}"] {
        for uri in [
            "x://café bar/1",
            "x://caf%C3%a9%20bar/1",
            "x://c%61fé%20bar/1",
        ] {
            assert_eq!(
                matched(template, uri),
                Some(json!({"a": "1"})),
                "{template} {uri}"
            );
        }
    }
    // An encoded reserved character differs from the plain one.
    assert_eq!(matched("x://a/{b}", "x://a%2F1"), None);
    assert_eq!(matched("x://a%2f{b}", "x://a/1"), None);
    assert!(matched("x://a%2f{b}", "x://a%2F1").is_some());
    // Literal text is not interpreted as a regular expression.
    assert_eq!(
        matched("x:.*(a)[b]+$^|{v}", "x:.*(a)[b]+$^|1"),
        Some(json!({"v": "1"}))
    );
    assert_eq!(matched("x:.*{v}", "x:aa1"), None);
    assert_eq!(matched("x:plain", "x:plain"), Some(json!({})));
    assert_eq!(matched("x:plain", "x:plain\n"), None);
}

#[test]
fn earlier_variables_match_as_little_as_possible() {
    check_table(
        r#"
{a}-{b}            1-2-3        {"a": "1", "b": "2-3"}
{name}{.type}      a.tar.gz     {"name": "a", "type": "tar.gz"}
{name}{.type}      a            {"name": "a"}
x:{+path}{?rev}    x:a/b?rev=3  {"path": "a/b", "rev": "3"}
x:{/dirs*}/{file}  x:/a/b/c     {"dirs": ["a", "b"], "file": "c"}
x:{/dirs*}/{file}  x:/c         {"dirs": [], "file": "c"}
"#,
    );
}

#[test]
fn repeated_variable_must_have_one_value() {
    check_table(
        r#"
{a}/{a}          1/1            {"a": "1"}
{a}/{a}          1/2            null
{a:1}/{a:2}/{a}  é/éa/éab       {"a": "éab"}
{a:1}/{a:2}/{a}  é/é/é          {"a": "é"}
{a:1}/{a:2}/{a}  é/éb/éab       null
{a:1}/{a:2}/{a}  é/é/éab        null
x{/l*}{?l*}      x/1/2?l=1&l=2  {"l": ["1", "2"]}
x{/l*}{?l*}      x/1/2?l=1      null
{a:2}            %C3%A9%C3%A9   {"a": "éé"}
{a:2}            abc            null
"#,
    );
}

#[test]
fn invalid_template_reports_flaw_and_position() {
    use TemplateFlaw::*;
    for (template, at, flaw) in [
        ("x://{a", 4, Unclosed),
        ("x://a}", 5, Unopened),
        ("x://{a}}", 7, Unopened),
        ("x://{{a}}", 5, Name),
        ("x://%2G/{a}", 4, Percent),
        ("x://%20%4", 7, Percent),
        ("x://{=a}", 5, Operator('=')),
        ("x://{|a}", 5, Operator('|')),
        ("x://{}", 5, Name),
        ("x://{+}", 6, Name),
        ("x://{a b}", 5, Name),
        ("x://{a,b-c}", 7, Name),
        ("x://{a.}", 5, Name),
        ("x://{%zz}", 5, Name),
        ("x://{a,}", 7, Name),
        ("x://{a:}", 7, Prefix),
        ("x://{a:0}", 7, Prefix),
        ("x://{a:+1}", 7, Prefix),
        ("x://{a:10000}", 7, Prefix),
        ("x://{a:3*}", 7, Prefix),
        ("x://{a*:3}", 5, Name),
        ("x://{/a*,b}", 9, NotLast),
        ("x://{a}/{a*}", 8, Mixed),
        ("x://{?a,a*}", 4, Mixed),
        ("x://{a}{b}", 7, Adjacent),
        ("x://{/a}{+b}", 8, Adjacent),
    ] {
        let error = Pattern::parse(template).expect_err(template);
        assert_eq!((error.at, error.flaw), (at, flaw), "{error}");
        assert!(error.to_string().contains(template), "{error}");
    }
    let large = "{?a,b}".repeat(20_000);
    assert_eq!(
        Pattern::parse(&large)
            .expect_err("the template is too large")
            .flaw,
        TooLarge
    );
}

#[test]
fn most_literal_pattern_wins_then_the_first() {
    let templates = [
        "x:{a}",
        "x:{a}/b/c",
        "x:{a}/{b}",
        "x:{+a}",
        "x:{a}/{b}/c",
        "x:{+b}/c",
    ];
    let patterns = templates.map(|template| (Pattern::parse(template).unwrap(), template));
    for (uri, template) in [
        ("x:1", "x:{a}"),
        ("x:1/b/c", "x:{a}/b/c"),
        ("x:1/d/c", "x:{a}/{b}/c"),
        ("x:1/c", "x:{+b}/c"),
        ("x:1/d", "x:{a}/{b}"),
        ("x:1/d/e", "x:{+a}"),
    ] {
        let candidates = patterns
            .iter()
            .map(|(pattern, template)| (pattern, *template));
        assert_eq!(
            find(candidates, uri).map(|(_, found)| found),
            Some(template),
            "{uri}"
        );
    }
}

#[test]
fn patterns_matching_the_same_uris_are_the_same() {
    let same = |one: &str, two: &str| {
        let [one, two] = [one, two].map(|template| Pattern::parse(template).unwrap());
        one.is_same(&two)
    };
    assert!(same("x:{a}", "x:{other}"));
    assert!(same("%78:{one}/{two}", "x:{a}/{b}"));
    assert!(same("x:{a}/{a}", "x:{b}/{b}"));
    for other in [
        "x:{b}/{b}",
        "x:{a}/{b:3}",
        "x:{a}/{b*}",
        "x:{a}{/b}",
        "x:{a}/{+b}",
        "x:{a}/{b}/",
    ] {
        assert!(!same("x:{a}/{b}", other), "{other}");
    }
    assert!(!same("x:{?a}", "x:{?b}"));
    let pattern = Pattern::parse("x:{a}{/b,c*}{?d,e}").unwrap();
    assert_eq!(pattern.variables(), ["a", "b", "c", "d", "e"]);
}

/// A backtracking matcher would never finish these.
#[test]
fn hostile_uris_match_in_linear_time() {
    let template = "x:{a}-{b}-{c}-{d}-{e}-{f}-{g}-{h}{/i*}{/j*}{/k*}{.l*}{;m*}{?n*}{#o}/end";
    let pattern = Pattern::parse(template).unwrap();
    for piece in ["-", "a-", "/", "/.", "%2F", "%", "-;m=", "?n=&n=", "#"] {
        let uri = format!("x:{}", piece.repeat((MAX_URI - 2) / piece.len()));
        assert_eq!(find_in(&pattern, &uri), None, "{piece}");
    }
    assert!(matched("x:{a}", &format!("x:{}", "a".repeat(MAX_URI - 2))).is_some());
    assert!(matched("x:{a}", &format!("x:{}", "a".repeat(MAX_URI - 1))).is_none());
}
