//! The story of a task that outlives its instance.

use super::{Story, form};
use crate::AppError;
use crate::demo::caller::{DemoDialogue, DemoTaskReply};
use crate::demo::fleet::InstanceSpec;
use crate::demo::world::World;
use serde_json::json;
use std::time::Duration;

/// The duration of the step in which the instance is killed.
const STEP_MS: u64 = 2500;
/// The poll interval of the client, which is that of the tool.
const POLL: Duration = Duration::from_millis(100);
/// Short leases for the demo, but long enough for a busy machine.
const SETTINGS: &str = "[tasks]\nlease_ms = 2500\nlook_ms = 50\n";

pub(super) const STORIES: [Story; 1] = [Story {
    name: "task",
    help: "A task whose instance is killed while it runs",
    title: "The echo as a task",
    text: "The call becomes a task in a store, so that the client need not wait. Any instance can \
               deliver its asks and answers, and another one continues it after a crash.",
    play: |world| Box::pin(killed_in_a_step(world)),
}];

async fn killed_in_a_step(world: &mut World) -> Result<(), AppError> {
    let before = world.effects_since(0)?.len();
    let config = world.write("tasks.toml", SETTINGS)?;
    let store = world.dir.path().join("tasks.db");
    let spec = |name| InstanceSpec {
        config: Some(config.clone()),
        store: format!("sqlite:{}", store.display()),
        ..InstanceSpec::new(name)
    };
    world.fleet.start([spec("d"), spec("e")]).await?;
    world.note("two more instances start, d and e, which share a store: a SQLite file")?;

    world.forward_to(&["d"])?;
    let mut task = DemoDialogue::new(&world.alice, "echo_task", &json!({"pause_ms": STEP_MS}));
    let made = task.task(&[]).await?;
    world.printer.task(&task, &made, true)?;

    world.forward_to(&["e"])?;
    let asks = poll_until(world, &mut task, "input_required").await?;
    let script = [("echo_input", form(&json!({"input": "Hello World!"})))];
    let answered = task.task(&script).await?;
    world.printer.task(&task, &answered, false)?;

    let process = first_attempt(world, before).await?;
    let running = world.fleet.instances.iter();
    let mut running = running.filter(|instance| instance.process == process);
    let killed = running.next().map(|instance| instance.spec.name);
    let killed = killed.ok_or("the step runs in a process outside the fleet")?;
    let other = if killed == "d" { "e" } else { "d" };
    world.fleet.kill(killed).await?;
    let in_the_middle = effects(world, before, "done")?.is_empty();
    world.note(&format!(
        "{killed} (process {process}) is killed in the middle of the step; its lease expires soon"
    ))?;

    world.forward_to(&[other])?;
    let replies = poll_until(world, &mut task, "completed").await?;
    let survivor = world.fleet.get(other)?.process;
    let lines = world.effects_since(before)?;
    for line in &lines {
        world.note(&format!("ledger: {line}"))?;
    }

    let asked = |reply: &DemoTaskReply| reply.asks.keys().eq(["echo_input"]);
    let is_created = made.instance() == "d" && made.has_status("working");
    let asks = asks
        .last()
        .is_some_and(|reply| reply.instance() == "e" && asked(reply));
    world.claim(
        "A task created on one instance asks through another",
        is_created && asks,
    )?;
    let attempts = effects(world, before, "attempt")?;
    let processes: Vec<&str> = attempts.iter().filter_map(last).collect();
    let both = processes == [process.to_string(), survivor.to_string()];
    world.claim(
        "After the crash, the other instance continues the task",
        in_the_middle && both,
    )?;
    let done = effects(world, before, "done")?;
    let keys = || attempts.iter().chain(&done).map(|(key, _)| key);
    let one_key = keys().all(|key| *key == attempts[0].0);
    let once = done.len() == 1 && done[0].1 == "echo Hello World!";
    world.claim(
        "The step has two attempts, one key and one effect",
        one_key && once,
    )?;
    let again = replies.iter().any(|reply| !reply.asks.is_empty());
    let text = replies.last().and_then(|reply| reply.text.as_deref());
    let right = !again && text == Some("Echo: Hello World!");
    world.claim("Nothing is asked twice, and the result is correct", right)?;
    world.fleet.kill(other).await?;
    Ok(())
}

/// Polls a task until it has this status, and prints the last reply.
async fn poll_until(
    world: &mut World,
    task: &mut DemoDialogue,
    status: &str,
) -> Result<Vec<DemoTaskReply>, AppError> {
    let mut replies = Vec::new();
    loop {
        let reply = task.task(&[]).await?;
        let is_reached = reply.has_status(status);
        let has_failed = reply.has_status("failed") || reply.has_status("cancelled");
        if is_reached || has_failed {
            world.printer.task(task, &reply, false)?;
        }
        replies.push(reply);
        if is_reached {
            return Ok(replies);
        }
        if has_failed {
            return Err("the task failed or was cancelled".into());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Waits for the first attempt of the step, and returns its process.
async fn first_attempt(world: &World, before: usize) -> Result<u32, AppError> {
    loop {
        let attempts = effects(world, before, "attempt")?;
        if let Some(process) = attempts.first().and_then(last) {
            return Ok(process.parse()?);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The effects of one kind in the ledger: `KIND KEY REST`.
fn effects(world: &World, before: usize, kind: &str) -> Result<Vec<(String, String)>, AppError> {
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
