//! The machine of a run, and the cores that its threads and child processes are pinned to.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::error::Error;

/// The machine of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) model: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
}

impl Machine {
    /// Reads /proc. Missing values become "unknown".
    pub(crate) fn read() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let (model, cores) = processor(&cpuinfo);
        Self {
            model: or_unknown(model),
            cores,
            kernel: or_unknown(&kernel),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            model,
            cores,
            kernel,
        } = self;
        write!(f, "Machine: {model}, {cores} cores, Linux {kernel}")
    }
}

fn or_unknown(text: &str) -> String {
    match text.trim() {
        "" => "unknown".to_owned(),
        text => text.to_owned(),
    }
}

/// The model of the processor and the number of its cores.
fn processor(cpuinfo: &str) -> (&str, usize) {
    let values = |name: &'static str| {
        let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        fields.filter_map(move |field| (field.0.trim() == name).then_some(field.1.trim()))
    };
    let model = values("model name").next().unwrap_or_default();
    (model, values("processor").count())
}

/// Pins this thread to a core. New threads and processes inherit the setting.
pub(crate) fn pin(core: usize) -> Result<(), Error> {
    let mut cores = CpuSet::new();
    if core < CpuSet::MAX_CPU {
        cores.set(core);
    }
    set_cores(&cores, core)
}

/// Runs a function on another core, for example to start a process there.
pub(crate) fn on_core<T>(core: usize, work: impl FnOnce() -> T) -> Result<T, Error> {
    let before = sched_getaffinity(None);
    let before =
        before.map_err(|error| Error::system("could not read the CPU affinity")(error.into()))?;
    pin(core)?;
    let done = work();
    set_cores(&before, core)?;
    Ok(done)
}

fn set_cores(cores: &CpuSet, core: usize) -> Result<(), Error> {
    let what = format!("could not pin to core {core}");
    sched_setaffinity(None, cores).map_err(|error| Error::system(what)(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_model_and_cores_are_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: a b\n\n\
                       processor\t: 1\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(processor(cpuinfo), ("Some CPU @ 2 GHz", 2));
        assert_eq!(processor(""), ("", 0));
        assert_eq!(or_unknown("\n"), "unknown");
    }
}
