//! Label values of metrics. Every label has a fixed set of values, known at compile time.

use super::number::Counter;
use crate::catalog::Listing;
use refrain_core::OpenError;
use refrain_wire::{AskKind, CallKind, ErrorCode, TaskMethod};
use std::marker::PhantomData;
use strum::{IntoStaticStr, VariantArray};

/// The methods of calls.
pub(super) const KINDS: [CallKind; 3] = [CallKind::Tool, CallKind::Prompt, CallKind::Resource];

/// A label with a fixed set of values.
pub(crate) trait Label: Copy + 'static {
    /// All values, each at its index.
    const ALL: &'static [Self];
    /// The position of the value in `ALL`.
    fn index(self) -> usize;
    /// The text of the value.
    fn name(self) -> &'static str;
}

/// A counter for each value of a label.
#[derive(Debug)]
pub(crate) struct Counts<L>(Box<[Counter]>, PhantomData<L>);

impl<L: Label> Default for Counts<L> {
    fn default() -> Self {
        let counts = L::ALL.iter().map(|_| Counter::default()).collect();
        Self(counts, PhantomData)
    }
}

impl<L: Label> Counts<L> {
    /// Increments the counter of a value.
    pub(crate) fn add(&self, label: L) {
        if let Some(count) = self.0.get(label.index()) {
            count.inc();
        }
    }

    /// Each value with its counter.
    #[cfg(feature = "metrics")]
    pub(super) fn each(&self) -> impl Iterator<Item = (&'static str, &Counter)> {
        L::ALL.iter().map(|label| label.name()).zip(&self.0)
    }
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Outcome {
    /// The call is done.
    Complete,
    /// The call is done, and its result says that the tool failed.
    ToolError,
    /// Something is asked.
    InputRequired,
    /// The flow was handed on, without asks.
    HandedOn,
    /// The flow became a task.
    Task,
    /// A token that may be used once came again, and got the reply it had before.
    Repeated,
    /// The parameters, the answers or the token do not fit (-32602).
    InvalidParams,
    /// The handler or the server failed (-32603).
    InternalError,
    /// The client lacks a capability (-32021).
    MissingCapability,
    /// The caller lacks a scope.
    InsufficientScope,
    /// The client went away, or cancelled the call.
    Cancelled,
    /// All places were taken.
    Busy,
}

impl Outcome {
    /// The outcome that is an error of this code.
    pub(crate) fn error(code: ErrorCode) -> Self {
        match code {
            ErrorCode::MissingCapability => Self::MissingCapability,
            ErrorCode::Parse
            | ErrorCode::InvalidRequest
            | ErrorCode::MethodNotFound
            | ErrorCode::InvalidParams
            | ErrorCode::ResourceNotFound
            | ErrorCode::HeaderMismatch
            | ErrorCode::UnsupportedVersion => Self::InvalidParams,
            ErrorCode::Internal => Self::InternalError,
        }
    }
}

/// What happens to tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum TaskEvent {
    /// A call became one.
    Created,
    /// A worker of this instance took one up.
    TakenUp,
    /// It left memory, until an answer comes or a sleep is over.
    SetDown,
    /// It was let go for another instance to take up.
    HandedOn,
    /// An attempt failed, and there will be another.
    Retried,
    /// It is done.
    Completed,
    /// It could not be done.
    Failed,
    /// It was cancelled, or another worker has it.
    Lost,
}

/// What happens to calls whose home is memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum LiveCount {
    /// One was parked here.
    Parked,
    /// One was given up: its time was over, its client went away, or the instance is stopping.
    GivenUp,
    /// A request was relayed to its holder.
    Relayed,
    /// A request could not be relayed to its holder.
    RelayFailed,
    /// A request came for a call whose holder advertises no URL.
    Elsewhere,
    /// A request came for a call that is not held here any more.
    Gone,
}

/// Why a request was refused before a call began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Refusal {
    /// For a host, or from a page of a host, that the server does not answer for (403).
    Host,
    /// No POST (405).
    HttpMethod,
    /// No JSON, by its content type (415).
    MediaType,
    /// Nobody knows who is calling (401, or 400 where what should say so is malformed).
    Unauthenticated,
    /// No credentials would help (403).
    Forbidden,
    /// The caller lacks a scope (403).
    InsufficientScope,
    /// It cannot be found out at present who is calling (503).
    Unavailable,
    /// The body is over the limit (413).
    TooLarge,
    /// The body did not come whole (400).
    Unreadable,
    /// The body is not JSON (-32700).
    Parse,
    /// The body is no request (-32600).
    InvalidRequest,
    /// There is no such method (-32601).
    UnknownMethod,
    /// The parameters do not fit the method (-32602).
    InvalidParams,
    /// A header is missing or says something else than the body (-32020).
    HeaderMismatch,
    /// Another revision of the protocol (-32022).
    UnsupportedVersion,
    /// No place for a subscription or for suggestions (503); a call is counted as a round.
    Busy,
    /// The session is not one, or is over (404).
    Session,
    /// An answer for an instance that cannot be reached from this one (400).
    Elsewhere,
}

