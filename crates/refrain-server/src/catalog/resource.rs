//! Resources and resource templates.

use super::builder_macros::{impl_completion, impl_content, impl_entry};
use super::coerce::TextFields;
use super::entry::CatalogEntry;
use super::listed::Listed;
use super::template::Pattern;
use crate::handler::Handler;
use crate::reply::ReadCall;
use refrain_wire::client::AsSent;
use refrain_wire::{ResourceInfo, ResourceTemplateInfo};
use std::future::Future;

/// A resource: a URI, a name and a handler that reads it.
pub struct Resource {
    pub(crate) info: Listed<ResourceInfo>,
    pub(crate) entry: CatalogEntry,
}

/// A resource template: a URI with `{variables}`, which are the handler's arguments.
pub struct ResourceTemplate {
    pub(crate) info: Listed<ResourceTemplateInfo>,
    pub(crate) entry: CatalogEntry,
}

impl Resource {
    /// Creates a resource at this URI.
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
            }
            .into(),
            entry: CatalogEntry::new(handler),
        }
    }

    /// Sets the size in bytes for `resources/list`.
    pub fn size(mut self, bytes: u64) -> Self {
        self.info.set("size", |info| info.size = Some(bytes));
        self
    }

    /// Sets the entry in `resources/list` to `entry`, which another server sent. All its members are kept, also those that
    /// Refrain does not know, except the URI and the name; see [`Tool::listing`](crate::Tool::listing).
    pub fn listing(mut self, entry: &AsSent<ResourceInfo>) -> Self {
        let (uri, name) = (self.info.uri.clone(), self.info.name.clone());
        self.info = Listed::as_sent(entry, &["uri", "name"], |info| {
            (info.uri, info.name) = (uri, name);
        });
        self
    }
}

impl ResourceTemplate {
    /// Creates a resource template from a URI template ([RFC 6570]). The decoded variables are the fields of the handler's
    /// argument struct. A variable may contain `../`: check it before you use it in a path.
    ///
    /// ```
    /// use refrain::auth::Principal;
    /// use refrain::server::{ResourceTemplate, Server};
    /// use refrain::{Cx, Result};
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
    /// # Ok::<(), refrain::server::BuildError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// | expression | matches | value |
    /// | --- | --- | --- |
    /// | `{var}` | characters other than `/?#`, at least one | the text |
    /// | `{a,b}` | values separated by commas | one value each, from the left |
    /// | `{+path}` | any characters, at least one | the text |
    /// | `{#part}` `{.type}` `{/name}` | the operator (`#`, `.` or `/`) and a value, or nothing | the text, if present |
    /// | `{;x,y}` `{?x,y}` `{&x,y}` | `name=value` pairs with these names, in any order, or nothing | the values present |
    /// | `{name:3}` | a value of at most three characters | the text |
    /// | `{list*}` | any number of values, with the separator of the operator (a comma without one) | a list, possibly empty |
    ///
    /// - Values are percent-decoded. A value that is not UTF-8 does not match. A decoded value may contain `/`, and
    ///   may be `..`. `+` is not decoded to a space.
    /// - A field may be a string, a number or a boolean; for a variable with `*`, a list of these. Optional variables need
    ///   an `Option` or `#[serde(default)]`.
    /// - Literal text matches with and without percent-encoding, except for reserved characters such as `/`. A URI with a
    ///   `name=value` pair of an unknown name does not match, nor one that repeats a name, unless its variable has `*`.
    /// - If a URI is ambiguous, earlier variables match as little as possible. A variable that occurs twice must have the
    ///   same value.
    /// - A registered resource takes precedence over templates. Among matching templates, the one with the most literal
    ///   text wins, then the one registered first. Two templates that match the same URIs cannot both be registered.
    /// - URIs longer than 8 KiB match no template.
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
            }
            .into(),
            entry: CatalogEntry {
                text_fields: TextFields::new(&H::schema().unwrap_or_default()),
                ..CatalogEntry::new(handler)
            },
        }
    }

    /// Sets the entry in `resources/templates/list` to `entry`, which another server sent. All its members are kept, also
    /// those that Refrain does not know, except the URI template and the name; see
    /// [`Tool::listing`](crate::Tool::listing).
    pub fn listing(mut self, entry: &AsSent<ResourceTemplateInfo>) -> Self {
        let (uri, name) = (self.info.uri_template.clone(), self.info.name.clone());
        self.info = Listed::as_sent(entry, &["uriTemplate", "name"], |info| {
            (info.uri_template, info.name) = (uri, name);
        });
        self
    }

    /// The names of the variables. Empty if the URI template is invalid, which is an error when the template is registered.
    ///
    /// ```
    /// # use refrain::server::ResourceTemplate;
    /// # async fn read(_: refrain::Cx) -> refrain::Result<&'static str> { Ok("text") }
    /// let template = ResourceTemplate::new("file:///{+path}{?line}", "file", read);
    /// assert_eq!(template.variables(), ["path", "line"]);
    /// ```
    pub fn variables(&self) -> Vec<String> {
        let pattern = Pattern::parse(&self.info.uri_template);
        let names = |pattern: Pattern| pattern.variables().into_iter().map(str::to_owned).collect();
        pattern.map(names).unwrap_or_default()
    }
}

impl_entry!(Resource, uri, "read it");
impl_content!(Resource);
impl_entry!(ResourceTemplate, uri_template, "read them");
impl_content!(ResourceTemplate);
impl_completion! {
    /// Suggests values for a variable while it is typed.
    ResourceTemplate, variable
}
