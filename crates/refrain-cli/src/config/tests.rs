//! The list of settings, held against what there is to set.

use super::command::defaults;
use super::settings::SETTINGS;
use super::*;
use std::collections::BTreeSet;

/// Reads a text. Files that it names need not be there.
fn parse(text: &str) -> Result<Config, String> {
    let mut loaded = Loaded::parse(Path::new("config.toml"), text.to_owned());
    let config = loaded.config.clone();
    (loaded.config.keys, loaded.config.tokens) = (None, None);
    let plain =
        |mistakes: Mistakes| anstream::adapter::strip_str(&mistakes.to_string()).to_string();
    loaded.ready().map(|_| config).map_err(plain)
}

#[test]
fn the_defaults_are_the_defaults() {
    assert_eq!(parse(""), Ok(Config::default()));
    assert_eq!(parse(&defaults()), Ok(Config::default()));
}

#[test]
fn the_examples_among_the_defaults_are_good() {
    let defaults = defaults();
    let on = |line| str::strip_prefix(line, "# ").unwrap_or(line);
    let all: Vec<&str> = defaults.lines().map(on).collect();
    // Not put to use: the files are not there, and nobody has both access tokens and a proxy.
    let loaded = Loaded::parse(Path::new("config.toml"), all.join("\n"));
    assert_eq!(loaded.mistakes, []);
    let config = loaded.config;
    let examples = SETTINGS.iter().filter(|setting| setting.example.is_some());
    for setting in examples {
        assert!(!setting.value(&config).is_null(), "{}", setting.name);
    }
}

/// Everything of a server that is a limit has a setting: with each setting changed, no value is what it was.
#[test]
fn every_limit_can_be_set() {
    let mut text = String::from("audience = \"other\"\n");
    for setting in SETTINGS {
        let (table, key) = setting.path();
        let value = setting.value(&Config::default());
        let Some(number) = value.as_u64() else {
            continue;
        };
        if let Some(table) = table
            && !text.contains(&format!("[{table}]"))
        {
            text.push_str(&format!("[{table}]\n"));
        }
        text.push_str(&format!("{key} = {}\n", number + 1));
    }
    let (config, default) = (parse(&text).unwrap(), Config::default());
    for (set, default) in [
        (
            format!("{:#?}", config.limits),
            format!("{:#?}", default.limits),
        ),
        (
            format!("{:#?}", config.sealing),
            format!("{:#?}", default.sealing),
        ),
    ] {
        let values = |text: &str| -> Vec<String> {
            text.lines()
                .filter(|line| line.contains(": ") && !line.ends_with('{'))
                .map(str::to_owned)
                .collect()
        };
        let (set, default) = (values(&set), values(&default));
        assert_eq!(set.len(), default.len());
        for (set, default) in set.iter().zip(&default) {
            assert_ne!(set, default, "there is no setting for it");
        }
    }
}

#[test]
fn names_are_there_once() {
    let names: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.name).collect();
    assert_eq!(names.len(), SETTINGS.len());
}

#[test]
fn shed_above_follows_concurrent_calls() {
    let limits = |text: &str| parse(text).unwrap().limits;
    assert_eq!(limits("[limits]\nconcurrent_calls = 8\n").shed_above, 6);
    // A single call is no overload.
    assert_eq!(limits("[limits]\nconcurrent_calls = 1\n").shed_above, 1);
    assert_eq!(
        limits("[limits]\nconcurrent_calls = 8\nshed_above = 8\n").shed_above,
        8
    );
}

#[test]
fn a_mistake_is_shown_with_its_place() {
    let text = "audience = \"ä\"\n[limits]\n\trounds = 0 # none\n";
    let expected = "config.toml:3:11: limits.rounds must be at least 1, not 0\n   rounds = 0 # none\n            ^";
    assert_eq!(parse(text).unwrap_err(), expected);
    // At the very end, and in a text that is one line without an end.
    assert!(
        parse("listen = ")
            .unwrap_err()
            .starts_with("config.toml:1:")
    );
    assert!(
        parse("listen = \"\u{1F600}")
            .unwrap_err()
            .starts_with("config.toml:1:")
    );
}

#[test]
fn all_mistakes_are_told_at_once_in_their_order() {
    let text = "log = 5\n[limits]\nshed_above = 9\nconcurrent_calls = 3\nround = 1\nasks = -1\n";
    let shown = parse(text).unwrap_err();
    let heads: Vec<&str> = shown
        .lines()
        .filter(|line| line.starts_with("config"))
        .collect();
    assert_eq!(
        heads,
        [
            "config.toml:1:7: log must be text in quotes, not a whole number",
            "config.toml:3:14: limits.shed_above must be at most limits.concurrent_calls, which is 3, not 9",
            "config.toml:5:1: there is no setting \"round\" in [limits]; did you mean \"rounds\"?",
            "config.toml:6:8: limits.asks must be at least 1, not -1",
        ]
    );
}

