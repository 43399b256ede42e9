//! Instructions and heap allocations per request, counted by valgrind independently of the machine's load.
//!
//! Each server runs twice under a tool, with N and with 2N sequential requests on one connection. The difference of the
//! totals is the cost of N requests, without start, warm-up and shutdown.
//!
//! Reallocations count as allocations. Only the system's allocator is counted.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, failed};
use crate::load::{Workload, sequence};
use crate::server::Program;

/// N: the number of requests in the shorter run. The start gathers entropy, and its number of instructions varies by about
/// two million. With this N, that adds an error of at most 200 per request.
const REQUESTS: u64 = 10_000;
/// Programs run about fifty times slower under valgrind.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The cost of one request, or of both requests of a full exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RequestCounts {
    /// Instructions in user mode.
    pub(crate) instructions: f64,
    pub(crate) allocations: f64,
}

struct ValgrindTool {
    name: &'static str,
    options: &'static [&'static str],
    /// The texts around the total in the tool's log.
    before: &'static str,
    after: &'static str,
}

const CALLGRIND: ValgrindTool = ValgrindTool {
    name: "callgrind",
    options: &["--callgrind-out-file=/dev/null"],
    before: "Collected :",
    after: "",
};
const MEMCHECK: ValgrindTool = ValgrindTool {
    name: "memcheck",
    options: &["--leak-check=no", "--undef-value-errors=no"],
    before: "total heap usage:",
    after: " allocs",
};

impl ValgrindTool {
    /// The total in the tool's log.
    fn total(&self, log: &str) -> Option<u64> {
        let rest = log.lines().find_map(|line| line.split_once(self.before))?.1;
        let rest = rest.trim();
        let end = rest.find(' ').unwrap_or(rest.len());
        let (number, unit) = rest.split_at(end);
        let number = unit.starts_with(self.after).then_some(number)?;
        number.replace(',', "").parse().ok()
    }
}

/// The reason why valgrind cannot be used, if there is one.
pub(crate) fn valgrind_error() -> Option<String> {
    let tried = Command::new("valgrind").arg("--version").output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("`valgrind --version` failed: {}", output.status)),
        Err(error) => Some(format!("could not run valgrind: {error}")),
    }
}

/// Counts the cost of one workload on one server.
pub(crate) async fn count(
    program: &Program,
    workload: Workload,
    core: usize,
) -> Result<RequestCounts, Error> {
    let per_request = async |tool| {
        let once = total(&tool, program, workload, core, REQUESTS).await?;
        let twice = total(&tool, program, workload, core, 2 * REQUESTS).await?;
        Ok::<f64, Error>((twice as f64 - once as f64) / REQUESTS as f64)
    };
    Ok(RequestCounts {
        instructions: per_request(CALLGRIND).await?,
        allocations: per_request(MEMCHECK).await?,
    })
}

async fn total(
    tool: &ValgrindTool,
    program: &Program,
    workload: Workload,
    core: usize,
    requests: u64,
) -> Result<u64, Error> {
    const WARM_UP: u64 = 20;

    let log = tempfile::NamedTempFile::new().map_err(failed("create a log"))?;
    let mut log_option = OsString::from("--log-file=");
    log_option.push(log.path());
    let tool_option = format!("--tool={}", tool.name).into();
    let mut wrapper = vec!["valgrind".into(), tool_option, log_option];
    wrapper.extend(tool.options.iter().map(OsString::from));

    let server = program.start(Some(core), &wrapper, TIMEOUT).await?;
    sequence(&server, workload, WARM_UP + requests, TIMEOUT).await?;
    server.stop().await?;

    let log = std::fs::read_to_string(log.path())?;
    let (tool_name, server) = (tool.name, program.name);
    let missing =
        || format!("valgrind --tool={tool_name} printed no total for {server}; its log:\n{log}");
    Ok(tool.total(&log).ok_or_else(missing)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_from_the_logs() {
        let log = "==7== Events    : Ir\n==7== Collected : 12345678\n==7== \n";
        assert_eq!(CALLGRIND.total(log), Some(12_345_678));
        let log = "==7== HEAP SUMMARY:\n\
                   ==7==     in use at exit: 1,000 bytes in 3 blocks\n\
                   ==7==   total heap usage: 1,234,567 allocs, 12 frees, 9,999 bytes allocated\n";
        assert_eq!(MEMCHECK.total(log), Some(1_234_567));
        assert_eq!(MEMCHECK.total("==7== killed\n"), None);
    }
}
