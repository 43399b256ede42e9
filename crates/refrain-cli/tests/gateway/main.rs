//! The matrix of `refrain gateway`: servers and clients of other projects, every kind of ask, over HTTP and stdio.
//!
//! Most tests put one backend behind two gateways, one that starts it and one that connects to its URL. All clients run the
//! same checks against both at the same time. With `--nocapture`, a test prints a table of the results.
//!
//! The backends are described in `tests/servers/README.md` and the clients in `tests/clients/README.md`.

mod backends;
mod checks;
mod clients;
mod gateway;
mod inspector;
mod outcome;
mod refrain_call;
mod table;

use backends::Backend;
use checks::Check;
use clients::{CLIENTS, Client};
use futures_util::future::join_all;
use gateway::{Gateway, Target};
use table::Table;
use tokio::sync::Mutex;

/// Each test starts dozens of processes, so that they run one after the other.
static TURN: Mutex<()> = Mutex::const_new(());

/// Runs the checks of a backend with every client, behind each gateway.
async fn check_backend(backend: Backend) {
    let _turn = TURN.lock().await;
    let server = backend.listen("--http").await;
    let gateways = vec![
        Gateway::starting("stdio", &backend.command().await).await,
        Gateway::connecting("http", &server.url).await,
    ];
    check_gateways(backend, gateways).await;
}

async fn check_gateways(backend: Backend, gateways: Vec<Gateway>) {
    let mut table = Table::new(backend);
    let targets: Vec<_> = gateways.iter().map(Gateway::target).collect();
    run_clients(&mut table, &CLIENTS, &targets).await;
    for gateway in gateways {
        table.add_log(gateway.stop().await);
    }
    table.check();
}

/// Runs all clients at the same time, and then the checks that must run alone.
async fn run_clients(table: &mut Table, clients: &[Client], targets: &[Target]) {
    let backend = table.backend;
    let must_run_alone = |check: &Check| backend.must_run_alone(check.name);
    let (alone, together): (Vec<_>, Vec<_>) =
        backend.checks().into_iter().partition(must_run_alone);
    let runs = clients.iter().map(|client| client.run(targets, &together));
    for (client, outcomes) in clients.iter().zip(join_all(runs).await) {
        table.add(*client, targets, &together, &outcomes);
    }
    for client in clients {
        let outcomes = client.run(targets, &alone).await;
        table.add(*client, targets, &alone, &outcomes);
    }
}

#[tokio::test]
async fn everything_works_behind_a_gateway() {
    check_backend(Backend::Everything).await;
}

#[tokio::test]
async fn fastmcp_works_behind_a_gateway() {
    check_backend(Backend::FastMcp).await;
}

#[tokio::test]
async fn legacy_python_works_behind_a_gateway() {
    check_backend(Backend::LegacyPython).await;
}

#[tokio::test]
async fn python_works_behind_a_gateway() {
    check_backend(Backend::Python).await;
}

#[tokio::test]
async fn legacy_npm_works_behind_a_gateway() {
    check_backend(Backend::LegacyNpm).await;
}

#[tokio::test]
async fn npm_works_behind_a_gateway() {
    check_backend(Backend::Npm).await;
}

#[tokio::test]
async fn rmcp_works_behind_a_gateway() {
    check_backend(Backend::Rmcp).await;
}

#[tokio::test]
async fn refrain_works_behind_a_gateway() {
    check_backend(Backend::Refrain).await;
}

/// The backend listens with HTTP+SSE, the transport of 2024-11-05.
#[tokio::test]
async fn legacy_python_over_sse_works_behind_a_gateway() {
    let _turn = TURN.lock().await;
    let backend = Backend::LegacyPython;
    let server = backend.listen("--sse").await;
    let gateway = Gateway::connecting("sse", &server.url).await;
    check_gateways(backend, vec![gateway]).await;
}

/// The clients start the gateway, which starts the backend.
#[tokio::test]
async fn gateway_over_stdio_works() {
    let _turn = TURN.lock().await;
    for backend in [
        Backend::LegacyPython,
        Backend::Npm,
        Backend::Rmcp,
        Backend::Refrain,
    ] {
        let mut table = Table::new(backend);
        let target = Gateway::over_stdio("stdio", &backend.command().await);
        // `refrain resume` would start a new gateway, which does not have the saved call.
        let clients = CLIENTS
            .into_iter()
            .filter(|client| *client != Client::Refrain);
        run_clients(&mut table, &clients.collect::<Vec<_>>(), &[target]).await;
        table.check();
    }
}
