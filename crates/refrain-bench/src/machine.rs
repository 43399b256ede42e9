//! The machine a run was made on, and the core the load runs on.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use serde::Serialize;

use crate::error::Error;

/// What a reader needs to place the numbers.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// The processor's name.
    pub(crate) model: String,
    /// How many cores the system has.
    pub(crate) cores: usize,
    /// The kernel's release.
    pub(crate) kernel: String,
}

impl Machine {
    /// Reads /proc; what is not there is "unknown".
    pub(crate) fn look() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let (model, cores) = processor(&cpuinfo);
        Self {
            model: named(&model),
            cores,
            kernel: named(&kernel),
        }
    }
}

fn named(text: &str) -> String {
    match text.trim() {
        "" => "unknown".to_owned(),
        text => text.to_owned(),
    }
}

fn processor(cpuinfo: &str) -> (String, usize) {
    let fields = || {
        cpuinfo
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.trim(), value.trim()))
    };
    let model = fields().find(|(name, _)| *name == "model name");
    let cores = fields().filter(|(name, _)| *name == "processor").count();
    (
        model.map_or_else(String::new, |(_, value)| value.to_owned()),
        cores,
    )
}

/// Makes sure that this process, and so every thread of the load, runs on one core: starts itself
/// again under `taskset` where it does not yet. Returns only when it is pinned, or with the reason
/// why it cannot be.
pub(crate) fn pin_load(core: usize) -> Result<(), Error> {
    const TRIED: &str = "REFRAIN_BENCH_PINNED";

    let allowed = allowed_cores()?;
    if allowed == core.to_string() {
        return Ok(());
    }
    if std::env::var_os(TRIED).is_some() {
        return Err(Error::NotPinned { core, allowed });
    }
    let program = std::env::current_exe().map_err(Error::system("this program has no path"))?;
    let source = Command::new("taskset")
        .arg("-c")
        .arg(core.to_string())
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(TRIED, "1")
        .exec();
    Err(Error::Start {
        program: "taskset".to_owned(),
        source,
    })
}

fn allowed_cores() -> Result<String, Error> {
    const PATH: &str = "/proc/self/status";
    let status = std::fs::read_to_string(PATH).map_err(Error::system(PATH))?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .map(|list| list.trim().to_owned())
        .ok_or(Error::Unreadable {
            path: PATH.to_owned(),
            field: "Cpus_allowed_list",
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_named_and_its_cores_counted() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: a b\n\n\
                       processor\t: 1\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(processor(cpuinfo), ("Some CPU @ 2 GHz".to_owned(), 2));
        assert_eq!(processor(""), (String::new(), 0));
        assert_eq!(named("\n"), "unknown");
    }
}
