//! Which URIs a template matches, and what is found in them.

use super::*;
use serde_json::json;

pub(super) fn matched(template: &str, uri: &str) -> Option<Value> {
    find_in(&Pattern::parse(template).unwrap(), uri)
}

pub(super) fn find_in(pattern: &Pattern, uri: &str) -> Option<Value> {
    find([(pattern, ())].into_iter(), uri).map(|(variables, ())| variables)
}

/// Templates and what they expand to, from RFC 6570, with the variables that are to be found in that again.
fn examples() -> Vec<(&'static str, &'static str, Value)> {
    let list = || json!({"list": ["red", "green", "blue"]});
    let text = || json!({"list": "red,green,blue"});
    let pairs = |items: [&str; 3]| json!({"keys": items});
    vec![
        // 1.2, the levels
        ("{var}", "value", json!({"var": "value"})),
        (
            "{hello}",
            "Hello%20World%21",
            json!({"hello": "Hello World!"}),
        ),
        (
            "{+hello}",
            "Hello%20World!",
            json!({"hello": "Hello World!"}),
        ),
        ("{+path}/here", "/foo/bar/here", json!({"path": "/foo/bar"})),
        (
            "here?ref={+path}",
            "here?ref=/foo/bar",
            json!({"path": "/foo/bar"}),
        ),
        ("X{#var}", "X#value", json!({"var": "value"})),
        (
            "X{#hello}",
            "X#Hello%20World!",
            json!({"hello": "Hello World!"}),
        ),
        (
            "map?{x,y}",
            "map?1024,768",
            json!({"x": "1024", "y": "768"}),
        ),
        (
            "{x,hello,y}",
            "1024,Hello%20World%21,768",
            json!({"x": "1024", "hello": "Hello World!", "y": "768"}),
        ),
        (
            "{+x,hello,y}",
            "1024,Hello%20World!,768",
            json!({"x": "1024", "hello": "Hello World!", "y": "768"}),
        ),
        (
            "{+path,x}/here",
            "/foo/bar,1024/here",
            json!({"path": "/foo/bar", "x": "1024"}),
        ),
        (
            "{#x,hello,y}",
            "#1024,Hello%20World!,768",
            json!({"x": "1024", "hello": "Hello World!", "y": "768"}),
        ),
        (
            "{#path,x}/here",
            "#/foo/bar,1024/here",
            json!({"path": "/foo/bar", "x": "1024"}),
        ),
        ("X{.var}", "X.value", json!({"var": "value"})),
        ("X{.x,y}", "X.1024.768", json!({"x": "1024", "y": "768"})),
        ("{/var}", "/value", json!({"var": "value"})),
        (
            "{/var,x}/here",
            "/value/1024/here",
            json!({"var": "value", "x": "1024"}),
        ),
        ("{;x,y}", ";x=1024;y=768", json!({"x": "1024", "y": "768"})),
        (
            "{;x,y,empty}",
            ";x=1024;y=768;empty",
            json!({"x": "1024", "y": "768", "empty": ""}),
        ),
        ("{?x,y}", "?x=1024&y=768", json!({"x": "1024", "y": "768"})),
        (
            "{?x,y,empty}",
            "?x=1024&y=768&empty=",
            json!({"x": "1024", "y": "768", "empty": ""}),
        ),
        ("?fixed=yes{&x}", "?fixed=yes&x=1024", json!({"x": "1024"})),
        (
            "{&x,y,empty}",
            "&x=1024&y=768&empty=",
            json!({"x": "1024", "y": "768", "empty": ""}),
        ),
        ("{var:3}", "val", json!({"var": "val"})),
        ("{var:30}", "value", json!({"var": "value"})),
        ("{list}", "red,green,blue", text()),
        ("{list*}", "red,green,blue", list()),
        (
            "{keys*}",
            "semi=%3B,dot=.,comma=%2C",
            pairs(["semi=;", "dot=.", "comma=,"]),
        ),
        ("{+path:6}here", "/foo/bhere", json!({"path": "/foo/b"})),
        ("{+list}", "red,green,blue", text()),
        ("{+list*}", "red,green,blue", list()),
        (
            "{+keys*}",
            "semi=;,dot=.,comma=%2C",
            pairs(["semi=;", "dot=.", "comma=,"]),
        ),
        ("{#path:6}here", "#/foo/bhere", json!({"path": "/foo/b"})),
        ("{#list}", "#red,green,blue", text()),
        ("{#list*}", "#red,green,blue", list()),
        ("X{.var:3}", "X.val", json!({"var": "val"})),
        ("X{.list}", "X.red,green,blue", text()),
        ("X{.list*}", "X.red.green.blue", list()),
        ("{/var:1,var}", "/v/value", json!({"var": "value"})),
        ("{/list}", "/red,green,blue", text()),
        ("{/list*}", "/red/green/blue", list()),
        (
            "{/keys*}",
            "/semi=%3B/dot=./comma=%2C",
            pairs(["semi=;", "dot=.", "comma=,"]),
        ),
        ("{;hello:5}", ";hello=Hello", json!({"hello": "Hello"})),
        ("{;list}", ";list=red,green,blue", text()),
        ("{;list*}", ";list=red;list=green;list=blue", list()),
        ("{?var:3}", "?var=val", json!({"var": "val"})),
        ("{?list}", "?list=red,green,blue", text()),
        ("{?list*}", "?list=red&list=green&list=blue", list()),
        ("{&var:3}", "&var=val", json!({"var": "val"})),
        ("{&list}", "&list=red,green,blue", text()),
        ("{&list*}", "&list=red&list=green&list=blue", list()),
        // 3.2, the operators
        ("{half}", "50%25", json!({"half": "50%"})),
        ("{x,empty}", "1024,", json!({"x": "1024", "empty": ""})),
        ("{x,undef}", "1024", json!({"x": "1024"})),
        ("{+half}", "50%25", json!({"half": "50%"})),
        (
            "{base}index",
            "http%3A%2F%2Fexample.com%2Fhome%2Findex",
            json!({"base": "http://example.com/home/"}),
        ),
        (
            "{+base}index",
            "http://example.com/home/index",
            json!({"base": "http://example.com/home/"}),
        ),
        ("up{+path}{var}/here", "", Value::Null),
        ("foo{#empty}", "foo#", json!({"empty": ""})),
        ("foo{#undef}", "foo", json!({})),
        ("{.who}", ".fred", json!({"who": "fred"})),
        (
            "{.half,who}",
            ".50%25.fred",
            json!({"half": "50%", "who": "fred"}),
        ),
        (
            "www{.dom*}",
            "www.example.com",
            json!({"dom": ["example", "com"]}),
        ),
        ("X{.empty}", "X.", json!({"empty": ""})),
        ("X{.undef}", "X", json!({})),
        ("X{.empty_keys*}", "X", json!({"empty_keys": []})),
        (
            "{/half,who}",
            "/50%25/fred",
            json!({"half": "50%", "who": "fred"}),
        ),
        (
            "{/who,dub}",
            "/fred/me%2Ftoo",
            json!({"who": "fred", "dub": "me/too"}),
        ),
        (
            "{/var,empty}",
            "/value/",
            json!({"var": "value", "empty": ""}),
        ),
        ("{/var,undef}", "/value", json!({"var": "value"})),
        ("{;half}", ";half=50%25", json!({"half": "50%"})),
        (
            "{;v,empty,who}",
            ";v=6;empty;who=fred",
            json!({"v": "6", "empty": "", "who": "fred"}),
        ),
        (
            "{;v,bar,who}",
            ";v=6;who=fred",
            json!({"v": "6", "who": "fred"}),
        ),
        ("{?who}", "?who=fred", json!({"who": "fred"})),
        (
            "{?x,y,undef}",
            "?x=1024&y=768",
            json!({"x": "1024", "y": "768"}),
        ),
        ("{&var:3}", "&var=val", json!({"var": "val"})),
        (
            "{&x,y,undef}",
            "&x=1024&y=768",
            json!({"x": "1024", "y": "768"}),
        ),
    ]
}