/// What cannot be read is not called missing.
#[test]
fn a_table_of_which_a_part_cannot_be_read_is_not_judged() {
    let shown = parse("[auth.jwt]\nissuer = 5\n").unwrap_err();
    let expected = "config.toml:2:10: auth.jwt.issuer must be text in quotes, not a whole number\n";
    assert!(shown.starts_with(expected), "{shown}");
    assert_eq!(shown.lines().count(), 3, "{shown}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (text, expected) in [
        (
            "listen = \"127.0.0.1\"",
            "1:10: listen has no port: it must be an address and a port, like",
        ),
        ("listen = \"::1\"", "1:10: listen has no port"),
        (
            "listen = \"localhost:80\"",
            "1:10: listen must be an IP address and a port",
        ),
        (
            "listen = 8080",
            "1:10: listen must be text in quotes, not a whole number",
        ),
        (
            "metrics = \"127.0.0.1:8080\"",
            "1:11: metrics must be another port than that of listen",
        ),
        (
            "token_ttl_seconds = 0",
            "1:21: token_ttl_seconds must be at least 1, not 0",
        ),
        (
            "flow_ttl_seconds = 0",
            "1:20: flow_ttl_seconds must be at least 1",
        ),
        (
            "flow_ttl_seconds = 1.5",
            "must be a whole number, not a number with a point",
        ),
        (
            "flow_ttl_seconds = 9223372036854775807",
            "must be at most 315360000",
        ),
        (
            "flow_ttl_seconds = 99999999999999999999999999999999999999999999",
            "must be at most 315360000",
        ),
        ("audience = \"\"", "1:12: audience must not be empty"),
        (
            "keys = true",
            "1:8: keys must be text in quotes, not true or false",
        ),
        ("allowed_hosts = []", "must name a host"),
        (
            "allowed_hosts = \"a\"",
            "must be a list of hosts, like [\"mcp.example.com\"], not text",
        ),
        ("allowed_hosts = [\"a\", 5]", "must be a list of hosts"),
        (
            "allowed_hosts = [\"https://a/\"]",
            "is no host: write a name without a scheme",
        ),
        (
            "log = \"xml\"",
            "1:7: log must be \"text\" or \"json\", not \"xml\"",
        ),
        (
            "rounds = 5",
            "1:1: there is no setting \"rounds\"; it belongs into [limits]",
        ),
        (
            "[limits]\nlisten = 5",
            "2:1: there is no setting \"listen\" in [limits]; it belongs into the top of the file",
        ),
        (
            "[limit]\nrounds = 5",
            "there is no setting \"limit\"; did you mean \"limits\"?",
        ),
        ("limits = 5", "1:10: limits must be a table: [limits]"),
        (
            "listen_on = 5",
            "1:1: there is no setting \"listen_on\"; did you mean \"listen\"?",
        ),
        ("xyz = 5", "1:1: there is no setting \"xyz\"\n"),
        (
            "[limits]\nrounds = 4294967296",
            "must be at most 4294967295",
        ),
        (
            "[limits]\nrounds = {a = 1}",
            "must be a whole number, not a table",
        ),
        ("log = \"text\"\nlog = \"json\"", "2:1: duplicate key"),
        ("[limits]\nbody_bytes = 10", "must be at least 256, not 10"),
        ("auth = 5", "1:8: auth must be a table: [auth]"),
        (
            "[auth]\njwt = 5",
            "2:7: auth.jwt must be a table: [auth.jwt]",
        ),
        (
            "[auth.jwts]\n",
            "1:7: there is no setting \"jwts\" in [auth]; did you mean \"jwt\"?",
        ),
        (
            "[proxy]\n",
            "1:2: there is no setting \"proxy\"; it belongs into [auth]",
        ),
        (
            "[auth]\nscope = []",
            "2:1: there is no setting \"scope\" in [auth]; did you mean \"scopes\"?",
        ),
        (
            "[auth.jwt]\nscopes = []",
            "2:1: there is no setting \"scopes\" in [auth.jwt]; it belongs into [auth]",
        ),
        (
            "[auth]\nscopes = \"a\"",
            "2:10: auth.scopes must be a list of texts in quotes, not text",
        ),
        (
            "[auth.jwt]\naudience = 5",
            "2:12: auth.jwt.audience must be a list of texts in quotes, not a whole number",
        ),
        (
            "[auth]\nimplies = { a = \"b\" }",
            "2:11: auth.implies must be a list of texts in quotes, not text",
        ),
        (
            "[auth]\nimplies = [\"a\"]",
            "2:11: auth.implies must be a table of lists, not a list",
        ),
        (
            "[auth.jwt]\nleeway_seconds = -1",
            "2:18: auth.jwt.leeway_seconds must be at least 0, not -1",
        ),
        (
            "[auth.jwt]\nissuer = \"\"",
            "2:10: auth.jwt.issuer must not be empty",
        ),
    ] {
        let shown = parse(text).expect_err(text);
        assert!(shown.contains(expected), "{text}: {shown}");
    }
}
