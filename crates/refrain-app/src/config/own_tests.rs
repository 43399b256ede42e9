//! Tests of a program's own settings.

use super::tests::{heads, without_colours};
use super::{Settings, UncheckedConfig};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

const SETTINGS: &str = r#"
[gateway]                             # of all backends
refresh_seconds = 60                  # between two lists
prefix = "{backend}_"                 # of tools

# [backends.NAME]
# command = ["server", "--flag"]      # the program to start
# home = "replay"                     # or "live", if not set
# env = { TOKEN = "secret" }          # of the program

# [backends.NAME.tools.TOOL]
# hidden = true                       # not offered
"#;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    gateway: Gateway,
    #[serde(default)]
    backends: BTreeMap<Name, Backend>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct Gateway {
    refresh_seconds: u32,
    prefix: String,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
struct Name(String);

impl TryFrom<String> for Name {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, &'static str> {
        match name.contains(' ') {
            true => Err("must not contain spaces"),
            false => Ok(Self(name)),
        }
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct Backend {
    command: Vec<String>,
    #[serde(default)]
    home: Home,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    tools: BTreeMap<String, Tool>,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Home {
    #[default]
    Live,
    Replay,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct Tool {
    hidden: bool,
}

fn parse(text: &str) -> Result<Own, String> {
    let settings = Settings::new("test", SETTINGS).expect("valid settings");
    let unchecked = UncheckedConfig::parse(&settings, Path::new("config.toml"), text);
    let checked = unchecked.check();
    checked
        .map(|(_, own)| own)
        .map_err(|errors| without_colours(&errors))
}

#[test]
fn own_settings_have_the_defaults_of_their_text() {
    let own = parse("").expect("a configuration");
    assert_eq!(own.gateway.refresh_seconds, 60);
    assert_eq!(own.gateway.prefix, "{backend}_");
    assert_eq!(own.backends, BTreeMap::new());
    let own = parse("[gateway]\nrefresh_seconds = 5\n").expect("a configuration");
    assert_eq!(own.gateway.refresh_seconds, 5);
    assert_eq!(own.gateway.prefix, "{backend}_");
}

#[test]
fn own_tables_are_read_next_to_the_built_in_ones() {
    let text = "log = \"json\"\n[backends.files]\ncommand = [\"a\"]\n[limits]\nrounds = 5\n[backends.\"b.c\"]\n\
                command = [\"b\"]\nhome = \"replay\"\n[backends.\"b.c\".env]\nX = \"1\"\n[backends.files.tools.read]\nhidden = true\n";
    let own = parse(text).expect("a configuration");
    let names: Vec<&str> = own.backends.keys().map(|name| name.0.as_str()).collect();
    assert_eq!(names, ["b.c", "files"]);
    let [other, files] = own.backends.values().collect::<Vec<_>>()[..] else {
        panic!("two backends");
    };
    assert_eq!(other.home, Home::Replay);
    assert_eq!(other.env["X"], "1");
    assert!(files.tools["read"].hidden);
}

#[test]
fn all_errors_of_both_parts_are_reported_in_the_order_of_the_file() {
    let text = "log = 5\n[backends.files]\ncommand = 5\nhom = \"live\"\n[limits]\nround = 1\n[backends.\"b.c\"]\n\
                home = \"live\"\n[gateway]\nrefresh_seconds = -1\n";
    assert_eq!(
        heads(&parse(text).expect_err("errors")),
        [
            "config.toml:1:7: log must be a string, not integer `5`",
            "config.toml:3:11: backends.files.command must be a list, not integer `5`",
            "config.toml:4:1: unknown setting \"hom\" in [backends.files]; did you mean \"home\"?",
            "config.toml:6:1: unknown setting \"round\" in [limits]; did you mean \"rounds\"?",
            "config.toml:7:1: missing setting \"command\" in [backends.\"b.c\"]",
            "config.toml:10:19: gateway.refresh_seconds must be a whole number from 0 to 4294967295, not integer `-1`",
        ]
    );
}

#[test]
fn invalid_own_settings_are_rejected() {
    for (text, expected) in [
        (
            "[backend.a]\n",
            "1:2: unknown setting \"backend\"; did you mean \"backends\"?",
        ),
        (
            "backends = 5\n",
            "1:12: backends must be a table, not integer `5`",
        ),
        (
            "[backends]\na = 5\n",
            "2:5: backends.a must be a table, not integer `5`",
        ),
        (
            "[backends.\"a b\"]\ncommand = []\n",
            "1:11: backends.\"a b\" must not contain spaces",
        ),
        (
            "refresh_seconds = 5\n",
            "1:1: unknown setting \"refresh_seconds\"; move it to [gateway]",
        ),
        (
            "[gateway]\nhome = \"live\"\n",
            "2:1: unknown setting \"home\" in [gateway]; move it to [backends.NAME]",
        ),
        (
            "[backends.a]\ncommand = []\nhome = \"liv\"\n",
            "3:8: backends.a.home must be `live` or `replay`, not `liv`",
        ),
        (
            "[backends.a]\ncommand = []\n[backends.a.env]\nX = 5\n",
            "4:5: backends.a.env.X must be a string, not integer `5`",
        ),
        (
            "[backends.a]\ncommand = []\ntools.x = { hiden = true }\n",
            "3:13: unknown setting \"hiden\" in [backends.a.tools.x]; did you mean \"hidden\"?",
        ),
        (
            "[backends.a]\ncommand = [\"x\", 5]\n",
            "2:17: each item of backends.a.command must be a string, not integer `5`",
        ),
    ] {
        let shown = parse(text).expect_err(text);
        assert!(shown.contains(expected), "{text}: {shown}");
        assert!(!shown.contains("\nerror: "), "one error: {shown}");
    }
    assert!(parse("[backends.a]\ncommand = []\n").is_ok());
}

#[test]
fn missing_own_table_is_reported_without_a_position() {
    #[derive(Debug, Deserialize)]
    struct Required {
        #[expect(dead_code, reason = "only its absence matters")]
        database: BTreeMap<String, String>,
    }
    let settings = Settings::new("test", "# [database]\n# url = \"x\"\n").expect("valid settings");
    let unchecked = UncheckedConfig::<Required>::defaults(&settings);
    let errors = unchecked.check().expect_err("an error");
    assert_eq!(errors.to_string(), "missing setting \"database\"");
}

#[test]
fn invalid_text_of_own_settings_is_rejected() {
    for (text, expected) in [
        (
            "[gateway\n",
            "invalid settings of this program: TOML parse error",
        ),
        ("[limits]\nx = 1\n", "\"limits\" is a built-in setting"),
        ("# [auth.extra]\n", "\"auth\" is a built-in setting"),
        ("x = 1\n", "\"x\" must be in a table"),
        ("# x = 1\n", "\"x\" must be in a table"),
    ] {
        let error = Settings::new("test", text).err().expect(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
