//! Resources and resource templates.

use super::builder_macros::{completed, content, scoped, shown};
use super::coerce::Texts;
use super::complete::{self, Completers};
use super::template::Pattern;
use crate::builder::BuildError;
use crate::handler::{Handler, Needs, Start, erase};
use crate::metrics::TargetCounts;
use crate::reply::ReadCall;
use refrain_core::Result;
use refrain_wire::{Cache, ResourceInfo, ResourceTemplateInfo};
use std::future::Future;
use std::sync::{Arc, OnceLock};

/// A resource: a URI, a name and a handler that reads it.
pub struct Resource {
    pub(crate) info: ResourceInfo,
    pub(crate) cache: Cache,
    pub(crate) scopes: Vec<String>,
    pub(crate) needs: Vec<Needs>,
    pub(crate) start: Start,
    /// Handed out when it is registered.
    pub(crate) counts: OnceLock<Arc<TargetCounts>>,
}

/// A family of resources: a URI with `{variables}` in it. They are the handler's arguments.
pub struct ResourceTemplate {
    pub(crate) info: ResourceTemplateInfo,
    pub(crate) texts: Texts,
    pub(crate) cache: Cache,
    pub(crate) completers: Completers,
    pub(crate) scopes: Vec<String>,
    pub(crate) needs: Vec<Needs>,
    pub(crate) start: Start,
    /// Handed out when it is registered.
    pub(crate) counts: OnceLock<Arc<TargetCounts>>,
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
            cache: Cache::default(),
            scopes: Vec::new(),
            needs: H::needs(),
            start: erase(handler),
            counts: OnceLock::new(),
        }
    }

    /// Its size in bytes, as it is listed.
    pub fn size(mut self, bytes: u64) -> Self {
        self.info.size = Some(bytes);
        self
    }
}

impl ResourceTemplate {
    /// Resources at URIs of this form, a URI template of [RFC 6570]. Its variables are the fields of the handler's
    /// argument struct, decoded: whatever the form, a caller can put `../` into any of them. Check what is to become a
    /// path.
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
    /// - Values are percent-decoded; one that is not UTF-8 then makes no match. A decoded value may hold a `/`, or be
    ///   `..`: look at it before it becomes a part of a path. `+` is not a space.
    /// - A field may be a string, a number, a boolean, and a list of these where the variable has a `*`. Variables that
    ///   the URI may leave out want an `Option`, or `#[serde(default)]`.
    /// - Literal text matches whether it is percent-encoded or not; only characters with a meaning in URIs, such as `/`,
    ///   are not the same as their encoding. Pairs that the template does not name make no match; nor does a name that
    ///   comes twice, unless it has a `*`.
    /// - Where a URI can be read in several ways, earlier variables take as little as they can. A variable that is used
    ///   twice has one value.
    /// - A URI that is registered as a resource is read as that. Where several templates match, the one with the most
    ///   literal text is taken, then the one registered first. Two templates that match the same URIs cannot both be
    ///   registered.
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
            texts: Texts::new(&H::schema().unwrap_or_default()),
            cache: Cache::default(),
            completers: Completers::new(),
            scopes: Vec::new(),
            needs: H::needs(),
            start: erase(handler),
            counts: OnceLock::new(),
        }
    }

    pub(crate) fn check_completers(&self, pattern: &Pattern) -> Result<(), BuildError> {
        let of = format!("the resource template {:?}", self.info.uri_template);
        complete::check(&of, &self.completers, &pattern.variables())
    }
}

shown!(Resource);
scoped!(Resource, "read it");
content!(Resource);
shown!(ResourceTemplate);
scoped!(ResourceTemplate, "read them");
content!(ResourceTemplate);
completed! {
    /// Suggests values for a variable while it is typed.
    ResourceTemplate, variable
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resource")
            .field("uri", &self.info.uri)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ResourceTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResourceTemplate")
            .field("uri_template", &self.info.uri_template)
            .finish_non_exhaustive()
    }
}
