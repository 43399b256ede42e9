//! Errors of building and changing a server.

use crate::auth::{HttpUrlError, ScopeError};
use crate::builder::ServerBuilder;
use crate::catalog::TemplateError;
use crate::http::ServerCardError;
use refrain_wire::ParamHeaderError;
use std::time::Duration;

/// An error of building or changing a server.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Two entries of one kind have the same name.
    #[error("{kind} {name:?} is registered twice")]
    Duplicate {
        /// "tool", "prompt", "resource", "resource template", "skill" or "webhook".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A handler takes a `State<T>` that was not set.
    #[error("{handler:?} takes State<{state}>, which is not set: add it with .state(..)")]
    MissingState {
        /// The tool, prompt or resource.
        handler: String,
        /// The type of the state.
        state: &'static str,
    },
    /// A tool needs a replay log.
    #[error(
        "tool {tool:?} needs a replay log: set the store that the fleet shares with .store(..), \
         or declare a single instance with .single_instance()"
    )]
    NeedsReplayLog {
        /// The tool.
        tool: String,
    },
    /// A tool needs a task store.
    #[error("tool {tool:?} needs a task store: set one with .store(..)")]
    NeedsTaskStore {
        /// The tool.
        tool: String,
    },
    /// A webhook needs a task store.
    #[error("webhook {0:?} needs a task store: set one with .store(..)")]
    WebhookNeedsTaskStore(String),
    /// The advertised URL is invalid.
    #[error("invalid advertised URL {url:?}: {reason}")]
    Advertise {
        /// The URL.
        url: String,
        /// Why it is invalid.
        reason: HttpUrlError,
    },
    /// The URL of a peer is invalid.
    #[error("invalid peer URL {url:?}: {reason}")]
    Peer {
        /// The URL.
        url: String,
        /// Why it is invalid.
        reason: HttpUrlError,
    },
    /// The peers do not contain this instance.
    #[error(
        "the peers must contain the advertised URL of this instance: check .peers(..) and .advertise(..)"
    )]
    NotAmongPeers,
    /// Without shared keys, other instances cannot open the sealed tokens that contain the advertised URL.
    #[error("an advertised URL requires keys that all instances share: set them with .keys(..)")]
    AdvertiseNeedsKeys,
    /// Without configured keys, sealed tasks cannot be opened after a restart.
    #[error("sealed tasks require keys: set them with .keys(..)")]
    SealingNeedsKeys,
    /// A tool's schema is invalid.
    #[error("invalid {which} schema of tool {tool:?}: {reason}")]
    Schema {
        /// The tool.
        tool: String,
        /// "input" or "output".
        which: &'static str,
        /// Why it is invalid.
        reason: String,
    },
    /// A tool has no name.
    #[error("empty tool name")]
    EmptyName,
    /// The URI of a resource is invalid.
    #[error("invalid resource URI {uri:?}: {reason}")]
    Uri {
        /// The URI.
        uri: String,
        /// Why it is invalid.
        reason: String,
    },
    /// The header of a tool argument is invalid.
    #[error(
        "invalid x-mcp-header in tool {tool:?}: {reason}{}",
        header_hint(reason)
    )]
    ParamHeader {
        /// The tool.
        tool: String,
        /// Why it is invalid.
        reason: ParamHeaderError,
    },
    /// A completion function is set for an unknown argument.
    #[error("{owner} has no argument {argument:?} to complete; its arguments are: {arguments}")]
    UnknownCompletion {
        /// The prompt or the resource template.
        owner: String,
        /// The argument.
        argument: String,
        /// The arguments that exist.
        arguments: String,
    },
    /// The name of an extension is invalid.
    #[error(
        "invalid extension name {0:?}: expected a prefix and a name, as in \"com.example/name\""
    )]
    ExtensionName(String),
    /// The server declares this extension itself.
    #[error(
        "extension {0:?} is built in: the server always declares call ids, tasks with .store(..), and skills with .skill(..)"
    )]
    ReservedExtension(&'static str),
    /// The task namespace contains a colon.
    #[error("invalid task namespace {0:?}: it must not contain a colon")]
    TaskNamespace(String),
    /// The name of the header with the client's address is invalid.
    #[error("invalid header name {0:?} for the client's address")]
    HeaderName(String),
    /// A limit is too small.
    #[error("limit {0} is too small: use at least 1, for a duration at least one second")]
    Limit(&'static str),
    /// The clock skew exceeds [`ServerBuilder::MAX_CLOCK_SKEW`]: replay records would expire before the tokens of their flow.
    #[error(
        "clock skew of {} seconds is too large: use at most {} seconds",
        .0.as_secs_f64(), ServerBuilder::MAX_CLOCK_SKEW.as_secs()
    )]
    ClockSkew(Duration),
    /// A scope is invalid.
    #[error("invalid scope {scope:?} of {owner}: {reason}")]
    Scope {
        /// The tool, prompt or resource, or the server.
        owner: String,
        /// The scope.
        scope: String,
        /// Why it is invalid.
        reason: ScopeError,
    },
    /// The resource metadata names no authorization server.
    #[error(
        "resource metadata of {0:?} names no authorization server: add at least one that issues its tokens"
    )]
    NoAuthorizationServer(String),
    /// A URL in the resource metadata is invalid.
    #[error("invalid URL {url:?} in the resource metadata: {reason}")]
    Metadata {
        /// The URL.
        url: String,
        /// Why it is invalid.
        reason: HttpUrlError,
    },
    /// The server card is invalid.
    #[error("invalid server card: {0}")]
    ServerCard(#[from] ServerCardError),
    /// A URI template is invalid.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// How to declare the header with schemars.
fn header_hint(error: &ParamHeaderError) -> &'static str {
    match error {
        ParamHeaderError::Type(_) => {
            "; for an Option<String>, use #[serde(default)] and #[schemars(with = \"String\")]"
        }
        ParamHeaderError::Unreachable(_) => {
            "; add #[schemars(inline)] to the type, so that clients find its fields"
        }
        _ => "",
    }
}

/// Implements `Debug` of an error like `Display`, because `main` prints the error that it returns with `Debug`.
macro_rules! debug_as_display {
    ($error:ident) => {
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

pub(crate) use debug_as_display;

debug_as_display!(BuildError);
