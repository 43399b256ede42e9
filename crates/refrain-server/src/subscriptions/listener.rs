//! One client: its filter, and the changes that are pending.

use crate::auth::Caller;
use parking_lot::Mutex;
use refrain_wire::{Change, Filter};
use std::collections::VecDeque;
use std::task::Waker;

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) caller: Caller,
    pub(super) filter: Filter,
    /// The filter's URIs in their normal form, in its order.
    pub(super) uris: Vec<String>,
    pub(super) pending: Mutex<Pending>,
}

/// Changes that the client was not notified of yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) tools: bool,
    pub(super) prompts: bool,
    pub(super) resources: bool,
    /// Indexes into the filter's list of URIs, each at most once.
    pub(super) uris: VecDeque<usize>,
    /// Why the subscription is over, once it is.
    pub(super) ended: Option<&'static str>,
    pub(super) waker: Option<Waker>,
}

impl Pending {
    pub(super) fn next<'a>(&mut self, filter: &'a Filter) -> Option<Change<'a>> {
        if std::mem::take(&mut self.tools) {
            return Some(Change::Tools);
        }
        if std::mem::take(&mut self.prompts) {
            return Some(Change::Prompts);
        }
        if std::mem::take(&mut self.resources) {
            return Some(Change::Resources);
        }
        let index = self.uris.pop_front()?;
        Some(Change::Resource(&filter.uris[index]))
    }
}
