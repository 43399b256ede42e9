//! `refrain demo`: a fleet on this machine plays stories, and prints which claims held.
//!
//! Everything is real: three instances in separate processes, a round-robin balancer, and a client. On every path the
//! processes are ended and the files removed.

mod balancer;
mod client;
mod fleet;
mod print;
mod stories;
mod world;

use crate::{Failure, runtime};
use clap::{Args, ValueEnum};
use print::Stage;
use std::io;
use std::process::ExitCode;
use std::time::Duration;
use stories::Story;
use tokio::signal::unix::{SignalKind, signal};
use world::World;

/// The exit code of an interrupted process.
const INTERRUPTED: u8 = 130;
/// More than any story needs on a slow machine.
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
    let all = Story::value_variants();
    let stories = all
        .iter()
        .filter(|other| story.is_none_or(|story| story == **other));
    runtime()?.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        // A closed terminal ends the demo: instances take its signal for a reload.
        let mut hangup = signal(SignalKind::hangup())?;
        tokio::select! {
            done = play(stage, stories) => return done.map_err(|error| match error.is::<io::Error>() {
                true => format!("standard output cannot be written: {error}").into(),
                false => error,
            }),
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        // `play` was dropped, and with it every process and file.
        anstream::eprintln!("refrain: the demo was stopped; its instances are ended");
        Ok(ExitCode::from(INTERRUPTED))
    })
}

async fn play(stage: Stage, stories: impl Iterator<Item = &Story>) -> Result<ExitCode, Failure> {
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
    Ok(match world.end().await? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