#[test]
fn the_examples_of_the_rfc_give_their_variables_back() {
    for (template, uri, variables) in examples() {
        if variables.is_null() {
            let error = Pattern::parse(template).expect_err(template);
            assert_eq!(error.flaw, TemplateFlaw::Adjacent);
            continue;
        }
        assert_eq!(matched(template, uri), Some(variables), "{template} {uri}");
    }
}

#[test]
fn pairs_come_in_any_order_and_only_those_that_are_named() {
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
fn values_are_decoded_and_must_be_text() {
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
    // What is encoded is not taken for the text around a value, and not cut in two.
    assert_eq!(matched("x:{a}2F", "x:%2F2F"), Some(json!({"a": "/"})));
    assert_eq!(matched("x:{a}F", "x:%2F"), None);
}

#[test]
fn literal_text_matches_however_it_is_encoded() {
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
    // A character with a meaning in URIs is another one when it is encoded.
    assert_eq!(matched("x://a/{b}", "x://a%2F1"), None);
    assert_eq!(matched("x://a%2f{b}", "x://a/1"), None);
    assert!(matched("x://a%2f{b}", "x://a%2F1").is_some());
    // Nothing of it is taken for a regular expression.
    assert_eq!(
        matched("x:.*(a)[b]+$^|{v}", "x:.*(a)[b]+$^|1"),
        Some(json!({"v": "1"}))
    );
    assert_eq!(matched("x:.*{v}", "x:aa1"), None);
    assert_eq!(matched("x:plain", "x:plain"), Some(json!({})));
    assert_eq!(matched("x:plain", "x:plain\n"), None);
}

#[test]
fn earlier_variables_take_as_little_as_they_can() {
    assert_eq!(
        matched("{a}-{b}", "1-2-3"),
        Some(json!({"a": "1", "b": "2-3"}))
    );
    assert_eq!(
        matched("{name}{.type}", "a.tar.gz"),
        Some(json!({"name": "a", "type": "tar.gz"}))
    );
    assert_eq!(matched("{name}{.type}", "a"), Some(json!({"name": "a"})));
    assert_eq!(
        matched("x:{+path}{?rev}", "x:a/b?rev=3"),
        Some(json!({"path": "a/b", "rev": "3"}))
    );
    assert_eq!(
        matched("x:{/dirs*}/{file}", "x:/a/b/c"),
        Some(json!({"dirs": ["a", "b"], "file": "c"}))
    );
    assert_eq!(
        matched("x:{/dirs*}/{file}", "x:/c"),
        Some(json!({"dirs": [], "file": "c"}))
    );
}

#[test]
fn a_variable_has_one_value() {
    let pair = Pattern::parse("{a}/{a}").unwrap();
    assert_eq!(find_in(&pair, "1/1"), Some(json!({"a": "1"})));
    assert_eq!(find_in(&pair, "1/2"), None);
    let prefixes = Pattern::parse("{a:1}/{a:2}/{a}").unwrap();
    assert_eq!(find_in(&prefixes, "é/éa/éab"), Some(json!({"a": "éab"})));
    assert_eq!(find_in(&prefixes, "é/é/é"), Some(json!({"a": "é"})));
    assert_eq!(find_in(&prefixes, "é/éb/éab"), None);
    assert_eq!(find_in(&prefixes, "é/é/éab"), None);
    let lists = Pattern::parse("x{/l*}{?l*}").unwrap();
    assert_eq!(
        find_in(&lists, "x/1/2?l=1&l=2"),
        Some(json!({"l": ["1", "2"]}))
    );
    assert_eq!(find_in(&lists, "x/1/2?l=1"), None);
    assert_eq!(matched("{a:2}", "%C3%A9%C3%A9"), Some(json!({"a": "éé"})));
    assert_eq!(matched("{a:2}", "abc"), None);
}

#[test]
fn templates_that_cannot_be_used_say_what_is_wrong_and_where() {
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
        Pattern::parse(&large).expect_err("a large one").flaw,
        TooLarge
    );
}

