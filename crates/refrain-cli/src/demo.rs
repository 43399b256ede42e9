//! `refrain demo`: plays stories on a fleet on this machine, and prints which checks passed.
//!
//! Everything is real: three instances in separate processes, a round-robin balancer, and a client. The processes and
//! files are always removed at the end.

mod balancer;
mod caller;
mod fleet;
mod printer;
mod stories;
mod world;

use crate::{AppError, print_error, runtime};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use printer::Printer;
use std::io;
use std::process::ExitCode;
use std::time::Duration;
use stories::{ExtraStories, Story};
use tokio::signal::unix::{SignalKind, signal};
use world::World;

/// The exit code of an interrupted process.
const INTERRUPTED: u8 = 130;
/// The exit code of clap for wrong usage.
const USAGE: u8 = 2;
/// More than any story needs on a slow machine.
const STORY_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Args)]
pub(crate) struct DemoOptions {
    /// Print one JSON object per line: each round and each check as it happens, then a table of all
    /// checks.
    #[arg(long)]
    json: bool,
    /// Play only this story.
    #[arg(long, value_name = "NAME", value_parser = story_parser())]
    story: Option<&'static Story>,
    #[command(flatten)]
    extra: ExtraStories,
}

fn story_parser() -> impl TypedValueParser<Value = &'static Story> {
    let names = PossibleValuesParser::new(Story::names());
    names.try_map(|name| Story::named(&name).ok_or("unknown story"))
}

pub(crate) fn run(options: DemoOptions) -> Result<ExitCode, AppError> {
    let DemoOptions { json, story, extra } = options;
    let stories = match story {
        Some(story) if !extra.is_played(story) => {
            print_error(&format!("story {:?} requires --drafts", story.name));
            return Ok(ExitCode::from(USAGE));
        }
        Some(story) => vec![story],
        None => Story::all()
            .filter(|story| extra.is_played(story))
            .collect(),
    };
    let printer = Printer::new(json);
    runtime()?.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        // A closed terminal ends the demo too; its instances would reload their keys.
        let mut hangup = signal(SignalKind::hangup())?;
        tokio::select! {
            done = play(printer, extra, stories) => return done.map_err(|error| match error.is::<io::Error>() {
                true => format!("cannot write to standard output: {error}").into(),
                false => error,
            }),
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        // `play` was dropped, and with it every process and file.
        anstream::eprintln!("demo interrupted; its instances were stopped");
        Ok(ExitCode::from(INTERRUPTED))
    })
}

async fn play(
    printer: Printer,
    extra: ExtraStories,
    stories: Vec<&'static Story>,
) -> Result<ExitCode, AppError> {
    let mut world = World::start(printer, extra.flag()).await?;
    for story in stories {
        world.begin(story).await?;
        let played = tokio::time::timeout(STORY_TIMEOUT, (story.play)(&mut world)).await;
        let problem = match played {
            Ok(Ok(())) => continue,
            Ok(Err(problem)) => problem.to_string(),
            Err(_) => format!("not finished after {} seconds", STORY_TIMEOUT.as_secs()),
        };
        world.fail(&problem)?;
    }
    Ok(match world.end().await? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
