//! Errors of building and changing a server.

use crate::auth::{HttpUrlError, ScopeError};
use crate::catalog::TemplateError;
use refrain_wire::ParamHeaderError;

/// Why a server cannot be built or changed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Two entries of one kind have the same name.
    #[error("{kind} {name:?} is registered twice")]
    Duplicate {
        /// "the tool", "the prompt", "the resource" or "the resource template".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A handler takes a `State<T>` that the builder does not have.
    #[error("{handler:?} takes State<{state}>: hand it in with .state(..)")]
    MissingState {
        /// The tool, prompt or resource.
        handler: String,
        /// The type of the state.
        state: &'static str,
    },
    /// A tool needs a replay log.
    #[error(
        "the tool {tool:?} needs a replay log that the fleet shares: hand one in with .replay_log(..), \
         or declare with .single_instance() that there is only one instance"
    )]
    NeedsReplayLog {
        /// The tool.
        tool: String,
    },
    /// A tool needs a task store.
    #[error("the tool {tool:?} needs a task store: hand one in with .tasks(..)")]
    NeedsTaskStore {
        /// The tool.
        tool: String,
    },
    /// A live tool cannot become a task.
    #[error("the tool {0:?} is live and cannot become a task: leave one of the two out")]
    LiveTask(String),
    /// The advertised URL is invalid.
    #[error("invalid advertised URL {url:?}: {reason}")]
    Advertise {
        /// The URL.
        url: String,
        /// Why it is invalid.
        reason: HttpUrlError,
    },
    /// Other instances could not open ids that contain the advertised URL.
    #[error("an advertised URL needs keys that all instances share: hand them in with .keys(..)")]
    AdvertiseNeedsKeys,
    /// Sealed tasks could not be opened after a restart.
    #[error("what tasks hold cannot be sealed without keys: hand them in with .keys(..)")]
    SealingNeedsKeys,
    /// A tool's schema is invalid.
    #[error("the {which} schema of {tool:?} is not usable: {reason}")]
    Schema {
        /// The tool.
        tool: String,
        /// "input" or "output".
        which: &'static str,
        /// Why it is invalid.
        reason: String,
    },
    /// A tool has no name.
    #[error("a tool needs a name")]
    EmptyName,
    /// The URI of a resource is invalid.
    #[error("the resource {uri:?} has no usable URI: {reason}")]
    Uri {
        /// The URI.
        uri: String,
        /// Why it is invalid.
        reason: String,
    },
    /// The header of a tool argument is invalid.
    #[error(
        "the tool {tool:?} has an x-mcp-header that clients would refuse: {reason}{}",
        header_hint(reason)
    )]
    ParamHeader {
        /// The tool.
        tool: String,
        /// Why it is invalid.
        reason: ParamHeaderError,
    },
    /// An unknown argument is completed.
    #[error("{of} has no argument {argument:?} to complete; it has: {known}")]
    NothingToComplete {
        /// The prompt or the resource template.
        of: String,
        /// The argument.
        argument: String,
        /// The known arguments.
        known: String,
    },
    /// The name of an extension has no prefix, or invalid characters.
    #[error("the extension {0:?} needs a name with a prefix, as in \"com.example/name\"")]
    ExtensionName(String),
    /// The server declares this extension itself.
    #[error(
        "the extension {0:?} is one that the server declares by itself: that of tasks with .tasks(..), that of call ids always"
    )]
    OwnExtension(&'static str),
    /// The task space is ambiguous.
    #[error("the task space {0:?} must have no colon in it")]
    TaskSpace(String),
    /// A limit must not be zero.
    #[error("the limit {0} must be at least 1")]
    Limit(&'static str),
    /// A scope is invalid.
    #[error("{owner} cannot need the scope {scope:?}: {reason}")]
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
        "the resource metadata cannot name {0:?}: name at least one authorization server that issues tokens for it"
    )]
    NoAuthorizationServer(String),
    /// A URL in the resource metadata is invalid.
    #[error("the resource metadata cannot name {url:?}: {reason}")]
    Metadata {
        /// The URL.
        url: String,
        /// Why it is invalid.
        reason: HttpUrlError,
    },
    /// A resource template cannot be matched against URIs.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// How to declare the header with schemars.
fn header_hint(error: &ParamHeaderError) -> &'static str {
    match error {
        ParamHeaderError::Type(_) => {
            "; an Option<String> takes #[serde(default)] and #[schemars(with = \"String\")]"
        }
        ParamHeaderError::Unreachable(_) => {
            "; #[schemars(inline)] on a type puts its fields where clients look"
        }
        _ => "",
    }
}

/// `main` prints this when it returns the error.
impl std::fmt::Debug for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
