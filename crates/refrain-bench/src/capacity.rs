//! A run at fixed rates, compared with a queueing model.
//!
//! A time slice at full load measures the saturation rate, so the service time S is 1 over that rate. On a
//! core without other load, S is the CPU time of a request; other load makes it longer. At the rate λ the model predicts:
//!
//! | quantity | prediction |
//! | --- | --- |
//! | CPU use | λ times the CPU time of a request at saturation (utilisation law) |
//! | mean time, with ρ = λ·S | base + ρ·S/(2(1−ρ)) for constant service times (M/D/1), base + ρ·S/(1−ρ) for exponential ones (M/M/1) |
//! | 99th percentile | base + S·ln(100ρ)/(1−ρ) (M/M/1) |
//! | beyond saturation | 1/S requests per second; the queue grows without limit |
//!
//! The base is the median time at a twentieth of the saturation rate. Arrivals are random (Poisson). A
//! request is sent on the next free connection; its time counts from its arrival, so waiting for a connection is included.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::load::{Load, Workload, run_slice};
use crate::machine;
use crate::run::SERVER_TIMEOUT;
use crate::server::{Program, ServerProcess, cpu_seconds};
use crate::stats::Sample;
use crate::table::{grid, number};
use crate::{PROGRESS, parse_seconds};

/// The load at which there is hardly any queue.
const BASE_LOAD: f64 = 0.05;
/// The timeout of the measurement at one load is this many times its length, plus a minute.
const TIMEOUT_FACTOR: f64 = 10.0;

#[derive(Debug, clap::Args)]
pub(crate) struct CapacityOptions {
    /// Refrain's binary, started as `PATH serve --listen ADDRESS` [default: `refrain` in the directory of this program].
    #[arg(long, value_name = "PATH")]
    refrain: Option<PathBuf>,
    /// The requests.
    #[arg(long, value_name = "WORKLOAD", default_value = "echo")]
    workload: Workload,
    /// The length of the measurement at each load.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    seconds: f64,
    /// The loads, as fractions of the saturation.
    #[arg(long, value_name = "FRACTIONS", value_delimiter = ',', default_value = "0.25,0.5,0.8,1.2", value_parser = parse_load)]
    loads: Vec<f64>,
    /// The number of connections.
    #[arg(long, value_name = "COUNT", default_value = "64", value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// The core the server is pinned to.
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    server_core: usize,
    /// The core the load is pinned to.
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    pub(crate) load_core: usize,
}

fn parse_load(text: &str) -> Result<f64, Error> {
    match text.parse::<f64>() {
        Ok(load) if (0.01..=3.0).contains(&load) => Ok(load),
        _ => Err("expected a fraction between 0.01 and 3".into()),
    }
}

/// The model of one core.
#[derive(Clone, Copy, Debug)]
struct Model {
    /// Seconds per request at saturation.
    service: f64,
    /// CPU seconds per request at saturation.
    cpu: f64,
    /// The median time in seconds without a queue.
    base: f64,
}

/// The predictions for one load.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Prediction {
    /// The share of the core.
    cpu: f64,
    /// In seconds; `None` beyond saturation.
    times: Option<PredictedTimes>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct PredictedTimes {
    mean_constant: f64,
    mean_exponential: f64,
    p99: f64,
}

impl Model {
    fn predict(&self, load: f64) -> Prediction {
        let Self { service, cpu, base } = *self;
        let wait = load * service / (1.0 - load);
        Prediction {
            cpu: load.min(1.0) * cpu / service,
            times: (load < 1.0).then(|| PredictedTimes {
                mean_constant: base + wait / 2.0,
                mean_exponential: base + wait,
                p99: base + (service * (100.0 * load).ln() / (1.0 - load)).max(0.0),
            }),
        }
    }
}

/// The measurement at one load.
#[derive(Debug)]
struct Level {
    load: f64,
    /// Arrivals per second.
    offered: f64,
    sample: Sample,
    /// Seconds, in ascending order.
    times: Vec<f64>,
}

impl Level {
    fn percentile(&self, percent: usize) -> f64 {
        let last = self.times.len().saturating_sub(1);
        self.times.get(last * percent / 100).copied().unwrap_or(0.0)
    }

    fn mean(&self) -> f64 {
        self.times.iter().sum::<f64>() / self.times.len().max(1) as f64
    }
}

#[derive(Debug)]
pub(crate) struct CapacityReport<'o> {
    options: &'o CapacityOptions,
    model: Model,
    saturated: Sample,
    levels: Vec<Level>,
}

pub(crate) async fn run(options: &CapacityOptions) -> Result<CapacityReport<'_>, Error> {
    let program = Program::refrain(options.refrain.clone())?;
    let server = program
        .start(Some(options.server_core), &[], SERVER_TIMEOUT)
        .await?;
    let length = Duration::from_secs_f64(options.seconds);
    let (workload, connections) = (options.workload, options.connections);
    PROGRESS.set_message("saturating the server");
    run_slice(
        &server,
        workload,
        connections,
        length.min(Duration::from_millis(500)),
    )
    .await?;
    let saturated = run_slice(&server, workload, connections, length).await?;
    let service = 1.0 / saturated.per_second();
    let base = measure_level(&server, options, BASE_LOAD, service).await?;
    let model = Model {
        service,
        cpu: saturated.cpu_seconds / saturated.done as f64,
        base: base.percentile(50),
    };
    let mut levels = Vec::new();
    for load in &options.loads {
        levels.push(measure_level(&server, options, *load, service).await?);
    }
    server.stop().await?;
    Ok(CapacityReport {
        options,
        model,
        saturated,
        levels,
    })
}

