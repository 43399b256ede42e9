//! The client calls servers that others wrote, over HTTP and over standard input and output.
//!
//! The servers are in `tests/servers`, whose README says what they offer. `scripts/tools` installs what they need. Where
//! it cannot, the tests fail: servers that did not run have shown nothing.

mod restaurant;
mod server;
mod user;

use server::{NPM, PYTHON, Program, RMCP};

/// What a server can do and is looked at for, and what it cannot.
struct Told {
    /// The revision that is spoken with it.
    revision: &'static str,
    /// The name it gives itself.
    name: &'static str,
}

const RATIFIED: &str = "2026-07-28";

async fn over_http(program: Program, told: &Told) {
    let server = program.listen().await;
    restaurant::check_all(&server.target(), told).await;
}

#[tokio::test]
async fn npm_over_http() {
    over_http(
        NPM,
        &Told {
            revision: RATIFIED,
            name: "npm-restaurant",
        },
    )
    .await;
}

#[tokio::test]
async fn python_over_http() {
    over_http(
        PYTHON,
        &Told {
            revision: RATIFIED,
            name: "python-restaurant",
        },
    )
    .await;
}

#[tokio::test]
async fn rmcp_over_http() {
    over_http(
        RMCP,
        &Told {
            revision: RATIFIED,
            name: "rmcp-restaurant",
        },
    )
    .await;
}
