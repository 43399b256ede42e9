//! Tests of parsing a configuration file.

use super::settings::DEFAULTS;
use super::*;
use crate::NoSettings;
use refrain::runtime::core::SealerOptions;
use refrain::server::ServerLimits;
use refrain::task::TaskOptions;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

fn built_in() -> Settings {
    Settings::new("test", "").expect("valid settings")
}

fn unchecked(text: &str) -> UncheckedConfig<NoSettings> {
    UncheckedConfig::parse(&built_in(), Path::new("config.toml"), text)
}

/// Parses a text. The files that it names need not exist.
fn parse(text: &str) -> Result<Config, String> {
    let mut unchecked = unchecked(text);
    let config = unchecked.config.clone();
    (unchecked.config.keys, unchecked.config.tokens) = (None, None);
    unchecked
        .check()
        .map(|_| config)
        .map_err(|errors| without_colours(&errors))
}

pub(super) fn without_colours(errors: &ConfigErrors) -> String {
    anstream::adapter::strip_str(&errors.to_string()).to_string()
}

/// The first lines of all errors.
pub(super) fn heads(errors: &str) -> Vec<&str> {
    let lines = errors.lines();
    let lines = lines.map(|line| line.strip_prefix("error: ").unwrap_or(line));
    lines.filter(|line| line.starts_with("config")).collect()
}

#[test]
fn defaults_are_those_of_the_library() {
    let config = Config::default();
    assert_eq!(config.limits.server(), ServerLimits::default());
    assert_eq!(config.tasks.options(), TaskOptions::default());
    let sealing = SealerOptions::default();
    assert_eq!(Duration::from(config.token_ttl_seconds), sealing.ttl);
    assert_eq!(Duration::from(config.flow_ttl_seconds), sealing.flow_ttl);
    assert_eq!(Duration::from(config.clock_skew_seconds), sealing.skew);
    assert_eq!(usize::from(config.limits.token_chars), sealing.max_token);
    assert_eq!(parse(""), Ok(config.clone()));
    assert_eq!(parse(DEFAULTS), Ok(config));
}

/// The defaults with all commented settings enabled.
fn examples() -> String {
    let enable = |line| str::strip_prefix(line, "# ").unwrap_or(line);
    let lines: Vec<&str> = DEFAULTS.lines().map(enable).collect();
    lines.join("\n")
}

#[test]
fn examples_among_the_defaults_are_valid() {
    // The files do not exist, and [auth.jwt] excludes [auth.proxy]: only the syntax is checked.
    let unchecked = unchecked(&examples());
    assert_eq!(unchecked.errors, []);
    let config = json!(unchecked.config);
    for name in &built_in().names.settings {
        let path = format!("/{}", name.replace('.', "/"));
        let value = config.pointer(&path);
        assert!(value.is_some_and(|value| !value.is_null()), "{name}");
    }
}

#[test]
fn every_setting_is_among_the_defaults() {
    let unchecked = unchecked(&examples());
    let settings = built_in().names.settings;
    let names: BTreeSet<_> = settings.iter().cloned().collect();
    assert_eq!(names.len(), settings.len());
    let mut tables = vec![(String::new(), json!(unchecked.config))];
    while let Some((prefix, table)) = tables.pop() {
        for (key, value) in table.as_object().expect("a table") {
            let name = format!("{prefix}{key}");
            if names.contains(&name) {
                continue;
            }
            assert!(value.is_object(), "{name} is not in defaults.toml");
            tables.push((format!("{name}."), value.clone()));
        }
    }
}

#[test]
fn every_limit_can_be_set() {
    let defaults = json!(Config::default());
    let mut text = String::new();
    for table in ["limits", "tasks"] {
        text.push_str(&format!("[{table}]\n"));
        for (key, value) in defaults[table].as_object().expect("a table") {
            let changed = match value.as_u64() {
                Some(number) => json!(number + 1),
                None => json!(true),
            };
            text.push_str(&format!("{key} = {changed}\n"));
        }
    }
    let (set, default) = (parse(&text).expect("a configuration"), Config::default());
    let lines = |config: &Config| -> Vec<String> {
        let shown = format!("{:#?}{:#?}", config.limits.server(), config.tasks.options());
        let values = shown
            .lines()
            .filter(|l| l.contains(": ") && !l.ends_with('{'));
        values.map(str::to_owned).collect()
    };
    for (set, default) in lines(&set).iter().zip(lines(&default)) {
        assert_ne!(*set, default, "the setting has no effect");
    }
}

