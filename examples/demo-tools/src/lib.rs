//! The tools of `refrain serve` and of the demo: those of the protocol's proposals, and one for each other thing that a
//! tool can do.
//!
//! | tool | what it shows |
//! | --- | --- |
//! | `echo`, `get_weather` | one ask, or none |
//! | `update_work_item` | rules that ask for more, one round after the other |
//! | `accounts` | two versions behind one balancer |
//! | `analyze_data`, `weather_and_capital`, `project_roots` | sampling, a form beside it, roots |
//! | `connect_account` | a URL, and a check that it was completed |
//! | `place_order` | a step with an idempotency key |
//! | `change_seat` | plain async code, kept in memory while it asks |
//! | `sum` | a long computation that can be handed on |
//! | `echo_task` | the documents' echo as a task |
//! | `create_vm` | rounds first, then a task |
//! | `move_vm` | a task that works while it waits for an answer |
//! | `accounts_task` | two versions that work on the same tasks |
//! | `get_weather_explicit` | the style of the documents: read the answers, return what is missing |

mod asks;
mod documents;
mod drafts;
mod ledger;
mod tasks;
mod work;

pub use ledger::{Ledger, LedgerError};

use refrain::server::{Draft, Server, ServerBuilder};

/// The demo's server. `accounts` (1 or 2) is the version of the tools of that name. With a draft, the tools that its
/// document shows differently are as in that document.
pub fn server(ledger: Ledger, accounts: u8, draft: Option<Draft>) -> ServerBuilder {
    let builder = Server::builder("refrain", env!("CARGO_PKG_VERSION"))
        .title("Refrain's tools")
        .instructions("Tools that ask for what they need, one round at a time.");
    let (echo, get_weather) = match draft {
        None => (documents::echo(), documents::get_weather()),
        Some(Draft::Sketch) => (documents::echo(), drafts::get_weather_of_sketch()),
        Some(Draft::First) => (drafts::echo_of_first(), documents::get_weather()),
        Some(Draft::Second) => (drafts::echo_of_second(), documents::get_weather()),
    };
    let builder = builder
        .tool(echo)
        .tool(get_weather)
        .tool(documents::update_work_item())
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
        .tool(documents::get_weather_explicit())
        .state(ledger);
    if accounts == 1 {
        builder
            .tool(documents::accounts_v1())
            .tool(tasks::accounts_task_v1())
    } else {
        builder
            .tool(documents::accounts_v2())
            .tool(tasks::accounts_task_v2())
    }
}
