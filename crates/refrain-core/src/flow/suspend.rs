//! Suspending a flow: its asks, their wire keys, and its snapshot.

use super::driver::Event;
use super::env::{Env, Limits};
use super::reply::{Incomplete, Suspension, is_url, malformed_url};
use super::slot::{Phase, Slot, SlotId};
use super::state::FlowState;
use crate::journal::{EntryKey, FlowId, PendingAsk, Snapshot};
use crate::{AskError, Error};
use refrain_wire::Ask;

impl FlowState {
    /// The key of an ask on the wire: the ask's name if it is unused, otherwise `scope/name#n`.
    pub(crate) fn wire_key(&mut self, id: SlotId, key: &EntryKey, fingerprint: u64) -> Box<str> {
        let plain = self.plain_wire_key(id, key);
        let (slots, used) = (&self.slots, &self.journal.used_wire_keys);
        let is_open = |slot: &Slot, key: &str| slot.id != id && slot.phase.open_key() == Some(key);
        let is_used = |key: &str| {
            slots.iter().any(|slot| is_open(slot, key)) || used.iter().any(|used| **used == *key)
        };
        match &mut self.publishing {
            Some(publishing) => publishing.wire_key(key, fingerprint, plain, is_used),
            None => plain.into(),
        }
    }

    fn plain_wire_key(&self, id: SlotId, key: &EntryKey) -> String {
        let is_same_name = |k: &EntryKey| {
            k.name == key.name
                && k.kind.ask().is_some()
                && (k.kind != key.kind || k.scope != key.scope)
        };
        let is_used_by = |slot: &Slot| {
            slot.id != id && slot.phase.open_key().is_some() && is_same_name(&slot.key)
        };
        let is_name_used = key.ordinal > 1
            || (self.journal.entries.iter()).any(|e| is_same_name(&e.key))
            || self.slots.iter().any(is_used_by);
        let mut wire = match (&key.scope, key.ordinal) {
            _ if !is_name_used => key.name.to_string(),
            // An operation in another scope uses the plain name.
            (None, 1) => format!("{}#1", key.name),
            _ => key.qualified_name(),
        };
        while self.any(|phase| phase.open_key() == Some(&*wire)) {
            wire = format!("{wire}.{}", key.kind.as_str());
        }
        wire
    }

    pub(crate) fn open_asks(&self) -> usize {
        let open = |slot: &&Slot| matches!(slot.phase, Phase::Open { .. });
        self.slots.iter().filter(open).count()
    }

    /// Returns whether the flow should be handed on. Once the environment says so, this does not change.
    pub(crate) fn should_hand_on(&mut self, env: &Env) -> bool {
        if self.is_in_memory() {
            return false;
        }
        let is_task = self.is_task();
        if !self.handing_on
            && (is_task || self.journal.sheds < env.limits.sheds)
            && let Some(pressure) = &env.pressure
        {
            self.handing_on = match is_task {
                true => pressure.should_hand_task_on(),
                false => pressure.should_hand_on(),
            };
        }
        self.handing_on
    }

    /// Suspends the flow with all open asks.
    pub(crate) fn suspend(&mut self, flow: FlowId) -> Suspension {
        let (asks, open) = self.slots.iter_mut().filter_map(Slot::take_ask).unzip();
        self.suspend_with(flow, asks, open)
    }

    /// Sets a fault if this many open asks, or a new round, exceed a limit. Returns whether a fault is set.
    pub(crate) fn exceeds_limit(&mut self, asks: usize, limits: &Limits, new_round: bool) -> bool {
        let (round_asks, rounds) = (limits.asks, limits.rounds);
        if asks > round_asks {
            let message = format!(
                "{asks} asks are open at the same time, but the limit of a round is {round_asks}"
            );
            self.set_fault(message, false);
        } else if new_round && self.journal.round >= rounds {
            let message = format!("the call needs another round, but its limit is {rounds} rounds");
            self.set_fault(message, false);
        }
        self.has_fault()
    }

    /// Suspends the flow with the asks and the state of an explicit reply.
    pub(crate) fn suspend_explicit(
        &mut self,
        env: &Env,
        flow: FlowId,
        reply: Incomplete,
    ) -> Result<Event, Error> {
        if reply.asks.is_empty() && reply.state.is_none() {
            return Err(Error::internal(
                "an incomplete reply needs at least one ask or a state",
            ));
        }
        let names = || reply.asks.iter().map(|(name, ..)| name);
        let is_repeated = |(index, name)| names().take(index).any(|earlier| earlier == name);
        if let Some((_, name)) = names().enumerate().find(|name| is_repeated(*name)) {
            return Err(Error::internal(format!(
                "an incomplete reply has two asks with the key {name:?}; give each ask another key"
            )));
        }
        let mut open = Vec::with_capacity(reply.asks.len());
        let mut asks = Vec::with_capacity(reply.asks.len());
        for (name, mut ask, fingerprint) in reply.asks {
            match &mut ask {
                Ask::Url { url, .. } if !is_url(url) => {
                    return Err(Error::internal(malformed_url(&name)));
                }
                Ask::Sampling(params) => {
                    params.check().map_err(|reason| {
                        Error::internal(format!("invalid sampling request {name:?}: {reason}"))
                    })?;
                    params.drop_undeclared(env.capabilities);
                }
                Ask::Form { .. } | Ask::Url { .. } | Ask::Roots => {}
            }
            if !env.capabilities.has(ask.capability()) {
                return Err(AskError::Unsupported {
                    name: name.into_owned(),
                    capability: ask.capability(),
                }
                .into());
            }
            let mut key = EntryKey::new(None, ask.kind().into(), name);
            let earlier = (self.journal.entries.iter()).filter(|e| e.key.same_name(&key));
            key.ordinal = earlier.count() as u32 + 1;
            asks.push((key.name.to_string(), ask));
            open.push(PendingAsk {
                wire_key: key.name.as_ref().into(),
                key,
                fingerprint,
                current_run: true,
            });
        }
        self.journal.state = reply.state;
        if self.publishes() {
            self.ended = true;
            let write = self.write_explicit(flow, env.source.now(), open, asks);
            return Ok(Event::Write(write.into()));
        }
        Ok(Event::Suspended(self.suspend_with(flow, asks, open)))
    }

    fn suspend_with(
        &mut self,
        flow: FlowId,
        asks: Vec<(String, Ask)>,
        open: Vec<PendingAsk>,
    ) -> Suspension {
        self.ended = true;
        let handed_on = asks.is_empty() && self.handing_on;
        let mut journal = std::mem::take(&mut self.journal);
        journal.round += 1;
        journal.sheds += u32::from(handed_on);
        journal.open_asks = open;
        let snapshot = Snapshot::without_rejected(flow, self.deadline, journal);
        Suspension {
            asks,
            snapshot,
            handed_on,
        }
    }
}
