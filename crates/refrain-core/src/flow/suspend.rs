//! Suspending a flow: its asks, their wire keys, and its snapshot.

use super::driver::Event;
use super::env::{Env, Limits};
use super::reply::{Cut, Incomplete, is_url, no_url};
use super::slot::{Phase, Slot, SlotId};
use super::state::State;
use crate::journal::{Asked, FlowId, Key, Snapshot};
use crate::{AskError, Error};
use refrain_wire::Ask;

impl State {
    /// The key the client will answer under: the author's name where it is free, else `scope/name#n`.
    pub(crate) fn wire_key(&mut self, id: SlotId, key: &Key, fingerprint: u64) -> Box<str> {
        let plain = self.plain_wire_key(id, key);
        let (slots, used) = (&self.slots, &self.journal.used);
        let open = |slot: &Slot, wire: &str| slot.id != id && slot.phase.open_key() == Some(wire);
        let taken = |wire: &str| {
            slots.iter().any(|slot| open(slot, wire)) || used.iter().any(|used| **used == *wire)
        };
        match &mut self.task {
            Some(task) => task.wire_key(key, fingerprint, plain, taken),
            None => plain.into(),
        }
    }

    fn plain_wire_key(&self, id: SlotId, key: &Key) -> String {
        let other_kind_or_scope = |k: &Key| {
            k.name == key.name
                && k.kind.ask().is_some()
                && (k.kind != key.kind || k.scope != key.scope)
        };
        let taken_by_slot = |slot: &Slot| {
            slot.id != id && slot.phase.open_key().is_some() && other_kind_or_scope(&slot.key)
        };
        let plain_is_taken = key.ordinal > 1
            || (self.journal.entries.iter()).any(|e| other_kind_or_scope(&e.key))
            || self.slots.iter().any(taken_by_slot);
        let mut wire = match (&key.scope, key.ordinal) {
            _ if !plain_is_taken => key.name.to_string(),
            // Another scope uses the plain name.
            (None, 1) => format!("{}#1", key.name),
            _ => key.full(),
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

    /// Asks the environment whether to hand the flow on, until it says yes.
    pub(crate) fn should_shed(&mut self, env: &Env) -> bool {
        if self.is_in_memory() {
            return false;
        }
        let is_task = self.is_task();
        if !self.shedding
            && (is_task || self.journal.sheds < env.limits.sheds)
            && let Some(pressure) = &env.pressure
        {
            self.shedding = match is_task {
                true => pressure.hand_task_on(),
                false => pressure.hand_on(),
            };
        }
        self.shedding
    }

    /// Suspends the flow with all open asks.
    pub(crate) fn cut(&mut self, flow: FlowId) -> Cut {
        let (asks, asked) = self.slots.iter_mut().filter_map(Slot::take_ask).unzip();
        self.set_down(flow, asks, asked)
    }

    /// Sets a fault if this many open asks pass a limit, or if a round to send them in does.
    pub(crate) fn passes_limit(&mut self, asks: usize, limits: &Limits, new_round: bool) -> bool {
        let (round_asks, rounds) = (limits.asks, limits.rounds);
        if asks > round_asks {
            let message =
                format!("{asks} asks are open at once, and the limit of a round is {round_asks}");
            self.set_fault(message, false);
        } else if new_round && self.journal.round >= rounds {
            let message = format!("the call needs another round, and its limit is {rounds} rounds");
            self.set_fault(message, false);
        }
        self.fault_is_set()
    }

    /// Suspends the flow with the asks and the state of an explicit reply.
    pub(crate) fn cut_explicit(
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
        let twice = |(at, name)| names().take(at).any(|earlier| earlier == name);
        if let Some((_, name)) = names().enumerate().find(|named| twice(*named)) {
            return Err(Error::internal(format!(
                "an incomplete reply asks {name:?} twice; give each ask its own key"
            )));
        }
        let mut asked = Vec::with_capacity(reply.asks.len());
        let mut asks = Vec::with_capacity(reply.asks.len());
        for (name, mut ask, fingerprint) in reply.asks {
            match &mut ask {
                Ask::Url { url, .. } if !is_url(url) => return Err(Error::internal(no_url(&name))),
                Ask::Sampling(params) => {
                    params.check().map_err(|reason| {
                        Error::internal(format!("{name:?} cannot be asked of a model: {reason}"))
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
            let mut key = Key::new(None, ask.kind().into(), name);
            let before = (self.journal.entries.iter()).filter(|e| e.key.same_name(&key));
            key.ordinal = before.count() as u32 + 1;
            asks.push((key.name.to_string(), ask));
            asked.push(Asked {
                wire_key: key.name.as_ref().into(),
                key,
                fingerprint,
                made_here: true,
            });
        }
        self.journal.state = reply.state;
        if self.publishes() {
            self.ended = true;
            let write = self.write_explicit(flow, env.source.now(), asked, asks);
            return Ok(Event::Write(write.into()));
        }
        Ok(Event::Cut(self.set_down(flow, asks, asked)))
    }

    fn set_down(&mut self, flow: FlowId, asks: Vec<(String, Ask)>, asked: Vec<Asked>) -> Cut {
        self.ended = true;
        let shed = asks.is_empty() && self.shedding;
        let mut journal = std::mem::take(&mut self.journal);
        journal.round += 1;
        journal.sheds += u32::from(shed);
        journal.asked = asked;
        let snapshot = Snapshot::without_void(flow, self.deadline, journal);
        Cut {
            asks,
            snapshot,
            shed,
        }
    }
}