async fn measure_level(
    server: &ServerProcess,
    options: &CapacityOptions,
    load: f64,
    service: f64,
) -> Result<Level, Error> {
    PROGRESS.set_message(format!("{:.0} % of saturation", load * 100.0));
    let rate = load / service;
    let mut generator = Load::open(server, options.workload, options.connections).await?;
    let (cpu, start) = (cpu_seconds(server.pid)?, Instant::now());
    let limit = Duration::from_secs_f64(options.seconds * TIMEOUT_FACTOR + 60.0);
    let arrivals = Arrivals::new(rate, options.seconds);
    let times = generator.at_arrivals(arrivals, limit).await?;
    let sample = Sample {
        done: times.len() as u64,
        seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: cpu_seconds(server.pid)? - cpu,
    };
    let mut times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    times.sort_by(f64::total_cmp);
    Ok(Level {
        load,
        offered: rate,
        sample,
        times,
    })
}

/// The times of random arrivals since the start, at a mean rate. The same sequence in every run.
struct Arrivals {
    rate: f64,
    until: f64,
    now: f64,
    state: u64,
}

impl Arrivals {
    fn new(rate: f64, seconds: f64) -> Self {
        Self {
            rate,
            until: seconds,
            now: 0.0,
            state: 0,
        }
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        // In (0, 1].
        let uniform = ((bits >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        self.now -= uniform.ln() / self.rate;
        (self.now < self.until).then(|| Duration::from_secs_f64(self.now))
    }
}

impl CapacityReport<'_> {
    pub(crate) fn text(&self) -> String {
        let Self { options, model, .. } = self;
        let micros = |seconds: f64| number(Some(seconds * 1e6), 0);
        let predicted = |seconds: Option<f64>| number(seconds.map(|seconds| seconds * 1e6), 0);
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let heading = |cells: [&str; 12]| cells.map(str::to_owned).to_vec();
        let mut lines = vec![
            heading([
                "load", "offered", "achieved", "CPU", "model", "mean", "M/D/1", "M/M/1", "p50",
                "p99", "M/M/1", "max",
            ]),
            heading([
                "", "per s", "per s", "", "", "µs", "µs", "µs", "µs", "µs", "p99 µs", "µs",
            ]),
        ];
        for level in &self.levels {
            let Prediction { cpu, times } = model.predict(level.load);
            lines.push(vec![
                percent(level.load),
                number(Some(level.offered), 0),
                number(Some(level.sample.per_second()), 0),
                percent(level.sample.busy()),
                percent(cpu),
                micros(level.mean()),
                predicted(times.map(|times| times.mean_constant)),
                predicted(times.map(|times| times.mean_exponential)),
                micros(level.percentile(50)),
                micros(level.percentile(99)),
                predicted(times.map(|times| times.p99)),
                micros(level.percentile(100)),
            ]);
        }
        let mut out = format!(
            "{}, {} connections, {} s for each load\n\
             Saturation: {} per second, {} of a core busy, {:.1} µs CPU each\n\
             Time without a queue: {} µs\n\n",
            options.workload,
            options.connections,
            options.seconds,
            number(Some(self.saturated.per_second()), 0),
            percent(self.saturated.busy()),
            model.cpu * 1e6,
            micros(model.base),
        );
        grid(&mut out, 2, &lines);
        out + "\n" + &machine::description() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_predicts_cpu_and_times() {
        let model = Model {
            service: 100e-6,
            cpu: 80e-6,
            base: 150e-6,
        };
        let half = model.predict(0.5);
        let times = half.times.unwrap();
        assert!((half.cpu - 0.4).abs() < 1e-9);
        assert!((times.mean_constant - 200e-6).abs() < 1e-9);
        assert!((times.mean_exponential - 250e-6).abs() < 1e-9);
        assert!((times.p99 - (150e-6 + 200e-6 * 50_f64.ln())).abs() < 1e-9);
        let beyond = model.predict(1.2);
        assert!((beyond.cpu - 0.8).abs() < 1e-9);
        assert_eq!(beyond.times, None);
    }

    #[test]
    fn arrivals_are_ordered_and_have_the_mean_rate() {
        let all: Vec<Duration> = Arrivals::new(1000.0, 10.0).collect();
        assert!(all.is_sorted());
        assert!((9_700..10_300).contains(&all.len()), "{}", all.len());
        let short = all
            .windows(2)
            .filter(|pair| pair[1] - pair[0] < Duration::from_micros(693));
        // The median of the gaps is ln 2 times their mean.
        let share = short.count() as f64 / all.len() as f64;
        assert!((0.47..0.53).contains(&share), "{share}");
    }

    #[test]
    fn percentiles_are_read_from_the_times() {
        let level = Level {
            load: 0.5,
            offered: 1.0,
            sample: Sample {
                done: 101,
                seconds: 1.0,
                cpu_seconds: 0.5,
            },
            times: (0..=100).map(f64::from).collect(),
        };
        assert_eq!((level.percentile(50), level.percentile(99)), (50.0, 99.0));
        assert!((level.mean() - 50.0).abs() < 1e-9);
    }
}
