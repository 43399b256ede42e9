//! How a flow is set down: what goes out, under which keys, and what is kept of it.

use super::driver::Event;
use super::env::{Env, Limits, Pressure};
use super::reply::{Cut, Incomplete, is_url, no_url};
use super::state::{Phase, Slot, SlotId, State};
use crate::journal::{Asked, FlowId, Key, Snapshot};
use crate::{AskError, Error};
use refrain_wire::{Ask, AskKind};
use std::sync::Arc;

impl State {
    /// The key the client will answer under: the author's name where it is free, else `scope/name#n`.
    pub(crate) fn wire_key(&mut self, id: SlotId, key: &Key, fingerprint: u64) -> Box<str> {
        let plain = self.plain_wire_key(id, key);
        let others = || self.slots.iter().filter(|slot| slot.id != id);
        let open = |wire: &str| others().any(|slot| slot.phase.open_key() == Some(wire));
        match &mut self.task {
            Some(task) => task.wire_key(key, fingerprint, plain, open),
            None => plain.into(),
        }
    }

    fn plain_wire_key(&self, id: SlotId, key: &Key) -> String {
        let other_kind_or_scope = |k: &Key| {
            k.name == key.name
                && k.kind.ask().is_some()
                && (k.kind != key.kind || k.scope != key.scope)
        };
        let open = |slot: &&Slot| slot.id != id && matches!(slot.phase, Phase::Open { .. });
        let plain_is_taken = key.ordinal > 1
            || self.entries.iter().any(|e| other_kind_or_scope(&e.key))
            || self
                .slots
                .iter()
                .filter(open)
                .any(|s| other_kind_or_scope(&s.key));
        let taken = |wire: &str| {
            self.slots
                .iter()
                .any(|s| matches!(&s.phase, Phase::Open { wire_key, .. } if **wire_key == *wire))
        };
        let mut wire = match (&key.scope, key.ordinal) {
            _ if !plain_is_taken => key.name.to_string(),
            // Another scope's ask has had the plain name.
            (None, 1) => format!("{}#1", key.name),
            _ => key.full(),
        };
        while taken(&wire) {
            wire = format!("{wire}.{}", key.kind.as_str());
        }
        wire
    }

    pub(crate) fn open_asks(&self) -> usize {
        self.slots
            .iter()
            .filter(|slot| matches!(slot.phase, Phase::Open { .. }))
            .count()
    }

    /// Asks the environment once whether to hand the flow on, and stays by a yes.
    pub(crate) fn should_shed(&mut self, env: &Env) -> bool {
        let is_task = self.is_task();
        if self.is_in_memory() {
            return false;
        }
        if !self.shedding && (is_task || self.sheds < env.limits.sheds) {
            let hand_on = |pressure: &Arc<dyn Pressure>| match is_task {
                true => pressure.hand_task_on(),
                false => pressure.hand_on(),
            };
            self.shedding = env.pressure.as_ref().is_some_and(hand_on);
        }
        self.shedding
    }

    /// Sets the flow down with every ask that is open.
    pub(crate) fn cut(&mut self, flow: FlowId) -> Cut {
        let mut asks = Vec::new();
        let mut asked = Vec::new();
        for slot in &mut self.slots {
            if !matches!(slot.phase, Phase::Open { .. }) {
                continue;
            }
            if let Phase::Open {
                ask,
                wire_key,
                fingerprint,
            } = std::mem::replace(&mut slot.phase, Phase::Idle)
            {
                asks.push((wire_key.to_string(), ask));
                asked.push(Asked {
                    wire_key,
                    key: slot.key.clone(),
                    fingerprint,
                });
            }
        }
        self.set_down(flow, asks, asked)
    }

    /// Would a round with this many asks pass a limit? That is a fault.
    pub(crate) fn passes_limit(&mut self, asks: usize, limits: &Limits) -> bool {
        if !self.passes_limit_of_asks(asks, limits) && self.round >= limits.rounds {
            let limit = limits.rounds;
            self.set_fault(
                format!("the call needs another round, and its limit is {limit} rounds"),
                false,
            );
        }
        self.fault_is_set()
    }

    /// Are there more asks than may be? That is a fault.
    pub(super) fn passes_limit_of_asks(&mut self, asks: usize, limits: &Limits) -> bool {
        if asks > limits.asks {
            let limit = limits.asks;
            self.set_fault(
                format!("{asks} asks are open at once, and the limit of a round is {limit}"),
                false,
            );
        }
        self.fault_is_set()
    }

    /// Has the journal no room for the answers to all open asks? That is a fault.
    pub(super) fn passes_limit_of_entries(&mut self, limits: &Limits) -> bool {
        let limit = limits.entries;
        if self.entries.len() + self.open_asks() > limit {
            self.set_fault(
                format!(
                    "the journal is full: {limit} entries; the answers to what is asked do not fit"
                ),
                false,
            );
        }
        self.fault_is_set()
    }

    /// Sets the flow down with the asks and the state of an explicit reply.
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
            let kind: AskKind = ask.kind();
            match &mut ask {
                Ask::Url { url, .. } if !is_url(url) => return Err(Error::internal(no_url(&name))),
                Ask::Sampling(params) => {
                    params.check().map_err(|reason| {
                        Error::internal(format!("{name:?} cannot be asked of a model: {reason}"))
                    })?;
                    params.keep_to(env.capabilities);
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
            let mut key = Key {
                scope: None,
                kind: kind.into(),
                name,
                ordinal: 0,
            };
            let before = self.entries.iter().filter(|e| e.key.same_name(&key));
            key.ordinal = before.count() as u32 + 1;
            asks.push((key.name.to_string(), ask));
            asked.push(Asked {
                wire_key: key.name.as_ref().into(),
                key,
                fingerprint,
            });
        }
        self.own_state = reply.state;
        if self.publishes() {
            self.ended = true;
            let now = env.source.now();
            return Ok(Event::Write(
                self.write_explicit(flow, now, asked, asks).into(),
            ));
        }
        Ok(Event::Cut(self.set_down(flow, asks, asked)))
    }

    fn set_down(&mut self, flow: FlowId, asks: Vec<(String, Ask)>, asked: Vec<Asked>) -> Cut {
        self.ended = true;
        let shed = asks.is_empty() && self.shedding;
        let mut entries = std::mem::take(&mut self.entries);
        entries.retain(|entry| !entry.void);
        Cut {
            asks,
            shed,
            snapshot: Snapshot {
                flow,
                round: self.round + 1,
                sheds: self.sheds + u32::from(shed),
                deadline: self.deadline,
                asked,
                entries,
                retries: std::mem::take(&mut self.retries),
                saved: std::mem::take(&mut self.saved),
                state: self.own_state.take(),
                trace: self.trace,
                used: Vec::new(),
            },
        }
    }
}