impl Refusal {
    /// The refusal that is an error of this code.
    pub(crate) fn error(code: ErrorCode) -> Self {
        match code {
            ErrorCode::Parse => Self::Parse,
            ErrorCode::MethodNotFound => Self::UnknownMethod,
            ErrorCode::InvalidParams
            | ErrorCode::ResourceNotFound
            | ErrorCode::MissingCapability => Self::InvalidParams,
            ErrorCode::HeaderMismatch => Self::HeaderMismatch,
            ErrorCode::UnsupportedVersion => Self::UnsupportedVersion,
            ErrorCode::InvalidRequest | ErrorCode::Internal => Self::InvalidRequest,
        }
    }
}

impl Label for CallKind {
    const ALL: &'static [Self] = &KINDS;

    fn index(self) -> usize {
        self as usize
    }

    fn name(self) -> &'static str {
        self.method()
    }
}

/// A request that is no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// A page of a list.
    List(Listing),
    /// What the server is and has.
    Discover,
    /// Suggestions for what is typed.
    Complete,
    /// A subscription.
    Listen,
    /// About a task.
    Task(TaskMethod),
    /// A session is opened.
    Initialize,
    /// Whether anybody is there.
    Ping,
    /// Which log messages a session wants.
    SetLevel,
    /// A session wants to hear of a resource.
    Subscribe,
    /// A session no longer wants to.
    Unsubscribe,
}

impl Other {
    /// What a request in a session is about, if it is no call.
    pub(crate) fn of_older(method: &str) -> Option<Self> {
        let known = [
            Self::List(Listing::Tools),
            Self::List(Listing::Prompts),
            Self::List(Listing::Resources),
            Self::List(Listing::ResourceTemplates),
            Self::Complete,
            Self::Initialize,
            Self::Ping,
            Self::SetLevel,
            Self::Subscribe,
            Self::Unsubscribe,
        ];
        known.into_iter().find(|known| known.name() == method)
    }
}

impl Label for Other {
    const ALL: &'static [Self] = &[
        Self::List(Listing::Tools),
        Self::List(Listing::Prompts),
        Self::List(Listing::Resources),
        Self::List(Listing::ResourceTemplates),
        Self::Discover,
        Self::Complete,
        Self::Listen,
        Self::Task(TaskMethod::Get),
        Self::Task(TaskMethod::Update),
        Self::Task(TaskMethod::Cancel),
        Self::Initialize,
        Self::Ping,
        Self::SetLevel,
        Self::Subscribe,
        Self::Unsubscribe,
    ];

    fn index(self) -> usize {
        match self {
            Self::List(listing) => listing as usize,
            Self::Discover => 4,
            Self::Complete => 5,
            Self::Listen => 6,
            Self::Task(method) => 7 + method as usize,
            Self::Initialize => 10,
            Self::Ping => 11,
            Self::SetLevel => 12,
            Self::Subscribe => 13,
            Self::Unsubscribe => 14,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::List(listing) => listing.method(),
            Self::Discover => "server/discover",
            Self::Complete => "completion/complete",
            Self::Listen => "subscriptions/listen",
            Self::Task(method) => method.as_str(),
            Self::Initialize => "initialize",
            Self::Ping => "ping",
            Self::SetLevel => "logging/setLevel",
            Self::Subscribe => "resources/subscribe",
            Self::Unsubscribe => "resources/unsubscribe",
        }
    }
}

impl Label for AskKind {
    const ALL: &'static [Self] = &[Self::Form, Self::Url, Self::Sampling, Self::Roots];

    fn index(self) -> usize {
        self as usize
    }

    fn name(self) -> &'static str {
        self.as_str()
    }
}

/// Labels of enums whose variants have no data.
macro_rules! label {
    ($($name:ident),*) => {$(
        impl Label for $name {
            const ALL: &'static [Self] = Self::VARIANTS;

            fn index(self) -> usize {
                self as usize
            }

            fn name(self) -> &'static str {
                self.into()
            }
        }
    )*};
}

label!(LiveCount, OpenError, Outcome, Refusal, TaskEvent);

#[cfg(test)]
mod tests {
    use super::*;

    fn each_is_at_its_index<L: Label>() {
        for (index, label) in L::ALL.iter().enumerate() {
            assert_eq!(label.index(), index, "{}", label.name());
            let same = L::ALL.iter().filter(|other| other.name() == label.name());
            assert_eq!(same.count(), 1, "{}", label.name());
        }
    }

    #[test]
    fn lists_are_in_order() {
        each_is_at_its_index::<Outcome>();
        each_is_at_its_index::<Refusal>();
        each_is_at_its_index::<CallKind>();
        each_is_at_its_index::<Other>();
        each_is_at_its_index::<TaskEvent>();
        each_is_at_its_index::<LiveCount>();
        each_is_at_its_index::<AskKind>();
        each_is_at_its_index::<OpenError>();
    }

    #[test]
    fn a_reason_is_counted_as_it_is_logged() {
        for reason in OpenError::ALL {
            assert_eq!(reason.name(), reason.to_string());
        }
    }
}
