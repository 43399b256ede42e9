//! The story of a call that outlives its instance: a task.

use super::form;
use crate::Failure;
use crate::demo::client::{Dialogue, Look};
use crate::demo::fleet::Recipe;
use crate::demo::world::World;
use serde_json::json;
use std::time::Duration;

/// How long the step takes, in the middle of which the instance is killed.
const STEP_MS: u64 = 2500;
/// The client's poll interval, that of the tool.
const POLL: Duration = Duration::from_millis(100);
/// Leases that are short for the demo, and long enough for a busy machine.
const SETTINGS: &str = "[tasks]\nlease_ms = 2500\nlook_ms = 50\n";

pub(super) async fn task(world: &mut World) -> Result<(), Failure> {
    let before = world.effects_since(0)?.len();
    let config = world.write("tasks.toml", SETTINGS)?;
    let store = world.dir.path().join("tasks.db");
    let recipe = |name| Recipe {
        config: Some(config.clone()),
        store: format!("sqlite:{}", store.display()),
        ..Recipe::new(name)
    };
    world.fleet.start([recipe("d"), recipe("e")]).await?;
    world.note("two more instances join, d and e, which share a store: one file of SQLite")?;

    world.hand_to(&["d"])?;
    let mut task = Dialogue::new(&world.alice, "echo_task", &json!({"pause_ms": STEP_MS}));
    let made = task.look(&[]).await?;
    world.stage.task(&task, &made, true)?;

    world.hand_to(&["e"])?;
    let asks = until(world, &mut task, "input_required").await?;
    let script = [("echo_input", form(&json!({"input": "Hello World!"})))];
    let answered = task.look(&script).await?;
    world.stage.task(&task, &answered, false)?;

    let process = attempted(world, before).await?;
    let running = world.fleet.instances.iter();
    let mut running = running.filter(|instance| instance.process == process);
    let killed = running.next().map(|instance| instance.recipe.name);
    let killed = killed.ok_or("the step was begun by a process outside the fleet")?;
    let other = if killed == "d" { "e" } else { "d" };
    world.fleet.kill(killed).await?;
    let in_the_middle = effects(world, before, "done")?.is_empty();
    world.note(&format!(
        "{killed} (process {process}) is killed in the middle of the step; its lease runs out soon"
    ))?;

    world.hand_to(&[other])?;
    let looks = until(world, &mut task, "completed").await?;
    let survivor = world.fleet.get(other)?.process;
    let lines = world.effects_since(before)?;
    for line in &lines {
        world.note(&format!("ledger: {line}"))?;
    }

    let asked = |look: &Look| look.asks.keys().eq(["echo_input"]);
    let there = made.instance() == "d" && made.has_status("working");
    let asks = asks
        .last()
        .is_some_and(|look| look.instance() == "e" && asked(look));
    world.claim(
        "A task made on one instance asks through another",
        there && asks,
    )?;
    let attempts = effects(world, before, "attempt")?;
    let processes: Vec<&str> = attempts.iter().filter_map(last).collect();
    let both = processes == [process.to_string(), survivor.to_string()];
    world.claim(
        "Killed in a step, its work is taken up by the other",
        in_the_middle && both,
    )?;
    let done = effects(world, before, "done")?;
    let keys = || attempts.iter().chain(&done).map(|(key, _)| key);
    let one_key = keys().all(|key| *key == attempts[0].0);
    let once = done.len() == 1 && done[0].1 == "echo Hello World!";
    world.claim(
        "Two attempts under one key, and one effect",
        one_key && once,
    )?;
    let again = looks.iter().any(|look| !look.asks.is_empty());
    let text = looks.last().and_then(|look| look.text.as_deref());
    let right = !again && text == Some("Echo: Hello World!");
    world.claim("Nothing is asked twice, and the echo is right", right)?;
    world.fleet.kill(other).await?;
    Ok(())
}

/// Polls a task until it has this status, and prints the last reply.
async fn until(world: &mut World, task: &mut Dialogue, status: &str) -> Result<Vec<Look>, Failure> {
    let mut looks = Vec::new();
    loop {
        let look = task.look(&[]).await?;
        let so = look.has_status(status);
        let over = look.has_status("failed") || look.has_status("cancelled");
        if so || over {
            world.stage.task(task, &look, false)?;
        }
        looks.push(look);
        if so {
            return Ok(looks);
        }
        if over {
            return Err("the task came to nothing".into());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Waits until the step is attempted. Returns the process that attempts it.
async fn attempted(world: &World, before: usize) -> Result<u32, Failure> {
    loop {
        let attempts = effects(world, before, "attempt")?;
        if let Some(process) = attempts.first().and_then(last) {
            return Ok(process.parse()?);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The effects of one kind in the ledger: `KIND KEY REST`.
fn effects(world: &World, before: usize, kind: &str) -> Result<Vec<(String, String)>, Failure> {
    let lines = world.effects_since(before)?;
    let parse = |line: &String| {
        let (word, rest) = line.split_once(' ')?;
        let (key, rest) = rest.split_once(' ')?;
        (word == kind).then(|| (key.to_owned(), rest.to_owned()))
    };
    Ok(lines.iter().filter_map(parse).collect())
}

fn last(effect: &(String, String)) -> Option<&str> {
    effect.1.split(' ').next_back()
}