#[test]
fn the_most_literal_pattern_is_found_and_the_first_of_equals() {
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
        let known = patterns
            .iter()
            .map(|(pattern, template)| (pattern, *template));
        assert_eq!(
            find(known, uri).map(|(_, found)| found),
            Some(template),
            "{uri}"
        );
    }
}

#[test]
fn patterns_are_the_same_if_they_match_the_same_uris() {
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

/// A matcher that tries every way to cut these would not be done in a lifetime.
#[test]
fn hostile_uris_are_done_with_at_once() {
    let template = "x:{a}-{b}-{c}-{d}-{e}-{f}-{g}-{h}{/i*}{/j*}{/k*}{.l*}{;m*}{?n*}{#o}/end";
    let pattern = Pattern::parse(template).unwrap();
    for piece in ["-", "a-", "/", "/.", "%2F", "%", "-;m=", "?n=&n=", "#"] {
        let uri = format!("x:{}", piece.repeat((LONGEST_URI - 2) / piece.len()));
        assert_eq!(find_in(&pattern, &uri), None, "{piece}");
    }
    assert!(matched("x:{a}", &format!("x:{}", "a".repeat(LONGEST_URI - 2))).is_some());
    assert!(matched("x:{a}", &format!("x:{}", "a".repeat(LONGEST_URI - 1))).is_none());
}
