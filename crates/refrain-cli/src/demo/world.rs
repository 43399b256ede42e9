//! What a story plays in: the fleet, the balancer, two callers, and somebody who tells it.

use super::balancer::Balancer;
use super::client::{Call, Caller, Dialogue, Outcome, Round, Script};
use super::events::{Event, InstanceLog, Row, Started};
use super::files::{Files, read_ledger};
use super::fleet::{Fleet, Instance, Recipe};
use super::print::Stage;
use super::stories::Story;
use super::task::Look;
use crate::Failure;
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Instant;

/// The instances that every story begins with.
const STANDING: [&str; 3] = ["a", "b", "c"];

pub(super) struct World {
    pub(super) alice: Caller,
    pub(super) bob: Caller,
    pub(super) balancer: Balancer,
    pub(super) fleet: Fleet,
    stage: Stage,
    story: Story,
    rows: Vec<Row>,
    begun: Instant,
    // Dropped last: the processes use these.
    pub(super) files: Files,
}

impl World {
    pub(super) async fn start(stage: Stage) -> Result<Self, Failure> {
        let begun = Instant::now();
        let files = Files::make()?;
        let mut balancer = Balancer::start().await?;
        let (alice, bob) = (files.secret(), files.secret());
        let tokens = format!("alice {alice}\nbob {bob}\n");
        let mut fleet = Fleet {
            keys: files.write_keys()?,
            tokens: files.write("tokens", &tokens)?,
            ledger: files.write("ledger", "")?,
            instances: Vec::new(),
        };
        fleet.start(STANDING.map(recipe)).await?;
        balancer.hand_to(members(&mut fleet, &STANDING)?).await?;
        let mut world = Self {
            alice: Caller::connect("alice", &alice, &balancer).await?,
            bob: Caller::connect("bob", &bob, &balancer).await?,
            balancer,
            fleet,
            stage,
            story: Story::Weather,
            rows: Vec::new(),
            begun,
            files,
        };
        let instances = world.fleet.instances.iter().map(started).collect();
        let balancer = world.balancer.address();
        world.stage.tell(&Event::Fleet {
            instances,
            balancer,
        })?;
        Ok(world)
    }

    /// Sets the stage for a story: the three instances run, and it is the first one's turn.
    pub(super) async fn begin(&mut self, story: Story) -> Result<(), Failure> {
        self.story = story;
        self.stage.tell(&Event::Story {
            story: story.name(),
            number: story.number(),
            title: story.title(),
            watch: story.watch(),
        })?;
        self.fleet
            .instances
            .retain_mut(|instance| !instance.is_gone());
        let missing: Vec<Recipe> = STANDING
            .into_iter()
            .filter(|name| self.fleet.get(name).is_err())
            .map(recipe)
            .collect();
        self.fleet.start(missing).await?;
        self.hand_to(&STANDING).await
    }

    /// Has the balancer hand requests to these instances, in this order.
    pub(super) async fn hand_to(&mut self, names: &[&'static str]) -> Result<(), Failure> {
        let members = members(&mut self.fleet, names)?;
        self.balancer.hand_to(members).await
    }

    /// Plays one round of a call.
    pub(super) async fn round(
        &mut self,
        dialogue: &mut Dialogue,
        script: Script<'_>,
    ) -> Result<Round, Failure> {
        let round = dialogue.next(script).await?;
        self.tell_round(dialogue, None, &round)?;
        Ok(round)
    }

    /// Plays the rounds of a call until it is over.
    pub(super) async fn play(
        &mut self,
        dialogue: &mut Dialogue,
        script: Script<'_>,
    ) -> Result<Vec<Round>, Failure> {
        let mut rounds = Vec::new();
        loop {
            let round = self.round(dialogue, script).await?;
            let over = !matches!(round.outcome, Outcome::Incomplete { .. });
            rounds.push(round);
            if over {
                return Ok(rounds);
            }
        }
    }

    /// Tells of a round. `attempt` says what is special about its token.
    pub(super) fn tell_round(
        &mut self,
        dialogue: &Dialogue,
        attempt: Option<&str>,
        round: &Round,
    ) -> Result<(), Failure> {
        let arguments: &Value = &dialogue.call.arguments;
        self.stage.tell(&Event::Round {
            story: self.story.name(),
            principal: dialogue.caller.principal,
            tool: dialogue.call.tool,
            arguments,
            attempt,
            round,
        })
    }

    /// Tells of a request about a task. `call` is the one that has just become it.
    pub(super) fn tell_task(&mut self, look: &Look, call: Option<&Call>) -> Result<(), Failure> {
        self.stage.tell(&Event::Task {
            story: self.story.name(),
            principal: self.alice.principal,
            call,
            look,
        })
    }

    pub(super) fn note(&mut self, note: &str) -> Result<(), Failure> {
        let story = self.story.name();
        self.stage.tell(&Event::Note { story, note })
    }

    /// Says whether a claim held.
    pub(super) fn claim(&mut self, claim: impl Into<String>, held: bool) -> Result<(), Failure> {
        let row = Row {
            story: self.story.name(),
            title: self.story.title(),
            claim: claim.into(),
            held,
        };
        self.stage.tell(&Event::Claim { row: &row })?;
        self.rows.push(row);
        Ok(())
    }

    /// The effects that the tools have had since there were `before` of them.
    pub(super) fn effects_since(&self, before: usize) -> Result<Vec<String>, Failure> {
        Ok(read_ledger(&self.fleet.ledger)?.split_off(before))
    }

    /// The story could not go on.
    pub(super) fn broke(&mut self, problem: &str) -> Result<(), Failure> {
        let logs = self.fleet.instances.iter().map(|instance| InstanceLog {
            name: instance.recipe.name,
            lines: instance.log(),
        });
        self.stage.tell(&Event::Broke {
            story: self.story.name(),
            problem,
            logs: logs.collect(),
        })?;
        self.claim("The story is played to its end", false)
    }

    /// Ends the fleet, and says what held. Did everything?
    pub(super) async fn end(mut self) -> Result<bool, Failure> {
        self.fleet.end().await?;
        let held = !self.rows.is_empty() && self.rows.iter().all(|row| row.held);
        self.stage.tell(&Event::Table {
            held,
            seconds: self.begun.elapsed().as_secs_f64(),
            rows: &self.rows,
        })?;
        Ok(held)
    }
}

/// The addresses of these instances.
fn members(
    fleet: &mut Fleet,
    names: &[&'static str],
) -> Result<Vec<(&'static str, SocketAddr)>, Failure> {
    let member = |name: &&'static str| Ok((*name, fleet.address(name)?));
    names.iter().map(member).collect()
}

/// One of the three runs a newer version of a tool.
fn recipe(name: &'static str) -> Recipe {
    let accounts = if name == "c" { 2 } else { 1 };
    Recipe::new(name).with_accounts(accounts)
}

fn started(instance: &Instance) -> Started {
    Started {
        name: instance.recipe.name,
        process: instance.process,
        address: instance.address,
        accounts: instance.recipe.accounts,
    }
}
