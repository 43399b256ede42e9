//! The machine of a run, and the cores that its threads and child processes are pinned to.

use rustix::system::uname;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, failed};

/// The processor, the number of its cores and the kernel.
pub(crate) fn description() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let (model, cores) = processor(&cpuinfo);
    let kernel = uname();
    let kernel = kernel.release().to_string_lossy();
    format!("Machine: {model}, {cores} cores, Linux {kernel}")
}

/// The model of the processor and the number of its cores.
fn processor(cpuinfo: &str) -> (&str, usize) {
    let values = |name: &'static str| {
        let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        fields.filter_map(move |field| (field.0.trim() == name).then_some(field.1.trim()))
    };
    let model = values("model name").next().unwrap_or("unknown processor");
    (model, values("processor").count())
}

/// Pins this thread to a core. New threads and processes inherit the setting.
pub(crate) fn pin(core: usize) -> Result<(), Error> {
    let mut cores = CpuSet::new();
    if core < CpuSet::MAX_CPU {
        cores.set(core);
    }
    sched_setaffinity(None, &cores).map_err(failed(format!("pin to core {core}")))
}

/// Runs a function on another core, for example to start a process there.
pub(crate) fn on_core<T>(core: usize, work: impl FnOnce() -> T) -> Result<T, Error> {
    let before = sched_getaffinity(None)?;
    pin(core)?;
    let done = work();
    sched_setaffinity(None, &before)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_model_and_cores_are_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: a b\n\n\
                       processor\t: 1\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(processor(cpuinfo), ("Some CPU @ 2 GHz", 2));
        assert_eq!(processor(""), ("unknown processor", 0));
    }
}