#[test]
fn shed_above_follows_concurrent_calls() {
    let limits = |text: &str| parse(text).unwrap().limits.server();
    assert_eq!(limits("[limits]\nconcurrent_calls = 8\n").shed_above, 6);
    // A single call is not an overload.
    assert_eq!(limits("[limits]\nconcurrent_calls = 1\n").shed_above, 1);
    assert_eq!(
        limits("[limits]\nconcurrent_calls = 8\nshed_above = 8\n").shed_above,
        8
    );
}

#[test]
fn error_is_printed_with_its_position() {
    let text = "audience = \"ä\"\n[limits]\n\trounds = 0 # none\n";
    let expected = "config.toml:3:11: limits.rounds must be at least 1, not 0\n   rounds = 0 # none\n            ^";
    assert_eq!(parse(text).unwrap_err(), expected);
    // An error at the very end of a text without a line end.
    let missing = parse("listen = ").unwrap_err();
    assert!(
        missing.starts_with("config.toml:1:10: missing value\n"),
        "{missing}"
    );
    let unquoted = parse("listen = a\"").unwrap_err();
    assert!(unquoted.contains("missing opening quote"), "{unquoted}");
    // A path is taken for `false`, and an address for a number.
    for text in ["keys = fleet.keys", "listen = 127.0.0.1:8080"] {
        let unquoted = parse(text).unwrap_err();
        assert!(unquoted.contains("put it in quotes"), "{unquoted}");
    }
    assert!(
        parse("listen = \"\u{1F600}")
            .unwrap_err()
            .starts_with("config.toml:1:")
    );
}

#[test]
fn all_errors_are_reported_in_the_order_of_the_file() {
    let text = "log = 5\n[limits]\nshed_above = 9\nconcurrent_calls = 3\nround = 1\nasks = -1\n";
    assert_eq!(
        heads(&parse(text).unwrap_err()),
        [
            "config.toml:1:7: log must be a string, not integer `5`",
            "config.toml:3:14: limits.shed_above must be at most limits.concurrent_calls (3), not 9",
            "config.toml:5:1: unknown setting \"round\" in [limits]; did you mean \"rounds\"?",
            "config.toml:6:8: limits.asks must be at least 1, not -1",
        ]
    );
}

#[test]
fn table_with_an_invalid_setting_is_not_checked_further() {
    let shown = parse("[auth.jwt]\nissuer = 5\n").unwrap_err();
    let expected = "config.toml:2:10: auth.jwt.issuer must be a string, not integer `5`\n";
    assert!(shown.starts_with(expected), "{shown}");
    assert_eq!(shown.lines().count(), 3, "{shown}");
}

