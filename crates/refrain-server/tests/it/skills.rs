//! The Skills extension.

use crate::support::{Request, result, start};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use refrain_server::{BearerTokens, BuildError, Server, ServerBuilder, Skill, SkillError};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

const EXTENSION: &str = "io.modelcontextprotocol/skills";
const GREETING: &str = "---\nname: greeting\ndescription: How to greet\n---\n\nSay hello.\n";
const REFUNDS: &str = "---\nname: refunds\ndescription: Refund an order\nmetadata:\n  version: \"2\"\n---\n\nSee references/policy.md.\n";
const IMAGE: &[u8] = &[0x89, b'P', b'N', b'G', 0xff, 0x00];

/// A directory with the skill `refunds`.
fn refunds() -> (TempDir, PathBuf) {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("refunds");
    fs::create_dir_all(path.join("references")).expect("a directory");
    for (name, bytes) in [
        ("SKILL.md", REFUNDS.as_bytes()),
        ("references/policy.md", b"Within 30 days.\n"),
        ("logo.png", IMAGE),
        (".hidden", b"not published"),
    ] {
        fs::write(path.join(name), bytes).expect("a file");
    }
    (dir, path)
}

fn greeting() -> Skill {
    Skill::from_files([("SKILL.md", GREETING)]).expect("a skill")
}

fn builder() -> ServerBuilder {
    let (_dir, path) = refunds();
    Server::builder("skilled", "1")
        .skill(
            Skill::from_dir(path)
                .expect("a skill")
                .under("/acme/billing/"),
        )
        .skill(greeting())
}

async fn request(builder: ServerBuilder, method: &str, params: Value) -> Value {
    let instance = start(builder).await;
    instance.send(&Request::rpc(method, params)).await.json()
}

#[tokio::test]
async fn skills_are_listed_with_their_files() {
    let reply = request(builder(), "skills/list", json!({})).await;
    let result = result(&reply);
    assert_eq!(result["resultType"], "complete");
    assert_eq!(
        (&result["ttlMs"], &result["cacheScope"]),
        (&json!(0), &json!("private"))
    );
    let skills = result["skills"].as_array().expect("skills");
    assert_eq!(skills.len(), 2);
    let base = "skill://acme/billing/refunds";
    assert_eq!(skills[0]["uri"], format!("{base}/SKILL.md"));
    let frontmatter =
        json!({"name": "refunds", "description": "Refund an order", "metadata": {"version": "2"}});
    assert_eq!(skills[0]["frontmatter"], frontmatter);
    let files = skills[0]["resources"].as_array().expect("files");
    let files: Vec<_> = files
        .iter()
        .map(|file| (&file["uri"], &file["size"]))
        .collect();
    let expected = [
        (json!(format!("{base}/SKILL.md")), json!(REFUNDS.len())),
        (json!(format!("{base}/logo.png")), json!(IMAGE.len())),
        (json!(format!("{base}/references/policy.md")), json!(16)),
    ];
    assert_eq!(files, expected.each_ref().map(|(uri, size)| (uri, size)));
    assert_eq!(skills[1]["uri"], "skill://greeting/SKILL.md");
}

#[tokio::test]
async fn extension_and_resources_are_declared() {
    let reply = request(builder(), "server/discover", json!({})).await;
    let capabilities = &result(&reply)["capabilities"];
    assert_eq!(capabilities["extensions"][EXTENSION], json!({}));
    assert!(capabilities["resources"].is_object());
    let without = request(Server::builder("plain", "1"), "server/discover", json!({})).await;
    assert_eq!(
        result(&without)["capabilities"]["extensions"].get(EXTENSION),
        None
    );
}

#[tokio::test]
async fn content_of_files_matches_their_digests() {
    let instance = start(builder()).await;
    let list = instance
        .send(&Request::rpc("skills/list", json!({})))
        .await
        .reply();
    let skills = result(&list)["skills"].as_array().expect("skills").clone();
    let mut checked = 0;
    for file in skills
        .iter()
        .flat_map(|skill| skill["resources"].as_array().expect("files"))
    {
        let uri = file["uri"].as_str().expect("a URI");
        let read = instance.send(&Request::read(uri)).await.reply();
        let contents = &result(&read)["contents"][0];
        assert_eq!(contents["uri"], uri);
        let bytes = match contents["text"].as_str() {
            Some(text) => text.as_bytes().to_vec(),
            None => STANDARD
                .decode(contents["blob"].as_str().expect("a blob"))
                .expect("base64"),
        };
        assert_eq!(file["size"], bytes.len());
        assert_eq!(file["digest"], format!("sha256:{}", sha256(&bytes)));
        checked += 1;
    }
    assert_eq!(checked, 4);
}

/// The SHA-256 by another implementation.
fn sha256(bytes: &[u8]) -> String {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("file");
    fs::write(&path, bytes).expect("a file");
    let output = Command::new("sha256sum")
        .arg(&path)
        .output()
        .expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    text.split(' ').next().expect("a digest").to_owned()
}

#[tokio::test]
async fn files_are_listed_as_resources() {
    let reply = request(builder(), "resources/list", json!({})).await;
    let resources = result(&reply)["resources"].as_array().expect("resources");
    assert_eq!(resources.len(), 4);
    let expected = json!({
        "uri": "skill://acme/billing/refunds/SKILL.md",
        "name": "refunds",
        "description": "Refund an order",
        "mimeType": "text/markdown",
        "size": REFUNDS.len(),
    });
    assert_eq!(resources[0], expected);
    assert_eq!(resources[1]["mimeType"], "image/png");
}

