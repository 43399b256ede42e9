//! A prompt, a resource, a template and content with titles, icons, annotations and metadata.

use refrain::content::ResourceLink;
use refrain::prelude::*;
use refrain::runtime::wire::{Annotations, Role, Theme};
use refrain::server::{Icon, ServerBuilder};
use serde_json::json;

pub(crate) fn register(server: ServerBuilder) -> ServerBuilder {
    server
        .tool(annotated())
        .prompt(
            prompt()
                .title("A prompt")
                .icon(icon())
                .meta("com.example/group", "prompts"),
        )
        .resource(
            resource()
                .title("A resource")
                .icon(icon())
                .size(12)
                .annotations(annotations())
                .meta("com.example/group", "resources"),
        )
        .resource_template(
            template()
                .title("A template")
                .icon(icon())
                .annotations(annotations())
                .meta("com.example/group", "templates"),
        )
}

fn icon() -> Icon {
    let mut icon = Icon::new("https://example.com/icon.png");
    icon.mime_type = Some("image/png".to_owned());
    icon.sizes = vec!["48x48".to_owned(), "96x96".to_owned()];
    icon.theme = Some(Theme::Dark);
    icon
}

fn annotations() -> Annotations {
    Annotations {
        audience: vec![Role::User, Role::Assistant],
        priority: Some(0.5),
        last_modified: Some("2026-07-28T12:00:00Z".to_owned()),
    }
}

/// Returns content blocks with annotations.
#[tool(name = "test_annotated_content")]
async fn annotated(_cx: Cx) -> Result<Vec<Content>> {
    let mut link = ResourceLink::new("test://shown", "shown");
    link.icons = vec![icon()];
    link.annotations = Some(annotations());
    link.meta = Some(json!({"com.example/group": "links"}));
    Ok(vec![
        Content::text("A text with annotations.").annotated(annotations()),
        link.into(),
    ])
}

/// A prompt with all metadata.
#[prompt(name = "test_shown_prompt")]
async fn prompt(_cx: Cx) -> Result<&'static str> {
    Ok("Describe the metadata of this prompt.")
}

/// A resource with all metadata.
#[resource(uri = "test://shown", name = "shown", mime_type = "text/plain")]
async fn resource(_cx: Cx) -> Result<&'static str> {
    Ok("Twelve bytes")
}

#[derive(Deserialize, JsonSchema)]
struct NameVariable {
    name: String,
}

/// A template with all metadata.
#[resource(
    uri = "test://shown/{name}",
    name = "shown_template",
    mime_type = "text/plain"
)]
async fn template(_cx: Cx, NameVariable { name }: NameVariable) -> Result<String> {
    Ok(format!("This is {name}."))
}
