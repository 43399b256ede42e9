//! The surroundings of a story: the fleet, the balancer, two callers and the printed events.

use super::balancer::Balancer;
use super::client::{Caller, Dialogue, Outcome, Round, Script};
use super::fleet::{Fleet, Recipe};
use super::print::Stage;
use super::stories::Story;
use crate::Failure;
use refrain::runtime::{Source, SystemSource};
use refrain::server::KeyRing;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Instant;
use tempfile::TempDir;

/// The instances that every story begins with.
const STANDING: [&str; 3] = ["a", "b", "c"];

pub(super) struct World {
    pub(super) alice: Caller,
    pub(super) bob: Caller,
    pub(super) balancer: Balancer,
    pub(super) fleet: Fleet,
    pub(super) stage: Stage,
    began: Instant,
    // Dropped last: the processes use these.
    pub(super) dir: TempDir,
}

impl World {
    pub(super) async fn start(mut stage: Stage) -> Result<Self, Failure> {
        let began = Instant::now();
        let mut dir = tempfile::Builder::new();
        // It contains a key.
        dir.permissions(Permissions::from_mode(0o700));
        let dir = dir.prefix("refrain-demo-").tempdir().map_err(|error| {
            format!("the directory cannot be made: {error}; $TMPDIR chooses another place")
        })?;
        let balancer = Balancer::start().await?;
        let (alice, bob) = (secret(), secret());
        let tokens = format!("alice {alice}\nbob {bob}\n");
        let keys = KeyRing::generate(&SystemSource::new());
        let mut fleet = Fleet {
            keys: write(&dir, "keys", &keys.to_text())?,
            tokens: write(&dir, "tokens", &tokens)?,
            ledger: write(&dir, "ledger", "")?,
            instances: Vec::new(),
        };
        fleet.start(STANDING.map(recipe)).await?;
        balancer.hand_to(fleet.members(&STANDING)?);
        stage.fleet(&fleet.instances, &balancer)?;
        Ok(Self {
            alice: Caller::connect("alice", &alice, &balancer, None).await?,
            bob: Caller::connect("bob", &bob, &balancer, None).await?,
            balancer,
            fleet,
            stage,
            began,
            dir,
        })
    }

    /// Writes a file and returns its path.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        write(&self.dir, name, text)
    }

    /// Begins a story: the three instances run, and it is the first one's turn.
    pub(super) async fn begin(&mut self, story: Story) -> Result<(), Failure> {
        self.stage.story(story)?;
        self.fleet.forget_ended();
        let mut missing = Vec::from(STANDING);
        missing.retain(|name| self.fleet.get(name).is_err());
        self.fleet.start(missing.into_iter().map(recipe)).await?;
        self.hand_to(&STANDING)
    }

    /// Has the balancer hand requests to these instances, in this order.
    pub(super) fn hand_to(&mut self, names: &[&'static str]) -> Result<(), Failure> {
        self.balancer.hand_to(self.fleet.members(names)?);
        Ok(())
    }

    pub(super) async fn round(
        &mut self,
        dialogue: &mut Dialogue,
        script: Script<'_>,
    ) -> Result<Round, Failure> {
        let round = dialogue.next(script).await?;
        self.stage.round(dialogue, None, &round)?;
        Ok(round)
    }

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

    pub(super) fn note(&mut self, note: &str) -> Result<(), Failure> {
        Ok(self.stage.note(note)?)
    }

    pub(super) fn claim(&mut self, claim: &'static str, held: bool) -> Result<(), Failure> {
        Ok(self.stage.claim(claim, held)?)
    }

    /// The lines of the ledger after the first `before`: the effects of the tools.
    pub(super) fn effects_since(&self, before: usize) -> Result<Vec<String>, Failure> {
        let file = &self.fleet.ledger;
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("the ledger {} cannot be read: {error}", file.display()))?;
        Ok(text.lines().skip(before).map(str::to_owned).collect())
    }

    pub(super) fn broke(&mut self, problem: &str) -> Result<(), Failure> {
        Ok(self.stage.broke(problem, &self.fleet.instances)?)
    }

    /// Ends the fleet and prints the table. True if every claim held.
    pub(super) async fn end(mut self) -> Result<bool, Failure> {
        self.fleet.end().await?;
        self.dir
            .close()
            .map_err(|error| format!("the files cannot be removed: {error}"))?;
        Ok(self.stage.table(self.began.elapsed().as_secs_f64())?)
    }
}

fn write(dir: &TempDir, name: &str, text: &str) -> Result<PathBuf, Failure> {
    let file = dir.path().join(name);
    std::fs::write(&file, text)
        .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
    Ok(file)
}

/// A new bearer token.
fn secret() -> String {
    let mut random = [0; 16];
    SystemSource::new().fill(&mut random);
    random.map(|byte| format!("{byte:02x}")).concat()
}

/// One of the three runs a newer version of a tool.
fn recipe(name: &'static str) -> Recipe {
    Recipe {
        accounts: if name == "c" { 2 } else { 1 },
        ..Recipe::new(name)
    }
}
