//! Resource templates: which one is read, and what its handler is given.

use crate::support::{Request, names, result, start};
use refrain_core::{Cx, Result};
use refrain_server::{
    BuildError, Prompt, Resource, ResourceTemplate, Server, ServerBuilder, TemplateFlaw,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Serialize, Deserialize, JsonSchema)]
struct Year(u16);

#[derive(Serialize, Deserialize, JsonSchema)]
enum Order {
    #[serde(rename = "new")]
    NewestFirst,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Search {
    year: Year,
    path: Vec<String>,
    q: Option<String>,
    limit: Option<u8>,
    score: Option<f64>,
    drafts: Option<bool>,
    order: Option<Order>,
    before: Option<Year>,
    ids: Vec<i64>,
}

async fn search(cx: Cx, search: Search) -> Result<String> {
    Ok(json!({"uri": cx.uri(), "search": search}).to_string())
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Repeat {
    word: String,
    times: usize,
    loud: Option<bool>,
}

async fn repeat(cx: Cx, repeat: Repeat) -> Result<String> {
    assert_eq!(cx.uri(), None);
    let said = repeat.word.repeat(repeat.times);
    Ok(if repeat.loud == Some(true) {
        said.to_uppercase()
    } else {
        said
    })
}

async fn uri(cx: Cx) -> Result<String> {
    Ok(cx.uri().unwrap_or("none").to_owned())
}

fn builder() -> ServerBuilder {
    Server::builder("templates", "1")
}

fn named(template: &str, name: &'static str) -> ResourceTemplate {
    ResourceTemplate::new(template, name, move |_: Cx| async move { Ok(name) })
}

fn content(reply: &Value) -> &str {
    let text = result(reply)["contents"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text in {reply}"))
}

#[tokio::test]
async fn variables_become_what_the_struct_has() {
    let template = "s://{year}{/path*}{?q,limit,score,drafts,order,before,ids*}";
    let instance =
        start(builder().resource_template(ResourceTemplate::new(template, "search", search))).await;
    let full =
        "s://2026/a/b%20c?before=2025&ids=7&q=7&ids=-8&score=1e2&drafts=true&order=new&limit=3";
    let reply = instance.send(&Request::read(full)).await.reply();
    let search = json!({"year": 2026, "path": ["a", "b c"], "q": "7", "limit": 3, "score": 100.0,
        "drafts": true, "order": "new", "before": 2025, "ids": [7, -8]});
    let wanted = json!({"uri": full, "search": search});
    assert_eq!(content(&reply), wanted.to_string());
    let reply = instance.send(&Request::read("s://1")).await.reply();
    let search = json!({"year": 1, "path": [], "q": null, "limit": null, "score": null,
        "drafts": null, "order": null, "before": null, "ids": []});
    let wanted = json!({"uri": "s://1", "search": search});
    assert_eq!(content(&reply), wanted.to_string());

    for (wrong, words) in [
        ("s://2026?limit=many", ["many", "u8"]),
        ("s://2026?limit=300", ["300", "u8"]),
        ("s://2026?drafts=yes", ["yes", "boolean"]),
        ("s://2026?score=NaN", ["NaN", "f64"]),
        ("s://MMXXVI", ["MMXXVI", "u16"]),
    ] {
        let message = instance
            .send(&Request::read(wrong))
            .await
            .error(200, -32602);
        names(&message, &words);
    }
    for unknown in ["s://2026?other=1", "s://2026?q=1&q=2", "s://2026?q=%FF"] {
        let response = instance.send(&Request::read(unknown)).await;
        assert!(response.error(200, -32602).contains("unknown resource"));
        assert_eq!(response.json()["error"]["data"]["uri"], unknown);
    }
}

#[tokio::test]
async fn a_variable_is_what_it_decodes_to_and_may_lead_anywhere() {
    #[derive(Deserialize, JsonSchema)]
    struct File {
        name: String,
    }
    let file = ResourceTemplate::new(
        "f://{name}",
        "file",
        async |_: Cx, file: File| Ok(file.name),
    );
    let instance = start(builder().resource_template(file)).await;
    for (uri, name) in [
        ("f://..%2F..%2Fetc%2Fpasswd", "../../etc/passwd"),
        ("f://%2E%2E", ".."),
        ("f://a%00b", "a\0b"),
    ] {
        let reply = instance.send(&Request::read(uri)).await.reply();
        assert_eq!(content(&reply), name);
    }
    // What is not encoded ends the variable.
    instance
        .send(&Request::read("f://../etc"))
        .await
        .error(200, -32602);
}

#[tokio::test]
async fn arguments_of_a_prompt_become_what_the_struct_has() {
    let instance = start(builder().prompt(Prompt::new("repeat", repeat))).await;
    let said = async |arguments| {
        let reply = instance.send(&Request::prompt("repeat", arguments)).await;
        result(&reply.reply())["messages"][0]["content"]["text"].clone()
    };
    assert_eq!(said(json!({"word": "1", "times": "3"})).await, "111");
    let loud = json!({"word": "ha", "times": "2", "loud": "true"});
    assert_eq!(said(loud).await, "HAHA");
    let wrong = Request::prompt("repeat", json!({"word": "ha", "times": "often"}));
    names(
        &instance.send(&wrong).await.error(200, -32602),
        &["often", "usize"],
    );
    // On the wire they are strings.
    let wrong = Request::prompt("repeat", json!({"word": "ha", "times": 2}));
    names(
        &instance.send(&wrong).await.error(200, -32602),
        &["times", "string"],
    );
}

#[tokio::test]
async fn the_most_literal_template_is_read_and_a_resource_before_any() {
    let instance = start(
        builder()
            .resource_template(named("n://{+all}", "all"))
            .resource_template(named("n://{a}/{b}", "pair"))
            .resource_template(named("n://{a}/index", "index"))
            .resource_template(named("n://{b}/{c}{?q}", "question"))
            .resource(Resource::new("n://home/index", "home", uri)),
    )
    .await;
    for (uri, name) in [
        ("n://home/index", "n://home/index"),
        ("n://work/index", "index"),
        ("n://work/other", "pair"),
        ("n://work/other?q=1", "question"),
        ("n://work/index?q=1", "question"),
        ("n://work", "all"),
        ("n://a/b/c", "all"),
    ] {
        let reply = instance.send(&Request::read(uri)).await.reply();
        assert_eq!(content(&reply), name, "{uri}");
    }
}

/// A server with a template of its own and another one.
fn beside(template: &'static str) -> Result<Server, BuildError> {
    builder()
        .resource_template(named("n://{year}/{name}", "one"))
        .resource_template(named(template, "other"))
        .build()
}

#[test]
fn templates_for_the_same_uris_are_duplicates() {
    for same in ["n://{a}/{b}", "n://{year}/{name}"] {
        let error = beside(same).expect_err("the same URIs");
        assert!(matches!(error, BuildError::Duplicate { name, .. } if name == same));
    }
    for other in ["n://{a}/{b}/{c}", "n://{a}/{+b}", "m://{a}/{b}"] {
        assert!(beside(other).is_ok(), "{other}");
    }
}

#[test]
fn a_template_that_can_be_read_in_two_ways_is_refused_and_told_where() {
    let error = beside("n://{a}{b}").expect_err("no way to tell where a ends");
    let BuildError::Template(error) = error else {
        panic!("{error}");
    };
    assert_eq!((error.at, error.flaw), (7, TemplateFlaw::Adjacent));
}

#[tokio::test]
async fn the_uri_of_what_is_read_is_one_however_it_was_asked_for() {
    let template = ResourceTemplate::new("notes://{day}", "notes", async |_: Cx| Ok("text"));
    let instance = start(Server::builder("t", "1").resource_template(template)).await;
    for (asked, written) in [
        ("notes://%22monday%22", "notes://%22monday%22"),
        ("notes://\"monday\"", "notes://%22monday%22"),
        ("notes://mon%64ay", "notes://mon%64ay"),
    ] {
        let reply = instance.send(&Request::read(asked)).await.reply();
        assert_eq!(result(&reply)["contents"][0]["uri"], written);
    }
}