#[test]
fn invalid_settings_are_rejected() {
    for (text, expected) in [
        (
            "listen = \"127.0.0.1\"",
            "1:10: listen must have a port after the address, like",
        ),
        (
            "listen = \"::1\"",
            "1:10: listen must have a port after the address",
        ),
        (
            "listen = \"127.0.0.1:80800\"",
            "1:10: listen must have a port of at most 65535, not 80800",
        ),
        (
            "listen = \"localhost:80\"",
            "1:10: listen must be an IP address and a port",
        ),
        (
            "listen = 8080",
            "1:10: listen must be a string, not integer `8080`",
        ),
        (
            "metrics = \"127.0.0.1:8080\"",
            "1:11: `metrics` and `listen` must not be the same address",
        ),
        (
            "[server_card]\nname = \"weather\"",
            "2:8: server_card.name: invalid name: expected a reversed domain and a name",
        ),
        (
            "[server_card]\nname = \"com.example/weather\"\nurl = \"http://mcp.example.com/mcp\"",
            "3:7: server_card.url: invalid URL: ",
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
            "must be a whole number, not floating point `1.5`",
        ),
        (
            "flow_ttl_seconds = 9223372036854775807",
            "must be at most 315360000",
        ),
        (
            "flow_ttl_seconds = 99999999999999999999999999999999999999999999",
            "1:20: flow_ttl_seconds is too large",
        ),
        (
            "clock_skew_seconds = 3601",
            "1:22: clock_skew_seconds must be at most 3600, not 3601",
        ),
        ("audience = \"\"", "1:12: audience must not be empty"),
        (
            "keys = true",
            "1:8: keys must be a string, not boolean `true`",
        ),
        ("allowed_hosts = []", "must not be empty: every request"),
        (
            "allowed_hosts = \"a\"",
            "allowed_hosts must be a list, like [\"a\"], not a string",
        ),
        (
            "allowed_hosts = [\"a\", 5]",
            "1:23: each item of allowed_hosts must be a string, not integer `5`",
        ),
        (
            "allowed_hosts = [\"https://a/\"]",
            "has an invalid host \"https://a/\": expected a host name without scheme",
        ),
        (
            "allowed_origins = [\"app.example.com\"]",
            "has an invalid origin \"app.example.com\": expected a scheme and a host",
        ),
        (
            "allowed_origins = [\"https://a/\"]",
            "has an invalid origin \"https://a/\": expected a scheme and a host without a path",
        ),
        (
            "log = \"xml\"",
            "1:7: log must be \"text\" or \"json\", not \"xml\"",
        ),
        (
            "rounds = 5",
            "1:1: unknown setting \"rounds\"; move it to [limits]",
        ),
        (
            "[limits]\nlisten = 5",
            "2:1: unknown setting \"listen\" in [limits]; move it to the top of the file",
        ),
        (
            "[limit]\nrounds = 5",
            "unknown setting \"limit\"; did you mean \"limits\"?",
        ),
        (
            "limits = 5",
            "1:10: limits must be a table, not integer `5`",
        ),
        (
            "listen_on = 5",
            "1:1: unknown setting \"listen_on\"; did you mean \"listen\"?",
        ),
        ("log = \"text\"\nxyz = 5", "2:1: unknown setting \"xyz\"\n"),
        (
            "store = \"foo:\"",
            "1:9: invalid store URL: expected a URL that starts with `sqlite:`",
        ),
        (
            "store = \"sqlite:\"",
            "1:9: invalid store URL: missing file name",
        ),
        (
            "store = \"postgres://a:b:c/d\"",
            "1:9: invalid store URL: invalid port: expected",
        ),
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
        ("auth = 5", "1:8: auth must be a table, not integer `5`"),
        (
            "[auth]\njwt = 5",
            "2:7: auth.jwt must be a table, not integer `5`",
        ),
        (
            "[auth.jwts]\n",
            "1:7: unknown setting \"jwts\" in [auth]; did you mean \"jwt\"?",
        ),
        (
            "[proxy]\n",
            "1:2: unknown setting \"proxy\"; move it to [auth]",
        ),
        (
            "[auth]\nscope = []",
            "2:1: unknown setting \"scope\" in [auth]; did you mean \"scopes\"?",
        ),
        (
            "[auth.jwt]\nscopes = []",
            "2:1: unknown setting \"scopes\" in [auth.jwt]; move it to [auth]",
        ),
        (
            "[auth]\naudience = \"a\"",
            "2:1: unknown setting \"audience\" in [auth]; move it to [auth.jwt]",
        ),
        (
            "[auth]\nscopes = \"a\"",
            "2:10: auth.scopes must be a list, like [\"a\"], not a string",
        ),
        (
            "[auth.jwt]\naudience = 5",
            "2:12: auth.jwt.audience must be a string or a list of strings, not integer `5`",
        ),
        (
            "[auth]\nimplies = { a = \"b\" }",
            "2:17: auth.implies.a must be a list, like [\"b\"], not a string",
        ),
        (
            "[auth]\nimplies = [\"a\"]",
            "2:11: auth.implies must be a table, not a list",
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
