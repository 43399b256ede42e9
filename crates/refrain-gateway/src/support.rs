//! The kinds of asks that a caller's client can answer.

use refrain::Cx;

/// The kinds of asks that a client can answer. A connection declares them to the backend when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AskSupport {
    pub(crate) form: bool,
    pub(crate) url: bool,
    pub(crate) sampling: bool,
    pub(crate) sampling_tools: bool,
    pub(crate) roots: bool,
}

impl AskSupport {
    /// For connections that serve callers with different clients, and to list all tools of a backend.
    pub(crate) const ALL: Self = Self {
        form: true,
        url: true,
        sampling: true,
        sampling_tools: true,
        roots: true,
    };

    /// For a client that answers nothing.
    pub(crate) const NONE: Self = Self {
        form: false,
        url: false,
        sampling: false,
        sampling_tools: false,
        roots: false,
    };

    pub(crate) fn of(cx: &Cx) -> Self {
        Self {
            form: cx.can_elicit(),
            url: cx.can_elicit_url(),
            sampling: cx.can_sample(),
            sampling_tools: cx.can_sample_with_tools(),
            roots: cx.can_list_roots(),
        }
    }
}
