//! Label values of metrics. Every label has a fixed set of values.

use super::number::Counter;
use crate::catalog::Listing;
use refrain_core::OpenError;
use refrain_wire::{AskKind, CallKind, ErrorCode, TaskMethod};
use std::marker::PhantomData;
use strum::{IntoStaticStr, VariantArray};

pub(super) const KINDS: [CallKind; 3] = [CallKind::Tool, CallKind::Prompt, CallKind::Resource];

pub(crate) trait Label: Copy + PartialEq + 'static {
    const ALL: &'static [Self];
    fn name(self) -> &'static str;

    /// The index in `ALL`.
    fn index(self) -> usize {
        let index = Self::ALL.iter().position(|value| *value == self);
        index.expect("ALL contains every value")
    }
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
    pub(crate) fn add(&self, label: L) {
        self.0[label.index()].inc();
    }

    pub(crate) fn add_many(&self, label: L, count: u64) {
        self.0[label.index()].inc_by(count);
    }

    #[cfg(feature = "metrics")]
    pub(super) fn each(&self) -> impl Iterator<Item = (&'static str, &Counter)> {
        L::ALL.iter().map(|label| label.name()).zip(&self.0)
    }
}

/// The outcome of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum RoundLabel {
    Complete,
    /// Complete, but the result has `isError`.
    ToolError,
    InputRequired,
    /// The flow was handed on to another instance, without asks.
    HandedOn,
    Task,
    /// A repeated request got the recorded reply.
    Repeated,
    /// Invalid parameters, answers or token (-32602).
    InvalidParams,
    InternalError,
    MissingCapability,
    InsufficientScope,
    /// The client disconnected or cancelled the call.
    Cancelled,
    Busy,
}

impl RoundLabel {
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
            ErrorCode::Internal | ErrorCode::Other(_) => Self::InternalError,
        }
    }
}

/// An event of a task on this instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum TaskEvent {
    Created,
    /// Not created, because a quota is reached.
    OverQuota,
    /// Claimed by a worker of this instance.
    TakenUp,
    /// Left memory until an answer arrives or a sleep ends.
    SetDown,
    /// Released for another instance to claim.
    HandedOn,
    /// An attempt failed and will be retried.
    Retried,
    Completed,
    Failed,
    /// The lease was lost: the task was cancelled or claimed by another worker.
    Lost,
}

/// An event of a delivery to a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum WebhookEvent {
    Delivered,
    /// An attempt failed and will be retried.
    Retried,
    /// The last attempt failed.
    GivenUp,
    /// Deleted from the outbox: too old, or too many.
    Dropped,
}

/// An event of a call whose home is memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum LiveCallEvent {
    Parked,
    /// Cancelled: timed out, the client disconnected, or the instance is shutting down.
    GivenUp,
    Relayed,
    RelayFailed,
    /// A request for a call whose holder advertises no URL.
    Elsewhere,
    /// A request for a call that is no longer in memory.
    Gone,
}

/// The reason why a request was rejected before a call started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Refusal {
    /// A connection over the limit, closed without a response, or an HTTP/2 stream over the limit (503).
    Connections,
    /// `Host` or `Origin` is not allowed (403).
    Host,
    HttpMethod,
    /// The content type is not JSON, or the encoding is not supported (415).
    MediaType,
    /// Missing or invalid credentials (401), or malformed ones (400).
    Unauthenticated,
    /// The authenticator denies access (403).
    Forbidden,
    InsufficientScope,
    /// The authenticator is unavailable (503).
    Unavailable,
    TooLarge,
    /// The body is incomplete (400).
    Unreadable,
    /// The body took too long (408).
    Timeout,
    Parse,
    /// The body is not a request (-32600).
    InvalidRequest,
    UnknownMethod,
    InvalidParams,
    /// A header is missing or differs from the body (-32020).
    HeaderMismatch,
    UnsupportedVersion,
    /// A limit is reached, other than that of a call (503). A call over its limit is counted as `RoundLabel::Busy` instead.
    Busy,
    /// Unknown or expired session (404), or a missing session id (400).
    Session,
    /// The holder of a legacy client's session or call cannot be reached (400, 503), or a relayed request is for another
    /// process (421).
    Elsewhere,
}

