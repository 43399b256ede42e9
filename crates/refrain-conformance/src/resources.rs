//! Resources and a template.

use crate::samples::PNG;
use refrain::prelude::*;
use refrain::server::{Cache, ServerBuilder};
use serde_json::json;
use std::time::Duration;

pub(crate) fn register(server: ServerBuilder) -> ServerBuilder {
    server
        .resource(
            static_text()
                .title("Static text")
                .cache(Cache::public(Duration::from_secs(60))),
        )
        .resource(static_binary())
        .resource_template(template().suggest("id", ["123", "124", "200"]))
}

/// A text that does not change.
#[resource(uri = "test://static-text", mime_type = "text/plain")]
async fn static_text(_cx: Cx) -> Result<String> {
    Ok("This is the content of the static text resource.".to_owned())
}

/// An image that does not change.
#[resource(uri = "test://static-binary", mime_type = "image/png")]
async fn static_binary(_cx: Cx) -> Result<ResourceContents> {
    Ok(ResourceContents::blob(
        "test://static-binary",
        "image/png",
        PNG,
    ))
}

#[derive(Deserialize, JsonSchema)]
struct IdVariable {
    id: String,
}

/// The data for the given id.
#[resource(uri = "test://template/{id}/data", mime_type = "application/json")]
async fn template(_cx: Cx, IdVariable { id }: IdVariable) -> Result<String> {
    let data = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
    Ok(data.to_string())
}
