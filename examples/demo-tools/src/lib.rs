//! The tools of `refrain serve` and of the demo: the examples of the proposals that became MCP 2026-07-28, and one tool for
//! each other feature.
//!
//! | tool | feature |
//! | --- | --- |
//! | `echo`, `get_weather` | one ask, or none |
//! | `update_work_item` | several asks, one round after the other |
//! | `accounts` | two versions of a tool behind one balancer |
//! | `analyze_data`, `weather_and_capital`, `project_roots` | sampling, a form and sampling at once, roots |
//! | `connect_account` | a URL, and a check that the visit was completed |
//! | `place_order` | a step with an idempotency key |
//! | `change_seat` | a live call: plain async code, kept in memory while it asks |
//! | `sum` | a long computation that an overloaded instance hands on |
//! | `echo_task` | the echo as a task |
//! | `create_vm` | asks first, then continues as a task |
//! | `move_vm` | a task that runs while it waits for an answer |
//! | `print_poster` | a live call that is a task: it never runs twice |
//! | `accounts_task` | two versions of a tool that run the same tasks |
//! | `get_weather_explicit` | the explicit style: read the answers, return the missing asks |

mod asks;
pub mod drafts;
mod ledger;
mod proposals;
mod tasks;
mod work;

pub use ledger::{Ledger, LedgerError};

use refrain::prelude::Tool;
use refrain::server::{Server, ServerBuilder};

/// The server with all tools. `accounts` (1 or 2) is the version of `accounts` and `accounts_task`.
pub fn server(ledger: Ledger, accounts: u8) -> ServerBuilder {
    let (echo, get_weather) = (proposals::echo(), proposals::get_weather());
    server_with(echo, get_weather, ledger, accounts)
}

/// The server with these versions of `echo` and `get_weather`.
fn server_with(echo: Tool, get_weather: Tool, ledger: Ledger, accounts: u8) -> ServerBuilder {
    let builder = Server::builder("refrain", env!("CARGO_PKG_VERSION"))
        .title("Refrain demo")
        .instructions("Tools that ask for missing input, one round at a time.");
    let builder = builder
        .tool(echo)
        .tool(get_weather)
        .tool(proposals::update_work_item())
        .tool(asks::analyze_data())
        .tool(asks::weather_and_capital())
        .tool(asks::project_roots())
        .tool(asks::connect_account())
        .tool(work::place_order())
        .tool(work::change_seat())
        .tool(work::sum())
        .tool(tasks::echo_task())
        .tool(tasks::create_vm())
        .tool(tasks::move_vm())
        .tool(tasks::print_poster())
        .tool(proposals::get_weather_explicit())
        .state(ledger);
    if accounts == 1 {
        builder
            .tool(proposals::accounts_v1())
            .tool(tasks::accounts_task_v1())
    } else {
        builder
            .tool(proposals::accounts_v2())
            .tool(tasks::accounts_task_v2())
    }
}
