//! Tools that become tasks, for clients that support tasks.
//!
//! Each step records its attempt and its process in the ledger, and then its effect, under the same key.

use super::ledger::Ledger;
use super::proposals::{echo_text, link_accounts_v1, link_accounts_v2};
use refrain::prelude::*;
use std::time::Duration;

/// The poll interval of the echo in the proposals that became MCP 2026-07-28.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The lifetime of `echo_task`.
const ECHO_TTL: Duration = Duration::from_secs(60);
/// The number of parts of a virtual machine's disk.
const PARTS: u32 = 5;

/// A slow effect that must happen once: records its attempt and its completion under one key.
async fn effect(cx: &Cx, ledger: &Ledger, name: &str, item: &str, pause_ms: u64) -> Result<String> {
    cx.step_with_key(name.to_owned(), async |key| {
        ledger.record(&format!("attempt {key} {name} {}", std::process::id()))?;
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        ledger.record(&format!("done {key} {name} {item}"))?;
        ok(key)
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
struct EchoTask {
    /// The text to echo; asked for if missing.
    text: Option<String>,
    /// Milliseconds to spend on the echo.
    #[serde(default)]
    #[schemars(range(max = 60_000))]
    pause_ms: u64,
}

/// Echoes a text as a task; asks for the text if missing.
#[tool(task, name = "echo_task")]
async fn echo(cx: Cx, ledger: State<Ledger>, args: EchoTask) -> Result<String> {
    cx.status("Task has been created for echo tool invocation.");
    let text = echo_text(&cx, args.text).await?;
    cx.status("Echoing the input.");
    effect(&cx, &ledger, "echo", &text, args.pause_ms).await?;
    cx.status("Task has been completed successfully.");
    Ok(format!("Echo: {text}"))
}

pub(super) fn echo_task() -> Tool {
    echo().poll_interval(POLL_INTERVAL).task_ttl(ECHO_TTL)
}

#[derive(Deserialize, JsonSchema)]
struct CreateVm {
    /// The name of the machine.
    name: String,
    /// Milliseconds to spend on each step.
    #[serde(default)]
    #[schemars(range(max = 60_000))]
    pause_ms: u64,
}

#[derive(Deserialize, Elicit)]
struct MachineSize {
    /// Processors of the machine
    processors: u32,
}

/// Asks for the size of a virtual machine, then creates and starts it as a task.
#[tool(detaches)]
pub(super) async fn create_vm(cx: Cx, ledger: State<Ledger>, args: CreateVm) -> Result<String> {
    let name = &args.name;
    let question = format!("How many processors should {name} have?");
    let MachineSize { processors } = cx.elicit("size", question).await?;
    cx.detach().await?;
    for (step, status) in [("make", "Making"), ("start", "Starting")] {
        cx.status(format!("{status} {name}."));
        effect(&cx, &ledger, step, name, args.pause_ms).await?;
    }
    Ok(format!("{name} runs, with {processors} processors."))
}

#[derive(Deserialize, JsonSchema)]
struct MoveVm {
    /// The name of the machine.
    name: String,
    /// Milliseconds to spend on each part of its disk.
    #[serde(default)]
    #[schemars(range(max = 60_000))]
    pause_ms: u64,
}

#[derive(Deserialize, Elicit)]
struct Switch {
    /// Switch over to the copy?
    switch: bool,
}

/// Copies the disk of a virtual machine to another host, and meanwhile asks whether to switch over.
#[tool(task)]
pub(super) async fn move_vm(cx: Cx, ledger: State<Ledger>, args: MoveVm) -> Result<String> {
    let name = &args.name;
    let question = format!("Shall {name} run on the other host once it is copied?");
    let copy = async {
        for part in 1..=PARTS {
            cx.status(format!("Copying part {part} of {PARTS}."));
            let step = format!("copy_{part}");
            effect(&cx, &ledger, &step, name, args.pause_ms).await?;
        }
        cx.status("All parts are copied.");
        ok(())
    };
    let ask = async { Ok(cx.elicit::<Switch>("switch_over", question).await?) };
    let ((), Switch { switch }) = tokio::try_join!(copy, ask)?;
    if !switch {
        return Ok(format!("{name} is copied, and runs where it was."));
    }
    effect(&cx, &ledger, "switch", name, args.pause_ms).await?;
    Ok(format!("{name} runs on the other host."))
}

#[derive(Deserialize, JsonSchema)]
struct PrintPoster {
    /// The title of the poster.
    title: String,
    /// Milliseconds to spend on the print.
    #[serde(default)]
    #[schemars(range(max = 60_000))]
    pause_ms: u64,
}

#[derive(Deserialize, Elicit)]
struct PrintCheck {
    /// Is the print good?
    good: bool,
}

/// Prints a poster as a task, then asks whether the print is good. A live tool: it needs no steps, and never runs twice.
#[tool(live, task)]
pub(super) async fn print_poster(
    cx: Cx,
    ledger: State<Ledger>,
    args: PrintPoster,
) -> Result<String> {
    let (title, key) = (&args.title, format!("{:016x}", cx.random()));
    ledger.record(&format!("attempt {key} print {}", std::process::id()))?;
    tokio::time::sleep(Duration::from_millis(args.pause_ms)).await;
    ledger.record(&format!("done {key} print {title}"))?;
    let PrintCheck { good } = cx.elicit("check", "Is the print good?").await?;
    Ok(match good {
        true => format!("The poster {title:?} is printed."),
        false => format!("The poster {title:?} is thrown away."),
    })
}

/// Version 1: GitHub and Google.
#[tool(
    task,
    name = "accounts_task",
    version = "1",
    description = "Links the accounts of the caller, as a task."
)]
pub(super) async fn accounts_task_v1(cx: Cx) -> Result<String> {
    link_accounts_v1(&cx).await
}

/// Version 2: GitHub and Microsoft.
#[tool(
    task,
    name = "accounts_task",
    version = "2",
    description = "Links the accounts of the caller, as a task."
)]
pub(super) async fn accounts_task_v2(cx: Cx) -> Result<String> {
    link_accounts_v2(&cx).await
}