#[tokio::test]
async fn skill_is_found_by_its_uri_only() {
    let uri = "skill://greeting/SKILL.md";
    let reply = request(builder(), "skills/get", json!({"uri": uri})).await;
    let result = result(&reply);
    assert_eq!(result["resultType"], "complete");
    assert_eq!(result["skill"]["uri"], uri);
    assert_eq!(result["skill"]["frontmatter"]["name"], "greeting");
    assert_eq!(
        (&result["ttlMs"], &result["cacheScope"]),
        (&json!(0), &json!("private"))
    );
    for uri in [
        "skill://greeting",
        "skill://acme/billing/refunds/references/policy.md",
    ] {
        let reply = request(builder(), "skills/get", json!({"uri": uri})).await;
        assert_eq!(reply["error"]["code"], -32602, "{uri}");
    }
    let reply = request(builder(), "skills/get", json!({})).await;
    assert_eq!(reply["error"]["code"], -32602);
    let long = format!("skill://{}", "a".repeat(10_000));
    let reply = request(builder(), "skills/get", json!({"uri": long})).await;
    let message = reply["error"]["message"].as_str().expect("a message");
    assert!(message.starts_with("no skill has the URI"), "{message}");
    assert!(message.len() < 1000, "{} bytes", message.len());
}

#[tokio::test]
async fn list_has_pages() {
    let limits = refrain_server::ServerLimits {
        page_size: 1,
        ..Default::default()
    };
    let instance = start(builder().limits(limits)).await;
    let list = async |params: Value| {
        let reply = instance
            .send(&Request::rpc("skills/list", params))
            .await
            .reply();
        result(&reply).clone()
    };
    let first = list(json!({})).await;
    assert_eq!(first["skills"][0]["frontmatter"]["name"], "refunds");
    let second = list(json!({"cursor": first["nextCursor"]})).await;
    assert_eq!(second["skills"][0]["frontmatter"]["name"], "greeting");
    assert_eq!(second.get("nextCursor"), None);
}

#[tokio::test]
async fn server_without_skills_has_no_such_methods() {
    for method in ["skills/list", "skills/get"] {
        let reply = request(
            Server::builder("plain", "1"),
            method,
            json!({"uri": "skill://a/SKILL.md"}),
        );
        assert_eq!(reply.await["error"]["code"], -32601, "{method}");
    }
}

#[tokio::test]
async fn skills_need_the_scopes_of_the_server() {
    let tokens = BearerTokens::new().with("alice", "alice-0123456789abcdef");
    let instance = start(builder().authenticator(tokens).scopes(["files"])).await;
    let request = Request::rpc("skills/list", json!({}))
        .header("authorization", "Bearer alice-0123456789abcdef");
    assert_eq!(instance.send(&request).await.status, 403);
}

#[test]
fn invalid_skills_are_rejected() {
    let error = |files: &[(&str, &str)]| {
        let skill = Skill::from_files(files.iter().copied());
        skill.expect_err("an invalid skill").to_string()
    };
    let text = |name: &str| format!("---\nname: {name}\ndescription: d\n---\n");
    assert_eq!(error(&[("README.md", "")]), "SKILL.md is missing");
    assert!(
        error(&[("SKILL.md", "no frontmatter")]).starts_with("invalid frontmatter of SKILL.md: ")
    );
    let invalid = |member: &str| {
        format!(
            "invalid {member} in the frontmatter of SKILL.md: a name has 1 to 64 lower-case letters, digits and single \
             hyphens, a description 1 to 1024 characters"
        )
    };
    for name in ["Refunds", "a--b", "-a", "a-", "a_b", "ä"] {
        let error = error(&[("SKILL.md", &text(name))]);
        assert_eq!(error, invalid("name"), "{name}");
    }
    let error_of = error(&[("SKILL.md", "---\nname: a\n---\n")]);
    assert_eq!(error_of, invalid("description"));
    for path in ["../x", "/x", "a//b", "a\\b", "./x"] {
        let error = error(&[("SKILL.md", &text("a")), (path, "")]);
        assert!(
            error.starts_with("invalid path of a file: "),
            "{path}: {error}"
        );
    }
    let many: Vec<(String, &str)> = (0..512).map(|n| (format!("{n}.md"), "")).collect();
    let skill = Skill::from_files(many.into_iter().chain([("SKILL.md".to_owned(), GREETING)]));
    assert!(matches!(skill, Err(SkillError::TooLarge)));
    let twice = Server::builder("skilled", "1")
        .skill(greeting())
        .skill(greeting());
    assert!(matches!(twice.build(), Err(BuildError::Duplicate { .. })));
}

#[test]
fn directory_must_have_the_name_of_its_skill_and_no_links() {
    let (dir, path) = refunds();
    let other = dir.path().join("other");
    fs::rename(&path, &other).expect("a new name");
    let error = Skill::from_dir(&other).expect_err("another name");
    assert!(matches!(error, SkillError::DirectoryName { name } if name == "refunds"));
    fs::rename(&other, &path).expect("the old name");
    Skill::from_dir(&path).expect("a skill");
    std::os::unix::fs::symlink("/etc/passwd", path.join("link")).expect("a link");
    let error = Skill::from_dir(&path).expect_err("a link");
    assert!(matches!(error, SkillError::Path(name) if name == "link"));
}
