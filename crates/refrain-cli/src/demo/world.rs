//! The surroundings of a story: the fleet, the balancer, two callers and the printed events.

use super::balancer::Balancer;
use super::client::{Caller, Dialogue, Outcome, Round, Script};
use super::events::{Event, InstanceLog, Row, Started};
use super::files::{Files, random};
use super::fleet::{Fleet, Recipe};
use super::print::Stage;
use super::stories::Story;
use super::task::Look;
use crate::Failure;
use refrain::runtime::SystemSource;
use refrain::server::KeyRing;
use refrain_client::Call;
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
        let files = Files::create()?;
        let balancer = Balancer::start().await?;
        let (alice, bob) = (random(16), random(16));
        let tokens = format!("alice {alice}\nbob {bob}\n");
        let keys = KeyRing::generate(&SystemSource::new());
        let mut fleet = Fleet {
            keys: files.write("keys", &keys.to_text())?,
            tokens: files.write("tokens", &tokens)?,
            ledger: files.write("ledger", "")?,
            instances: Vec::new(),
        };
        fleet.start(STANDING.map(recipe)).await?;
        hand_to(&balancer, &mut fleet, &STANDING)?;
        let mut world = Self {
            alice: Caller::connect("alice", &alice, &balancer, None).await?,
            bob: Caller::connect("bob", &bob, &balancer, None).await?,
            balancer,
            fleet,
            stage,
            story: Story::Weather,
            rows: Vec::new(),
            begun,
            files,
        };
        let instances = world.fleet.instances.iter().map(|instance| Started {
            name: instance.recipe.name,
            process: instance.process,
            address: instance.address,
            accounts: instance.recipe.accounts,
        });
        world.stage.tell(&Event::Fleet {
            instances: instances.collect(),
            balancer: world.balancer.address,
        })?;
        Ok(world)
    }

    /// Begins a story: the three instances run, and it is the first one's turn.
    pub(super) async fn begin(&mut self, story: Story) -> Result<(), Failure> {
        self.story = story;
        let (title, watch) = story.text();
        self.stage.tell(&Event::Story {
            story,
            number: story.number(),
            title,
            watch,
        })?;
        self.fleet.forget_ended();
        let mut missing = Vec::from(STANDING);
        missing.retain(|name| self.fleet.get(name).is_err());
        self.fleet.start(missing.into_iter().map(recipe)).await?;
        self.hand_to(&STANDING)
    }

    /// Has the balancer hand requests to these instances, in this order.
    pub(super) fn hand_to(&mut self, names: &[&'static str]) -> Result<(), Failure> {
        hand_to(&self.balancer, &mut self.fleet, names)
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

    /// Prints a round. `attempt` describes its token, where something is wrong with it.
    pub(super) fn tell_round(
        &mut self,
        dialogue: &Dialogue,
        attempt: Option<&str>,
        round: &Round,
    ) -> Result<(), Failure> {
        let call = dialogue.pending.call();
        self.stage.tell(&Event::Round {
            story: self.story,
            principal: dialogue.caller.principal,
            tool: call.target(),
            arguments: call.arguments(),
            attempt,
            round,
        })
    }

    /// Prints a request about a task. `call` is the one that has just become it.
    pub(super) fn tell_task(&mut self, look: &Look, call: Option<&Call>) -> Result<(), Failure> {
        self.stage.tell(&Event::Task {
            story: self.story,
            principal: self.alice.principal,
            call,
            look,
        })
    }

    pub(super) fn note(&mut self, note: &str) -> Result<(), Failure> {
        let story = self.story;
        self.stage.tell(&Event::Note { story, note })
    }

    /// Records whether a claim held.
    pub(super) fn claim(&mut self, claim: &'static str, held: bool) -> Result<(), Failure> {
        let row = Row {
            story: self.story,
            claim,
            held,
        };
        self.stage.tell(&Event::Claim { row: &row })?;
        self.rows.push(row);
        Ok(())
    }

    /// The lines of the ledger after the first `before`: the effects of the tools.
    pub(super) fn effects_since(&self, before: usize) -> Result<Vec<String>, Failure> {
        let file = &self.fleet.ledger;
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("the ledger {} cannot be read: {error}", file.display()))?;
        Ok(text.lines().skip(before).map(str::to_owned).collect())
    }

    /// The story could not go on.
    pub(super) fn broke(&mut self, problem: &str) -> Result<(), Failure> {
        let logs = self.fleet.instances.iter().map(|instance| InstanceLog {
            name: instance.recipe.name,
            lines: instance.log(),
        });
        self.stage.tell(&Event::Broke {
            story: self.story,
            problem,
            logs: logs.collect(),
        })?;
        self.claim("The story is played to its end", false)
    }

    /// Ends the fleet and prints the table. True if every claim held.
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

fn hand_to(balancer: &Balancer, fleet: &mut Fleet, names: &[&'static str]) -> Result<(), Failure> {
    let member = |name: &&'static str| Ok((*name, fleet.address(name)?));
    let members = names.iter().map(member).collect::<Result<_, Failure>>()?;
    balancer.hand_to(members);
    Ok(())
}

/// One of the three runs a newer version of a tool.
fn recipe(name: &'static str) -> Recipe {
    Recipe {
        accounts: if name == "c" { 2 } else { 1 },
        ..Recipe::new(name)
    }
}
