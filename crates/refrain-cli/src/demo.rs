//! `refrain demo`: a fleet on this machine plays the documents' stories, and says what held.
//!
//! Everything is real: three instances as processes of their own, a round-robin balancer before them, a client that
//! loops on `input_required`. Whatever happens, the processes are ended and the files removed.

mod balancer;
mod client;
mod events;
mod files;
mod fleet;
mod print;
mod stories;
mod task;
mod world;

use crate::{Failure, runtime};
use clap::Args;
use print::Stage;
use std::process::ExitCode;
use std::time::Duration;
use stories::Story;
use tokio::signal::unix::{SignalKind, signal};
use world::World;

/// What shells expect of a process that was interrupted.
const INTERRUPTED: u8 = 130;
/// More than any story needs, so that a demo ends on a slow machine too.
const STORY_TIME: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Args)]
pub(crate) struct Options {
    /// Print one JSON object a line: every round, every claim, and the final table.
    #[arg(long)]
    json: bool,
    /// Play only this story.
    #[arg(long, value_name = "NAME")]
    story: Option<Story>,
}

pub(crate) fn run(options: Options) -> Result<ExitCode, Failure> {
    let Options { json, story } = options;
    let stage = Stage::new(json);
    let stories = match story {
        Some(story) => vec![story],
        None => Story::ALL.to_vec(),
    };
    runtime()?.block_on(async {
        let stopped = told_to_stop()?;
        // When told to stop, what plays is dropped, and with it every process and file it has.
        tokio::select! {
            done = play(stage, &stories) => done,
            () = stopped => {
                anstream::eprintln!("refrain: the demo was stopped; its instances are ended");
                Ok(ExitCode::from(INTERRUPTED))
            }
        }
    })
}

async fn play(stage: Stage, stories: &[Story]) -> Result<ExitCode, Failure> {
    let mut world = World::start(stage).await?;
    for story in stories {
        world.begin(*story).await?;
        let played = tokio::time::timeout(STORY_TIME, story.play(&mut world)).await;
        let problem = match played {
            Ok(Ok(())) => continue,
            Ok(Err(problem)) => problem.to_string(),
            Err(_) => format!("it was not over after {} seconds", STORY_TIME.as_secs()),
        };
        world.broke(&problem)?;
    }
    let held = world.end().await?;
    Ok(if held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Done when the process is asked to end. A closed terminal counts: instances take its signal for another.
fn told_to_stop() -> Result<impl Future<Output = ()>, Failure> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}
