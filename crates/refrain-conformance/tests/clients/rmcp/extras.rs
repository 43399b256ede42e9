//! Metadata, pages, completion, structured content, caching and parameter headers.

use super::user::User;
use super::{Check, Target, call, checks, final_text, refused, text, wire};
use crate::names::{assert_server_metadata, assert_svg_icon, sample_annotations, sample_icon};
use crate::server::PAGE_SIZE;
use ::rmcp::model::{
    CompletionContext, ErrorCode, PaginatedRequestParams, ReadResourceRequestParams,
    RequestMetaObject,
};
use ::rmcp::service::ServiceError;
use serde_json::{Value, json};
use std::collections::BTreeSet;

pub(super) fn checks() -> Vec<(&'static str, Check)> {
    checks! {
        "discover: what is shown of the server": shown,
        "pages: every entry once, in order": pages,
        "pages: a wrong cursor is refused": wrong_cursor,
        "completion: a prompt's argument": complete_prompt,
        "completion: a template's variable": complete_template,
        "structured content": structured,
        "title, icon, annotations and _meta": details,
        "all that is shown of a prompt, a resource and a template": everything_shown,
        "annotations of content": annotated,
        "caching hints": caching,
        "x-mcp-header": headers,
    }
}

const MAX_PAGES: usize = 100;

async fn shown(target: &Target) {
    let client = target.connect(User::silent()).await;
    let server = client.peer_info().expect("the server was discovered");
    assert_server_metadata(&wire(&*server));
}

/// All pages of a list as JSON.
async fn walk<T: serde::Serialize>(
    list: impl AsyncFn(Option<PaginatedRequestParams>) -> Result<T, ServiceError>,
) -> Vec<Value> {
    let mut pages = Vec::new();
    let mut cursor = None;
    while pages.len() < MAX_PAGES {
        let params = PaginatedRequestParams::default().with_cursor(cursor.take());
        let page = wire(list(Some(params)).await.expect("the page is listed"));
        cursor = page["nextCursor"].as_str().map(str::to_owned);
        pages.push(page);
        if cursor.is_none() {
            return pages;
        }
    }
    panic!("the list has more than {MAX_PAGES} pages");
}

/// The names on all pages. Checks that all pages but the last are full, and that names are unique.
#[track_caller]
fn names(pages: &[Value], part: &str, key: &str) -> Vec<String> {
    let (last, full) = pages.split_last().expect("there is a page");
    let size = |page: &Value| page[part].as_array().expect("a page has entries").len();
    assert!(!full.is_empty(), "{part} has only one page");
    assert!(full.iter().all(|page| size(page) == PAGE_SIZE), "{full:?}");
    assert!((1..=PAGE_SIZE).contains(&size(last)), "{last}");
    let entries = pages.iter().flat_map(|page| page[part].as_array());
    let names: Vec<String> = entries
        .flatten()
        .map(|entry| entry[key].as_str().expect("an entry has a name").to_owned())
        .collect();
    let different: BTreeSet<&String> = names.iter().collect();
    assert_eq!(different.len(), names.len());
    names
}

async fn pages(target: &Target) {
    let client = target.connect(User::silent()).await;
    let tools = names(
        &walk(async |page| client.list_tools(page).await).await,
        "tools",
        "name",
    );
    let all = client.list_all_tools().await.expect("the list succeeds");
    assert_eq!(
        tools,
        all.iter().map(|tool| &*tool.name).collect::<Vec<_>>()
    );
    let prompts = walk(async |page| client.list_prompts(page).await).await;
    let all = client.list_all_prompts().await.expect("prompts are listed");
    assert_eq!(
        names(&prompts, "prompts", "name"),
        all.iter().map(|prompt| &*prompt.name).collect::<Vec<_>>()
    );
    let resources = walk(async |page| client.list_resources(page).await).await;
    let all = client
        .list_all_resources()
        .await
        .expect("the list succeeds");
    assert_eq!(
        names(&resources, "resources", "uri"),
        all.iter()
            .map(|resource| &*resource.uri)
            .collect::<Vec<_>>()
    );
}

async fn wrong_cursor(target: &Target) {
    let client = target.connect(User::silent()).await;
    let nowhere = || {
        let nowhere = Some("nowhere".to_owned());
        Some(PaginatedRequestParams::default().with_cursor(nowhere))
    };
    let code = ErrorCode::INVALID_PARAMS;
    refused(client.list_tools(nowhere()).await, code);
    refused(client.list_prompts(nowhere()).await, code);
    refused(client.list_resources(nowhere()).await, code);
    refused(client.list_resource_templates(nowhere()).await, code);
}

async fn complete_prompt(target: &Target) {
    let client = target.connect(User::silent()).await;
    let info = client.peer_info().expect("the server was discovered");
    assert!(info.capabilities.completions.is_some());
    let prompt = "test_prompt_with_arguments";
    let found = client.complete_prompt_argument(prompt, "arg1", "par", None);
    let suggested = json!({"values": ["paris", "park", "party"], "total": 3, "hasMore": false});
    assert_eq!(wire(found.await.expect("there are suggestions")), suggested);
    let nothing = client.complete_prompt_simple(prompt, "arg2", "par").await;
    assert_eq!(nothing.expect("an empty list"), [""; 0]);
    let unknown = client.complete_prompt_simple("no_such_prompt", "arg1", "");
    refused(unknown.await, ErrorCode::INVALID_PARAMS);
}

