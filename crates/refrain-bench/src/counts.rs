//! Counts that noise does not touch: instructions and heap allocations per request, by valgrind.
//!
//! A server is run twice under a tool, once for N and once for 2N requests that go one after the
//! other over one connection. Start, warm-up and end cost the same in both, so the difference of
//! the tool's totals is what N requests cost.
//!
//! An allocation is a call that gives out a block, growing one included. Only the system's
//! allocator is seen; a server that brings another would show none.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;

use crate::child::{Program, Setting};
use crate::error::Error;
use crate::load::{Workload, sequence};

/// N.
const REQUESTS: u64 = 2000;
/// Valgrind is some fifty times slower than the processor.
const PATIENCE: Duration = Duration::from_secs(120);

/// What one request costs. For the full exchange: what both of its requests cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Counts {
    /// Instructions in user mode.
    pub(crate) instructions: f64,
    /// Heap allocations.
    pub(crate) allocations: f64,
}

#[derive(Clone, Copy, Debug)]
enum Tool {
    Callgrind,
    Memcheck,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::Callgrind => "callgrind",
            Self::Memcheck => "memcheck",
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Callgrind => &["--callgrind-out-file=/dev/null"],
            Self::Memcheck => &["--leak-check=no", "--undef-value-errors=no"],
        }
    }

    /// The total in the tool's log.
    fn total(self, log: &str) -> Option<u64> {
        let (before, after) = match self {
            Self::Callgrind => ("Collected :", ""),
            Self::Memcheck => ("total heap usage:", "allocs"),
        };
        let rest = log.lines().find_map(|line| line.split_once(before))?.1;
        let (number, unit) = match rest.trim().split_once(' ') {
            Some((number, rest)) => (number, rest),
            None => (rest.trim(), ""),
        };
        if !unit.starts_with(after) {
            return None;
        }
        number.replace(',', "").parse().ok()
    }
}

/// Says why the counts cannot be taken here, if so.
pub(crate) fn obstacle() -> Option<String> {
    let tried = Command::new("valgrind")
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match tried {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("`valgrind --version` failed: {status}")),
        Err(error) => Some(format!("valgrind cannot be run: {error}")),
    }
}

/// Counts what one workload costs one server.
pub(crate) async fn count(
    program: &Program,
    workload: Workload,
    core: usize,
) -> Result<Counts, Error> {
    Ok(Counts {
        instructions: per_request(Tool::Callgrind, program, workload, core).await?,
        allocations: per_request(Tool::Memcheck, program, workload, core).await?,
    })
}

async fn per_request(
    tool: Tool,
    program: &Program,
    workload: Workload,
    core: usize,
) -> Result<f64, Error> {
    let once = total(tool, program, workload, core, REQUESTS).await?;
    let twice = total(tool, program, workload, core, 2 * REQUESTS).await?;
    Ok((twice as f64 - once as f64) / REQUESTS as f64)
}

async fn total(
    tool: Tool,
    program: &Program,
    workload: Workload,
    core: usize,
    requests: u64,
) -> Result<u64, Error> {
    const WARM_UP: u64 = 20;

    let log = tempfile::NamedTempFile::new().map_err(Error::system("no temporary file"))?;
    let mut log_option = OsString::from("--log-file=");
    log_option.push(log.path());
    let mut under: Vec<OsString> = vec![
        "valgrind".into(),
        format!("--tool={}", tool.name()).into(),
        log_option,
    ];
    under.extend(tool.options().iter().map(OsString::from));
    let setting = Setting {
        core,
        under,
        patience: PATIENCE,
    };

    let server = program.start(&setting).await?;
    let name = server.name();
    sequence(&server, workload, WARM_UP + requests, PATIENCE).await?;
    server.stop().await?;

    let text = std::fs::read_to_string(log.path()).map_err(Error::system("valgrind's log"))?;
    tool.total(&text).ok_or_else(|| Error::NoTotal {
        tool: tool.name(),
        server: name,
        log: text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_from_the_logs() {
        let log = "==7== Events    : Ir\n==7== Collected : 12345678\n==7== \n";
        assert_eq!(Tool::Callgrind.total(log), Some(12_345_678));
        let log = "==7== HEAP SUMMARY:\n\
                   ==7==     in use at exit: 1,000 bytes in 3 blocks\n\
                   ==7==   total heap usage: 1,234,567 allocs, 12 frees, 9,999 bytes allocated\n";
        assert_eq!(Tool::Memcheck.total(log), Some(1_234_567));
        assert_eq!(Tool::Memcheck.total("==7== killed\n"), None);
    }
}
