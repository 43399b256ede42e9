//! The public names of Refrain, except `client`, `prelude` and `runtime`. Add new names here.

use std::collections::BTreeSet;

const NAMES: [(&str, &str); 7] = [
    (
        "lib",
        "Answer AskError Cx Elicit ElicitEnum Error Incomplete Json Reply Result State ok prompt resource tool",
    ),
    ("ask", "Choice Field Form SamplingParams"),
    (
        "auth",
        "Authenticator BearerTokens Caller Jwks JwtVerifier Principal ResourceMetadata TrustedProxy",
    ),
    (
        "content",
        "Content LogLevel PromptMessage ResourceContents ResourceLink ToolResult",
    ),
    (
        "server",
        "AllowedHosts BuildError Cache Changes CompletionInput Draft HandleError HttpService Icon KeyRing Listener Listing Prompt RawResult \
         Resource ResourceTemplate Server ServerBuilder ServerCard ServerLimits Skill SubscribedResources TlsCertificate TlsError Tool ToolAnnotations serve serve_metrics serve_stdio",
    ),
    (
        "store",
        "MemoryStore OpenStoreError PgStore ReplayLog SqliteStore Store StoreError TaskStore open",
    ),
    ("task", "Limits TaskOptions Webhook"),
];

/// The names that the top-level `pub use` lines of a module export.
fn exported(module: &str) -> BTreeSet<String> {
    let path = format!("{}/src/{module}.rs", env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(path).expect("the source of a module");
    let uses = source.split("\npub use ").skip(1);
    let uses = uses.map(|rest| rest.split(';').next().unwrap_or_default());
    let names = uses
        .filter(|path| !path.contains(" as client"))
        .flat_map(|path| {
            let names = path.rsplit_once("::").map_or("", |(_, names)| names);
            names.split(|c: char| !c.is_alphanumeric() && c != '_')
        });
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn public_names_match_the_list() {
    let mut count = 0;
    for (module, names) in NAMES {
        let names: BTreeSet<String> = names.split(' ').map(str::to_owned).collect();
        assert_eq!(exported(module), names, "{module}");
        count += names.len();
    }
    assert_eq!(count, 74);
}
