//! The client calls servers that others wrote, over HTTP and over standard input and output.
//!
//! The servers are in `tests/servers`, whose README says what they offer. `scripts/tools` installs what they need. Where
//! it cannot, the tests fail: servers that did not run have shown nothing.

mod everything;
mod restaurant;
mod server;
mod user;

use server::{NPM, OLDER, PYTHON, Program, RMCP, Target};

/// What is known of a restaurant.
struct Told {
    /// The revision that is spoken with it.
    revision: &'static str,
    /// The name it gives itself.
    name: &'static str,
    /// It asks while a call runs, and nothing can be kept for later.
    asks_inline: bool,
}

impl Told {
    const fn ratified(name: &'static str) -> Self {
        Self {
            revision: "2026-07-28",
            name,
            asks_inline: false,
        }
    }
}

const NPM_SAYS: Told = Told::ratified("npm-restaurant");
const PYTHON_SAYS: Told = Told::ratified("python-restaurant");
const RMCP_SAYS: Told = Told::ratified("rmcp-restaurant");
const OLDER_SAYS: Told = Told {
    revision: "2025-11-25",
    name: "older-restaurant",
    asks_inline: true,
};

async fn over_http(program: Program, told: &Told) {
    let server = program.listen().await;
    restaurant::check_all(&server.target(), told).await;
}

async fn over_stdio(program: Program, told: &Told) {
    restaurant::check_all(&Target::Stdio(program), told).await;
}

#[tokio::test]
async fn npm_over_http() {
    over_http(NPM, &NPM_SAYS).await;
}

#[tokio::test]
async fn npm_over_stdio() {
    over_stdio(NPM, &NPM_SAYS).await;
}

#[tokio::test]
async fn python_over_http() {
    over_http(PYTHON, &PYTHON_SAYS).await;
}

#[tokio::test]
async fn python_over_stdio() {
    over_stdio(PYTHON, &PYTHON_SAYS).await;
}

#[tokio::test]
async fn rmcp_over_http() {
    over_http(RMCP, &RMCP_SAYS).await;
}

#[tokio::test]
async fn rmcp_over_stdio() {
    over_stdio(RMCP, &RMCP_SAYS).await;
}

#[tokio::test]
async fn legacy_over_http() {
    over_http(OLDER, &OLDER_SAYS).await;
}

#[tokio::test]
async fn legacy_over_stdio() {
    over_stdio(OLDER, &OLDER_SAYS).await;
}
