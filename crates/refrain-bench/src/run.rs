//! A speed run: starts both servers, alternates slices, and optionally measures counts and memory.

use std::path::PathBuf;
use std::time::Duration;

use crate::counts;
use crate::error::Error;
use crate::load::{Load, Workload, run_slice};
use crate::report::{Memory, SpeedReport, WorkloadRow};
use crate::server::{Program, ServerProcess, resident_kib};
use crate::{PROGRESS, parse_seconds};

/// The timeout for starting and stopping a server.
pub(crate) const SERVER_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum warm-up time of a workload in seconds.
const WARM_UP: f64 = 0.5;
/// The number of equal parts of the dialogues after which resident memory is read.
const PARTS: u64 = 10;

#[derive(Debug, clap::Args)]
pub(crate) struct RunOptions {
    /// Refrain's binary, started as `PATH serve --listen ADDRESS` [default: `refrain` in the directory of this program].
    #[arg(long, value_name = "PATH")]
    refrain: Option<PathBuf>,
    /// The length of a slice. CPU times are inaccurate below one second.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    pub(crate) seconds_per_slice: f64,
    /// The number of slices for each workload and server. 0 skips throughput and CPU time.
    #[arg(long, value_name = "COUNT", default_value_t = 12)]
    pub(crate) slices: usize,
    /// The number of connections.
    #[arg(long, value_name = "COUNT", default_value = "32", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) connections: u16,
    /// The core the servers are pinned to.
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    pub(crate) server_core: usize,
    /// The core the load is pinned to.
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    pub(crate) load_core: usize,
    /// Also count heap allocations and instructions per request with valgrind.
    #[arg(long)]
    allocations: bool,
    /// Measure Refrain's resident memory while this number of dialogues waits.
    #[arg(long, value_name = "DIALOGUES", value_parser = clap::value_parser!(u64).range(10..))]
    memory: Option<u64>,
}

pub(crate) async fn run(options: &RunOptions) -> Result<SpeedReport<'_>, Error> {
    let refrain = Program::refrain(options.refrain.clone())?;
    let programs = [Program::floor()?, refrain];
    let mut rows = Workload::ALL.map(|workload| WorkloadRow {
        workload,
        servers: Default::default(),
    });
    if options.slices > 0 {
        measure_slices(&programs, options, &mut rows).await?;
    }
    let no_counts = match options.allocations {
        true => count_costs(&programs, options, &mut rows).await?,
        false => None,
    };
    let memory = match options.memory {
        Some(dialogues) => {
            let server = programs[1].start(Some(options.server_core), &[], SERVER_TIMEOUT);
            let server = server.await?;
            let memory = measure_memory(&server, dialogues, options.connections).await?;
            server.stop().await?;
            Some(memory)
        }
        None => None,
    };
    Ok(SpeedReport {
        options,
        rows: rows.into(),
        no_counts,
        memory,
    })
}

/// Measures the servers in turn, workload by workload, slice by slice.
async fn measure_slices(
    programs: &[Program],
    options: &RunOptions,
    rows: &mut [WorkloadRow],
) -> Result<(), Error> {
    PROGRESS.set_message("starting the servers");
    let mut servers = Vec::new();
    for program in programs {
        let server = program.start(Some(options.server_core), &[], SERVER_TIMEOUT);
        servers.push(server.await?);
    }
    let warm_up = Duration::from_secs_f64(options.seconds_per_slice.min(WARM_UP));
    for workload in Workload::ALL {
        for server in &servers {
            PROGRESS.set_message(format!("warming up: {}, {workload}", server.name));
            run_slice(server, workload, options.connections, warm_up).await?;
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
            // Alternate the order, because the second server may find warm caches.
            if number % 2 == 0 {
                pairs.reverse();
            }
            for (server, measures) in pairs {
                let slice_name = format!("slice {number} of {}: {}", options.slices, server.name);
                PROGRESS.set_message(format!("{slice_name}, {workload}"));
                let sample = run_slice(server, *workload, options.connections, length).await?;
                measures.samples.push(sample);
            }
        }
    }
    for server in servers {
        server.stop().await?;
    }
    Ok(())
}

/// Counts with valgrind. Returns the reason if valgrind cannot be used.
async fn count_costs(
    programs: &[Program],
    options: &RunOptions,
    rows: &mut [WorkloadRow],
) -> Result<Option<String>, Error> {
    if let Some(error) = counts::valgrind_error() {
        return Ok(Some(error));
    }
    for WorkloadRow { workload, servers } in rows {
        for (program, measures) in programs.iter().zip(servers) {
            PROGRESS.set_message(format!("counting: {}, {workload}", program.name));
            let counts = counts::count(program, *workload, options.server_core).await?;
            measures.counts = Some(counts);
        }
    }
    Ok(None)
}

/// Measures the server's resident memory while it has more and more dialogues that wait after round 1.
///
/// Finally answers the dialogue that was opened first, to show that the dialogues are still alive.
async fn measure_memory(
    server: &ServerProcess,
    dialogues: u64,
    connections: u16,
) -> Result<Memory, Error> {
    let mut resident = vec![resident_kib(server.pid)?];
    let mut load = Load::open(server, Workload::Round1, connections).await?;
    for part in 0..PARTS {
        PROGRESS.set_message(format!("memory: {part}0 % of {dialogues} dialogues"));
        load.open_dialogues(dialogues * part / PARTS..dialogues * (part + 1) / PARTS)
            .await?;
        resident.push(resident_kib(server.pid)?);
    }
    load.answer_first().await?;
    Ok(Memory {
        dialogues,
        growth: resident[PARTS as usize] as f64 / resident[1].max(1) as f64,
        resident_kib: resident,
    })
}
