//! Errors of building and changing a server.

use crate::auth::{ScopeError, UrlError};
use crate::catalog::TemplateError;
use refrain_wire::ParamHeaderError;

/// Why a server cannot be built, or not changed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Two things of one kind have one name.
    #[error("{kind} {name:?} is registered twice")]
    Duplicate {
        /// "the tool", "the prompt", "the resource" or "the resource template".
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A handler takes a `State<T>` that was not handed in.
    #[error("{handler:?} takes State<{state}>: hand it in with .state(..)")]
    MissingState {
        /// The tool, prompt or resource.
        handler: String,
        /// The type of the state.
        state: &'static str,
    },
    /// A tool wants its work or its tokens used once, and nothing could tell.
    #[error(
        "the tool {tool:?} needs a replay log that the fleet shares: hand one in with .replay_log(..), \
         or declare with .single_instance() that there is only one instance"
    )]
    NeedsReplayLog {
        /// The tool.
        tool: String,
    },
    /// A tool's calls must be tasks, and there is nowhere to keep them.
    #[error("the tool {tool:?} needs a task store: hand one in with .tasks(..)")]
    NeedsTaskStore {
        /// The tool.
        tool: String,
    },
    /// A tool is to be live and a task, and has only one home.
    #[error("the tool {tool:?} is live and cannot become a task: leave one of the two out")]
    LiveTask {
        /// The tool.
        tool: String,
    },
    /// The advertised URL is invalid.
    #[error("invalid advertised URL {url:?}: {reason}")]
    Advertise {
        /// The URL.
        url: String,
        /// Why it is invalid.
        reason: UrlError,
    },
    /// The other instances would not open the ids that contain the advertised URL.
    #[error("an advertised URL needs keys that all instances share: hand them in with .keys(..)")]
    AdvertiseNeedsKeys,
    /// What tasks hold is to be sealed with a key that nobody has after a restart.
    #[error("what tasks hold cannot be sealed without keys: hand them in with .keys(..)")]
    SealingNeedsKeys,
    /// A tool's schema is not a JSON schema.
    #[error("the {which} schema of {tool:?} is not usable: {reason}")]
    Schema {
        /// The tool.
        tool: String,
        /// "input" or "output".
        which: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A tool has no name.
    #[error("a tool needs a name")]
    EmptyName,
    /// A resource's URI is none.
    #[error("the resource {uri:?} has no usable URI: {reason}")]
    Uri {
        /// The URI.
        uri: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An argument of a tool cannot be repeated in a header.
    #[error(
        "the tool {tool:?} has an x-mcp-header that clients would refuse: {reason}{}",
        header_hint(reason)
    )]
    ParamHeader {
        /// The tool.
        tool: String,
        /// The argument, and what is wrong with its header.
        reason: ParamHeaderError,
    },
    /// Something completes an argument that is not there.
    #[error("{of} has no argument {argument:?} to complete; it has: {known}")]
    NothingToComplete {
        /// The prompt or the resource template.
        of: String,
        /// The argument.
        argument: String,
        /// Those that it has.
        known: String,
    },
    /// An extension's name has no prefix, or odd characters in it.
    #[error("the extension {name:?} needs a name with a prefix, as in \"com.example/name\"")]
    ExtensionName {
        /// The name.
        name: String,
    },
    /// An extension that the server declares by itself.
    #[error(
        "the extension {name:?} is one that the server declares by itself: that of tasks with .tasks(..), that of call ids always"
    )]
    OwnExtension {
        /// The name.
        name: &'static str,
    },
    /// A space for tasks that could be taken for another.
    #[error("the task space {space:?} must have no colon in it")]
    TaskSpace {
        /// The space.
        space: String,
    },
    /// A limit is zero that cannot be.
    #[error("the limit {limit} must be at least 1")]
    Limit {
        /// The limit.
        limit: &'static str,
    },
    /// A scope that callers cannot be asked for.
    #[error("{owner} cannot need the scope {scope:?}: {reason}")]
    Scope {
        /// What needs it: the tool, prompt or resource, or the server itself.
        owner: String,
        /// The scope.
        scope: String,
        /// What is wrong with it.
        reason: ScopeError,
    },
    /// The resource metadata names no authorization server.
    #[error(
        "the resource metadata cannot name {url:?}: name at least one authorization server that issues tokens for it"
    )]
    NoAuthorizationServer {
        /// The URL of the resource.
        url: String,
    },
    /// The resource metadata would lead clients nowhere.
    #[error("the resource metadata cannot name {url:?}: {reason}")]
    Metadata {
        /// The URL that is at fault.
        url: String,
        /// What is wrong with it.
        reason: UrlError,
    },
    /// A resource template cannot be matched against URIs.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// How to write a header's mark with schemars so that clients accept it.
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

/// What `main` shows when it returns this error.
impl std::fmt::Debug for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
