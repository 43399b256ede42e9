//! A run: starts both servers, alternates their slices, and takes the optional counts and memory readings.

use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;
use serde::Serialize;

use crate::counts;
use crate::error::BenchError;
use crate::load::{Load, Workload, slice};
use crate::machine::Machine;
use crate::report::{Measures, Memory, ServerReport, WorkloadRow};
use crate::server::{Program, ServerProcess, resident_kib};
use crate::{seconds, spinner};

/// The time limit for a server to start and to stop.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest warm-up of a workload, in seconds.
const WARM_UP: f64 = 0.5;
/// The number of readings of resident memory.
const PARTS: u64 = 10;

/// The options of `run`. The serialized ones are part of the report.
#[derive(Debug, clap::Args, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServerBenchOptions {
    /// Refrain's binary, started as `PATH serve --listen ADDRESS` [default: `refrain` beside this program].
    #[arg(long, value_name = "PATH", conflicts_with = "floor_only")]
    #[serde(skip)]
    refrain: Option<PathBuf>,
    /// Measure the floor alone.
    #[arg(long)]
    #[serde(skip)]
    floor_only: bool,
    /// Length of a slice. Below one second the clock of /proc is too coarse for CPU times.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) seconds_per_slice: f64,
    /// Slices for each workload and server; 0 leaves out throughput and CPU time.
    #[arg(long, value_name = "COUNT", default_value_t = 12)]
    pub(crate) slices: usize,
    /// Connections of the load.
    #[arg(long, value_name = "COUNT", default_value = "32", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) connections: u16,
    /// The core the servers are pinned to.
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    pub(crate) server_core: usize,
    /// The core the load is pinned to.
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    pub(crate) load_core: usize,
    /// Count heap allocations and instructions per request as well, with valgrind.
    #[arg(long)]
    #[serde(skip)]
    allocations: bool,
    /// Leave this many dialogues pending and measure Refrain's resident memory.
    #[arg(long, value_name = "DIALOGUES", conflicts_with = "floor_only", value_parser = clap::value_parser!(u64).range(10..))]
    #[serde(skip)]
    memory: Option<u64>,
    /// Write everything measured, every slice included, to this file as JSON.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub(crate) json: Option<PathBuf>,
}

/// Measures both servers.
pub(crate) async fn run(options: &ServerBenchOptions) -> Result<ServerReport<'_>, BenchError> {
    let progress = spinner();
    let mut programs = vec![Program::floor()?];
    if !options.floor_only {
        programs.push(Program::refrain(options.refrain.clone())?);
    }
    let mut rows = Workload::ALL.map(|workload| WorkloadRow {
        workload,
        servers: vec![Measures::default(); programs.len()],
    });
    if options.slices > 0 {
        time(&programs, options, &mut rows, &progress).await?;
    }
    let no_counts = match options.allocations {
        true => count(&programs, options, &mut rows, &progress).await?,
        false => None,
    };
    let memory = match (options.memory, programs.get(1)) {
        (Some(dialogues), Some(program)) => {
            let server = program.start(options.server_core, &[], PATIENCE).await?;
            let memory = watch(&server, dialogues, options.connections, &progress).await?;
            server.stop().await?;
            Some(memory)
        }
        _ => None,
    };
    Ok(ServerReport {
        machine: Machine::read(),
        options,
        rows: rows.into(),
        no_counts,
        memory,
    })
}

/// Loads the servers in turn, slice by slice.
async fn time(
    programs: &[Program],
    options: &ServerBenchOptions,
    rows: &mut [WorkloadRow],
    progress: &ProgressBar,
) -> Result<(), BenchError> {
    progress.set_message("starting the servers");
    let mut servers = Vec::new();
    for program in programs {
        servers.push(program.start(options.server_core, &[], PATIENCE).await?);
    }
    let warm_up = Duration::from_secs_f64(options.seconds_per_slice.min(WARM_UP));
    for workload in Workload::ALL {
        for server in &servers {
            progress.set_message(format!("warming up: {}, {workload}", server.name));
            slice(server, workload, options.connections, warm_up).await?;
        }
    }

    let length = Duration::from_secs_f64(options.seconds_per_slice);
    for number in 1..=options.slices {
        for WorkloadRow {
            workload,
            servers: measures,
        } in rows.iter_mut()
        {
            let mut pairs: Vec<_> = servers.iter().zip(measures).collect();
            // Alternate the order: the second server runs on a warmer machine.
            if number % 2 == 0 {
                pairs.reverse();
            }
            for (server, measures) in pairs {
                let what = format!("slice {number} of {}: {}", options.slices, server.name);
                progress.set_message(format!("{what}, {workload}"));
                let sample = slice(server, *workload, options.connections, length).await?;
                measures.samples.push(sample);
            }
        }
    }
    for server in servers {
        server.stop().await?;
    }
    Ok(())
}

/// Counts under valgrind. Returns the reason if valgrind cannot run here.
async fn count(
    programs: &[Program],
    options: &ServerBenchOptions,
    rows: &mut [WorkloadRow],
    progress: &ProgressBar,
) -> Result<Option<String>, BenchError> {
    if let Some(obstacle) = counts::obstacle() {
        return Ok(Some(obstacle));
    }
    for WorkloadRow { workload, servers } in rows {
        for (program, measures) in programs.iter().zip(servers) {
            progress.set_message(format!("counting: {}, {workload}", program.name));
            let counts = counts::count(program, *workload, options.server_core).await?;
            measures.counts = Some(counts);
        }
    }
    Ok(None)
}

/// Opens dialogues, abandons them after round 1, and reads the server's resident memory. A dialogue opened before all
/// others is answered at the end, to prove that pending dialogues can still be completed.
async fn watch(
    server: &ServerProcess,
    dialogues: u64,
    connections: u16,
    progress: &ProgressBar,
) -> Result<Memory, BenchError> {
    let mut resident = vec![resident_kib(server.pid)?];
    let mut load = Load::open(server, Workload::Round1, connections).await?;
    for part in 0..PARTS {
        progress.set_message(format!("memory: {part}0 % of {dialogues} dialogues"));
        load.open_dialogues(dialogues * part / PARTS..dialogues * (part + 1) / PARTS)
            .await?;
        resident.push(resident_kib(server.pid)?);
    }
    load.answer_first_dialogue().await?;
    Ok(Memory {
        dialogues,
        growth: resident[PARTS as usize] as f64 / resident[1].max(1) as f64,
        resident_kib: resident,
    })
}