async fn complete_template(target: &Target) {
    let client = target.connect(User::silent()).await;
    let other = [("other".to_owned(), "1".to_owned())];
    let context = CompletionContext::with_arguments(other.into_iter().collect());
    let template = "test://template/{id}/data";
    let found = client.complete_resource_argument(template, "id", "12", Some(context));
    assert_eq!(
        found.await.expect("there are suggestions").values,
        ["123", "124"]
    );
}

/// The list entry of a tool.
async fn listed(client: &super::Client, name: &str) -> Value {
    let tools = client.list_all_tools().await.expect("the list succeeds");
    wire(tools.into_iter().find(|tool| tool.name == name))
}

async fn structured(target: &Target) {
    let client = target.connect(User::silent()).await;
    let tool = listed(&client, "test_structured_content").await;
    let schema = &tool["outputSchema"];
    assert_eq!(schema["properties"]["temperature"]["type"], "number");
    let result = call(&client, "test_structured_content", json!({"town": "Ulm"})).await;
    let wanted = json!({"town": "Ulm", "temperature": 21.5, "conditions": ["sunny", "dry"]});
    assert_eq!(result.structured_content.as_ref(), Some(&wanted));
    // rmcp does not validate the content.
    jsonschema::validate(schema, &wanted).expect("the content matches its schema");
    let same: Value = serde_json::from_str(&text(result)).expect("the text is JSON");
    assert_eq!(same, wanted);
}

async fn details(target: &Target) {
    let client = target.connect(User::silent()).await;
    let tool = listed(&client, "test_structured_content").await;
    assert_eq!(tool["title"], "Structured content");
    assert_svg_icon(&tool["icons"]);
    assert_eq!(tool["annotations"], json!({"readOnlyHint": true}));
    assert_eq!(tool["_meta"], json!({"com.example/group": "samples"}));
    let resources = client
        .list_all_resources()
        .await
        .expect("the list succeeds");
    let resource = resources
        .iter()
        .find(|entry| entry.uri == "test://static-text");
    let title = resource.and_then(|resource| resource.title.as_deref());
    assert_eq!(title, Some("Static text"));
}

async fn everything_shown(target: &Target) {
    let client = target.connect(User::silent()).await;
    let prompts = client.list_all_prompts().await.expect("the list succeeds");
    let prompt = prompts
        .into_iter()
        .find(|prompt| prompt.name == "test_shown_prompt");
    let resources = client
        .list_all_resources()
        .await
        .expect("the list succeeds");
    let resource = resources
        .into_iter()
        .find(|resource| resource.uri == "test://shown");
    let templates = client.list_all_resource_templates().await;
    let template = templates
        .expect("the list succeeds")
        .into_iter()
        .find(|template| template.uri_template == "test://shown/{name}");
    let (prompt, resource, template) = (wire(prompt), wire(resource), wire(template));
    for (entry, title, group) in [
        (&prompt, "A prompt", "prompts"),
        (&resource, "A resource", "resources"),
        (&template, "A template", "templates"),
    ] {
        assert_eq!(entry["title"], title);
        assert_eq!(entry["icons"], json!([sample_icon()]), "{title}");
        assert_eq!(entry["_meta"], json!({"com.example/group": group}));
    }
    assert_eq!(resource["size"], 12);
    assert_eq!(resource["annotations"], sample_annotations());
    assert_eq!(template["annotations"], sample_annotations());
}

async fn annotated(target: &Target) {
    let client = target.connect(User::silent()).await;
    let result = call(&client, "test_annotated_content", json!({})).await;
    let content = wire(result.content);
    assert_eq!(content[0]["annotations"], sample_annotations());
    assert_eq!(content[1]["annotations"], sample_annotations());
    let meta = json!({"com.example/group": "links"});
    assert_eq!(content[1]["_meta"], meta);
}

/// The cache scope and the TTL of a result.
fn hint(result: Result<impl serde::Serialize, ServiceError>) -> (Value, Value) {
    let result = wire(result.expect("there is a result"));
    (result["cacheScope"].clone(), result["ttlMs"].clone())
}

async fn caching(target: &Target) {
    let client = target.connect(User::silent()).await;
    let private = (json!("private"), json!(0));
    let hour = (json!("public"), json!(3_600_000));
    assert_eq!(hint(client.discover(RequestMetaObject::new()).await), hour);
    assert_eq!(hint(client.list_tools(None).await), private);
    assert_eq!(hint(client.list_prompts(None).await), private);
    assert_eq!(hint(client.list_resources(None).await), private);
    assert_eq!(hint(client.list_resource_templates(None).await), hour);
    let read = async |uri| {
        hint(
            client
                .read_resource(ReadResourceRequestParams::new(uri))
                .await,
        )
    };
    let minute = (json!("public"), json!(60_000));
    assert_eq!(read("test://static-text").await, minute);
    assert_eq!(read("test://static-binary").await, private);
}

async fn headers(target: &Target) {
    let client = target.connect(User::silent()).await;
    // The SDK needs the listed schema for the headers; over HTTP the server rejects a call without them.
    client.list_all_tools().await.expect("the list succeeds");
    for region in ["eu-west-1", "Zürich, 1. Stock", " padded "] {
        let arguments = json!({"region": region, "limit": 42});
        let result = call(&client, "test_x_mcp_header", arguments).await;
        assert_eq!(final_text(result), format!("42 rows from {region}"));
    }
}