impl Refusal {
    pub(crate) fn error(code: ErrorCode) -> Self {
        match code {
            ErrorCode::Parse => Self::Parse,
            ErrorCode::MethodNotFound => Self::UnknownMethod,
            ErrorCode::InvalidParams
            | ErrorCode::ResourceNotFound
            | ErrorCode::MissingCapability => Self::InvalidParams,
            ErrorCode::HeaderMismatch => Self::HeaderMismatch,
            ErrorCode::UnsupportedVersion => Self::UnsupportedVersion,
            ErrorCode::InvalidRequest | ErrorCode::Internal | ErrorCode::Other(_) => {
                Self::InvalidRequest
            }
        }
    }
}

/// The method of a request that is not a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NonCall {
    List(Listing),
    ListSkills,
    GetSkill,
    Discover,
    Complete,
    Listen,
    Task(TaskMethod),
    Initialize,
    Ping,
    SetLevel,
    Subscribe,
    Unsubscribe,
}

impl NonCall {
    /// The request with this method.
    pub(crate) fn of(method: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|it| it.name() == method)
    }

    /// The request with this method, if legacy sessions have it.
    pub(crate) fn of_legacy(method: &str) -> Option<Self> {
        Self::of(method).filter(|it| {
            let is_skills = matches!(it, Self::ListSkills | Self::GetSkill);
            !is_skills && !matches!(it, Self::Discover | Self::Listen | Self::Task(_))
        })
    }

    fn method(self) -> &'static str {
        match self {
            Self::List(listing) => listing.method(),
            Self::ListSkills => "skills/list",
            Self::GetSkill => "skills/get",
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

/// Implements [`Label`]: the values of each label and the function that names them.
macro_rules! labels {
    ($($type:ident: $all:expr, $name:path;)*) => {$(
        impl Label for $type {
            const ALL: &'static [Self] = $all;

            fn name(self) -> &'static str {
                $name(self)
            }
        }
    )*};
}

labels! {
    AskKind: &[Self::Form, Self::Url, Self::Sampling, Self::Roots], AskKind::as_str;
    CallKind: &KINDS, CallKind::method;
    LiveCallEvent: Self::VARIANTS, Into::into;
    OpenError: Self::VARIANTS, Into::into;
    NonCall: &[
        Self::List(Listing::Tools),
        Self::List(Listing::Prompts),
        Self::List(Listing::Resources),
        Self::List(Listing::ResourceTemplates),
        Self::ListSkills,
        Self::GetSkill,
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
    ], NonCall::method;
    RoundLabel: Self::VARIANTS, Into::into;
    Refusal: Self::VARIANTS, Into::into;
    TaskEvent: Self::VARIANTS, Into::into;
    WebhookEvent: Self::VARIANTS, Into::into;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<L: Label>() {
        for (index, label) in L::ALL.iter().enumerate() {
            assert_eq!(label.index(), index, "{}", label.name());
            let same = L::ALL.iter().filter(|other| other.name() == label.name());
            assert_eq!(same.count(), 1, "{}", label.name());
        }
    }

    #[test]
    fn label_values_are_unique() {
        check::<RoundLabel>();
        check::<Refusal>();
        check::<CallKind>();
        check::<NonCall>();
        check::<TaskEvent>();
        check::<WebhookEvent>();
        check::<LiveCallEvent>();
        check::<AskKind>();
        check::<OpenError>();
    }

    #[test]
    fn token_rejection_label_equals_logged_reason() {
        for reason in OpenError::ALL {
            assert_eq!(reason.name(), reason.to_string());
        }
    }
}
