//! A warning for users who run `refrain serve` in the directory of their own server.

use toml::{Table, Value};

const APP: &str = "refrain-app";

/// Warns if the crate in this directory is a server with other tools than this program.
pub(crate) fn warn_if_here() {
    let manifest = std::fs::read_to_string("Cargo.toml");
    if manifest.is_ok_and(|manifest| is_server(&manifest)) {
        tracing::warn!(
            hint = "`cargo run -- serve` serves the tools of the crate in this directory",
            "these are the demo tools"
        );
    }
}

fn is_server(manifest: &str) -> bool {
    let Ok(manifest) = manifest.parse::<Table>() else {
        return false;
    };
    let Some(Value::Table(dependencies)) = manifest.get("dependencies") else {
        return false;
    };
    let is_app = |(name, dependency): (&String, &Value)| {
        let package = dependency.get("package").and_then(Value::as_str);
        package.unwrap_or(name) == APP
    };
    let package = manifest
        .get("package")
        .and_then(|package| package.get("name"));
    let is_this = package.and_then(Value::as_str) == Some(env!("CARGO_PKG_NAME"));
    !is_this && dependencies.iter().any(is_app)
}

#[cfg(test)]
mod tests {
    use super::is_server;

    #[test]
    fn server_is_recognized_by_its_dependencies() {
        for (manifest, expected) in [
            ("[dependencies]\nrefrain-app = \"0.1\"\n", true),
            ("[dependencies.refrain-app]\nversion = \"0.1\"\n", true),
            (
                "[dependencies]\napp = { package = \"refrain-app\", path = \"x\" }\n",
                true,
            ),
            ("[dependencies]\nrefrain-app.workspace = true\n", true),
            ("[workspace.dependencies]\nrefrain-app = \"0.1\"\n", false),
            ("[dependencies]\nrefrain-client = \"0.1\"\n", false),
            ("not a manifest", false),
            (include_str!("../Cargo.toml"), false),
        ] {
            assert_eq!(is_server(manifest), expected, "{manifest}");
        }
    }
}
