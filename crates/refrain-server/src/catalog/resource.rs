//! Resources and resource templates.

use super::builder_macros::{completed, content, entry};
use super::coerce::Texts;
use super::entry::Entry;
use crate::handler::Handler;
use crate::reply::ReadCall;
use refrain_wire::{ResourceInfo, ResourceTemplateInfo};
use std::future::Future;

/// A resource: a URI, a name and a handler that reads it.
pub struct Resource {
    pub(crate) info: ResourceInfo,
    pub(crate) entry: Entry,
}

/// A family of resources: a URI with `{variables}` in it. They are the handler's arguments.
pub struct ResourceTemplate {
    pub(crate) info: ResourceTemplateInfo,
    pub(crate) entry: Entry,
}

impl Resource {
    /// A resource at this URI.
    pub fn new<M, H: Handler<M, ReadCall>>(
        uri: impl Into<String>,
        name: impl Into<String>,
        handler: H,
    ) -> Self {
        Self {
            info: ResourceInfo {
                uri: uri.into(),
                name: name.into(),
                ..ResourceInfo::default()
            },
            entry: Entry::new(handler),
        }
    }

    /// Its size in bytes, as it is listed.
    pub fn size(mut self, bytes: u64) -> Self {
        self.info.size = Some(bytes);
        self
    }
}

impl ResourceTemplate {
    /// Resources at URIs of this form, a URI template of [RFC 6570]. Its decoded variables are the fields of the handler's
    /// argument struct. A caller can put `../` into any of them: check them before they become part of a path.
    ///
    /// ```
    /// use refrain_core::{Cx, Principal, Result};
    /// use refrain_server::{ResourceTemplate, Server};
    /// use schemars::JsonSchema;
    /// use serde::Deserialize;
    ///
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Notes {
    ///     year: u16,
    ///     path: Vec<String>,
    ///     limit: Option<u8>,
    /// }
    ///
    /// async fn notes(cx: Cx, args: Notes) -> Result<String> {
    ///     let uri = cx.uri().unwrap_or_default();
    ///     Ok(format!("{uri} {} {:?} {:?}", args.year, args.path, args.limit))
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let notes = ResourceTemplate::new("notes://{year}{/path*}{?limit}", "notes", notes);
    /// let server = Server::builder("docs", "1.0").resource_template(notes).build()?;
    /// # let request = br#"{"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri":
    /// #     "notes://2026/july/on%20tour?limit=3", "_meta": {"io.modelcontextprotocol/clientCapabilities": {},
    /// #     "io.modelcontextprotocol/protocolVersion": "2026-07-28"}}}"#;
    /// // A request to read notes://2026/july/on%20tour?limit=3
    /// let mut out = server.handle(request, Principal::anonymous()).await;
    /// let reply = String::from_utf8(out.next().await.expect("a reply")).expect("text");
    /// assert!(reply.contains(r#"2026 [\"july\", \"on tour\"] Some(3)"#), "{reply}");
    /// # Ok::<(), refrain_server::BuildError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// | | matches | and gives |
    /// | --- | --- | --- |
    /// | `{var}` | characters other than `/?#`, at least one | the text |
    /// | `{a,b}` | values with commas between them | one for each, from the left |
    /// | `{+path}` | any characters, at least one | the text |
    /// | `{#part}` `{.type}` `{/name}` | the sign and a value, or nothing | the text, if it is there |
    /// | `{;x,y}` `{?x,y}` `{&x,y}` | `name=value` pairs of these names, in any order, or nothing | those that are there |
    /// | `{name:3}` | a value of at most three characters | the text |
    /// | `{list*}` | any number of values, with the operator's sign between them | a list, empty if there are none |
    ///
    /// - Values are percent-decoded; a value that is not UTF-8 does not match. A decoded value may contain a `/`, or be
    ///   `..`. `+` is not a space.
    /// - A field may be a string, a number, a boolean, and a list of these if the variable has a `*`. Optional variables
    ///   need an `Option`, or `#[serde(default)]`.
    /// - Literal text matches with and without percent-encoding, except for characters with a meaning in URIs, such as
    ///   `/`. A pair that the template does not name, or that is repeated without a `*`, does not match.
    /// - If a URI is ambiguous, earlier variables take as little as possible. A variable that is used twice has one value.
    /// - A registered resource takes precedence. Of several matching templates, the one with the most literal text is
    ///   used, then the one registered first. Two templates that match the same URIs cannot both be registered.
    /// - URIs of more than 8 KiB match no template.
    ///
    /// [RFC 6570]: https://www.rfc-editor.org/rfc/rfc6570
    pub fn new<M, H: Handler<M, ReadCall>>(
        uri_template: impl Into<String>,
        name: impl Into<String>,
        handler: H,
    ) -> Self {
        Self {
            info: ResourceTemplateInfo {
                uri_template: uri_template.into(),
                name: name.into(),
                ..ResourceTemplateInfo::default()
            },
            entry: Entry {
                texts: Texts::new(&H::schema().unwrap_or_default()),
                ..Entry::new(handler)
            },
        }
    }
}

entry!(Resource, uri, "read it");
content!(Resource);
entry!(ResourceTemplate, uri_template, "read them");
content!(ResourceTemplate);
completed! {
    /// Suggests values for a variable while it is typed.
    ResourceTemplate, variable
}
