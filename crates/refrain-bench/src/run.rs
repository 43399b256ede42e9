//! A whole run: both servers started, slices interleaved, counts and memory where asked for.

use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;

use crate::child::{Program, Server, Setting};
use crate::counts;
use crate::error::Error;
use crate::load::{Workload, slice};
use crate::machine::Machine;
use crate::memory;
use crate::report::{Report, Row, Settings};
use crate::spinner;

/// How long a server may take to start and to stop.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest warm-up of one workload.
const WARM_UP: f64 = 0.5;

/// What to measure.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Refrain's server; `None` measures the floor alone.
    pub(crate) refrain: Option<PathBuf>,
    pub(crate) settings: Settings,
    /// Count instructions and allocations too.
    pub(crate) counts: bool,
    /// How many dialogues to leave waiting, if any.
    pub(crate) memory: Option<u64>,
}

/// The two programs of a run; Refrain may be missing.
struct Programs {
    floor: Program,
    refrain: Option<Program>,
}

/// Does the plan.
pub(crate) async fn run(plan: Plan) -> Result<Report, Error> {
    let progress = spinner();
    let programs = Programs {
        floor: Program::floor()?,
        refrain: plan.refrain.map(Program::refrain).transpose()?,
    };
    let settings = plan.settings;
    let mut rows = Workload::ALL.map(|workload| Row::new(workload, programs.refrain.is_some()));

    if settings.slices > 0 {
        time(&programs, &settings, &mut rows, &progress).await?;
    }
    let no_counts = match plan.counts {
        true => count(&programs, &settings, &mut rows, &progress).await?,
        false => None,
    };
    let memory = match (plan.memory, &programs.refrain) {
        (Some(dialogues), Some(program)) => {
            let server = program.start(&setting(&settings)).await?;
            let connections = settings.connections;
            let memory = memory::watch(&server, dialogues, connections, &progress).await?;
            server.stop().await?;
            Some(memory)
        }
        _ => None,
    };
    Ok(Report {
        machine: Machine::look(),
        settings,
        rows: rows.into(),
        no_counts,
        memory,
    })
}

fn setting(settings: &Settings) -> Setting {
    Setting {
        core: settings.server_core,
        under: Vec::new(),
        patience: PATIENCE,
    }
}

/// Loads both servers in turn, workload by workload, slice by slice.
async fn time(
    programs: &Programs,
    settings: &Settings,
    rows: &mut [Row],
    progress: &ProgressBar,
) -> Result<(), Error> {
    let setting = setting(settings);
    progress.set_message("starting the servers");
    let floor = programs.floor.start(&setting).await?;
    let refrain = match &programs.refrain {
        Some(program) => Some(program.start(&setting).await?),
        None => None,
    };
    let servers: Vec<&Server> = [Some(&floor), refrain.as_ref()]
        .into_iter()
        .flatten()
        .collect();

    let warm_up = Duration::from_secs_f64(settings.seconds_per_slice.min(WARM_UP));
    for workload in Workload::ALL {
        for server in &servers {
            progress.set_message(format!("warming up: {}, {workload}", server.name()));
            slice(server, workload, settings.connections, warm_up).await?;
        }
    }

    let length = Duration::from_secs_f64(settings.seconds_per_slice);
    let slices = settings.slices;
    for number in 1..=slices {
        for row in rows.iter_mut() {
            // Whoever goes second may find the machine warmer: take turns.
            let mut order: Vec<usize> = (0..servers.len()).collect();
            if number % 2 == 0 {
                order.reverse();
            }
            for index in order {
                let (server, workload) = (servers[index], row.workload);
                progress.set_message(format!(
                    "slice {number} of {slices}: {}, {workload}",
                    server.name()
                ));
                let sample = slice(server, workload, settings.connections, length).await?;
                match (index, &mut row.refrain) {
                    (1, Some(refrain)) => refrain.samples.push(sample),
                    _ => row.floor.samples.push(sample),
                }
            }
        }
    }
    floor.stop().await?;
    if let Some(refrain) = refrain {
        refrain.stop().await?;
    }
    Ok(())
}

/// Counts under valgrind. Gives back why not, where it cannot be done.
async fn count(
    programs: &Programs,
    settings: &Settings,
    rows: &mut [Row],
    progress: &ProgressBar,
) -> Result<Option<String>, Error> {
    if let Some(obstacle) = counts::obstacle() {
        return Ok(Some(obstacle));
    }
    for row in rows {
        let workload = row.workload;
        progress.set_message(format!("counting: floor, {workload}"));
        let core = settings.server_core;
        row.floor.counts = Some(counts::count(&programs.floor, workload, core).await?);
        if let (Some(program), Some(refrain)) = (&programs.refrain, &mut row.refrain) {
            progress.set_message(format!("counting: Refrain, {workload}"));
            refrain.counts = Some(counts::count(program, workload, core).await?);
        }
    }
    Ok(None)
}
