//! The environment of a story: the fleet, the balancer, two callers and the printer.

use super::balancer::DemoBalancer;
use super::caller::{DemoCaller, DemoDialogue, DemoRound, DemoScript, RoundReply};
use super::fleet::{DemoFleet, InstanceSpec};
use super::printer::Printer;
use super::stories::Story;
use crate::AppError;
use refrain::runtime::{Source, SystemSource};
use refrain::server::KeyRing;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Instant;
use tempfile::TempDir;

const INSTANCES: [&str; 3] = ["a", "b", "c"];

pub(super) struct World {
    pub(super) alice: DemoCaller,
    pub(super) bob: DemoCaller,
    pub(super) balancer: DemoBalancer,
    pub(super) fleet: DemoFleet,
    pub(super) printer: Printer,
    started: Instant,
    // Dropped last: the processes use its files.
    pub(super) dir: TempDir,
}

impl World {
    pub(super) async fn start(
        mut printer: Printer,
        extra: Option<&'static str>,
    ) -> Result<Self, AppError> {
        let started = Instant::now();
        let mut dir = tempfile::Builder::new();
        // The directory contains a key.
        dir.permissions(Permissions::from_mode(0o700));
        let dir = dir.prefix("refrain-demo-").tempdir().map_err(|error| {
            format!("cannot create a temporary directory: {error}\nhint: set $TMPDIR to another directory")
        })?;
        let balancer = DemoBalancer::start().await?;
        let (alice, bob) = (secret(), secret());
        let tokens = format!("alice {alice}\nbob {bob}\n");
        let keys = KeyRing::generate(&SystemSource::new());
        let mut fleet = DemoFleet {
            keys: write(&dir, "keys", &keys.to_text())?,
            tokens: write(&dir, "tokens", &tokens)?,
            ledger: write(&dir, "ledger", "")?,
            extra,
            instances: Vec::new(),
        };
        fleet.start(INSTANCES.map(spec)).await?;
        balancer.forward_to(fleet.members(&INSTANCES)?);
        printer.fleet(&fleet.instances, &balancer)?;
        Ok(Self {
            alice: DemoCaller::connect("alice", &alice, &balancer).await?,
            bob: DemoCaller::connect("bob", &bob, &balancer).await?,
            balancer,
            fleet,
            printer,
            started,
            dir,
        })
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, AppError> {
        write(&self.dir, name, text)
    }

    /// Begins a story: starts missing instances, and gives the first one the next turn.
    pub(super) async fn begin(&mut self, story: &'static Story) -> Result<(), AppError> {
        self.printer.story(story)?;
        self.fleet.remove_ended();
        let mut missing = Vec::from(INSTANCES);
        missing.retain(|name| self.fleet.get(name).is_err());
        self.fleet.start(missing.into_iter().map(spec)).await?;
        self.forward_to(&INSTANCES)
    }

    /// Makes the balancer forward requests to these instances, in this order.
    pub(super) fn forward_to(&mut self, names: &[&'static str]) -> Result<(), AppError> {
        self.balancer.forward_to(self.fleet.members(names)?);
        Ok(())
    }

    pub(super) async fn round(
        &mut self,
        dialogue: &mut DemoDialogue,
        script: DemoScript<'_>,
    ) -> Result<DemoRound, AppError> {
        let round = dialogue.next(script).await?;
        self.printer.round(dialogue, None, &round)?;
        Ok(round)
    }

    pub(super) async fn play(
        &mut self,
        dialogue: &mut DemoDialogue,
        script: DemoScript<'_>,
    ) -> Result<Vec<DemoRound>, AppError> {
        let mut rounds = Vec::new();
        loop {
            let round = self.round(dialogue, script).await?;
            let is_done = !matches!(round.reply, RoundReply::Incomplete { .. });
            rounds.push(round);
            if is_done {
                return Ok(rounds);
            }
        }
    }

    pub(super) fn note(&mut self, note: &str) -> Result<(), AppError> {
        Ok(self.printer.note(note)?)
    }

    pub(super) fn claim(&mut self, claim: &'static str, held: bool) -> Result<(), AppError> {
        Ok(self.printer.claim(claim, held)?)
    }

    /// The lines of the ledger after the first `before`. Tools append their effects to it.
    pub(super) fn effects_since(&self, before: usize) -> Result<Vec<String>, AppError> {
        let file = &self.fleet.ledger;
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("cannot read ledger {}: {error}", file.display()))?;
        Ok(text.lines().skip(before).map(str::to_owned).collect())
    }

    pub(super) fn fail(&mut self, problem: &str) -> Result<(), AppError> {
        Ok(self.printer.failure(problem, &self.fleet.instances)?)
    }

    /// Stops the fleet and prints the summary. Returns true if every check passed.
    pub(super) async fn end(mut self) -> Result<bool, AppError> {
        self.fleet.end().await?;
        self.dir
            .close()
            .map_err(|error| format!("cannot remove the temporary directory: {error}"))?;
        Ok(self.printer.summary(self.started.elapsed().as_secs_f64())?)
    }
}

fn write(dir: &TempDir, name: &str, text: &str) -> Result<PathBuf, AppError> {
    let file = dir.path().join(name);
    std::fs::write(&file, text)
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    Ok(file)
}

fn secret() -> String {
    let mut random = [0; 16];
    SystemSource::new().fill(&mut random);
    random.map(|byte| format!("{byte:02x}")).concat()
}

/// Instance c has a newer version of a tool.
fn spec(name: &'static str) -> InstanceSpec {
    InstanceSpec {
        accounts: if name == "c" { 2 } else { 1 },
        ..InstanceSpec::new(name)
    }
}
