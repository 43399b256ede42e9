//! The gateways under test, as processes.

use refrain_testkit::net::installed::listening;
use refrain_testkit::net::process::{Log, Process};
use tokio::process::Command;

const REFRAIN: &str = env!("CARGO_BIN_EXE_refrain");

/// A running gateway.
pub(crate) struct Gateway {
    name: &'static str,
    url: String,
    process: Process,
}

/// A gateway as clients reach it: its address, or its command.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) address: Address,
}

#[derive(Debug, Clone)]
pub(crate) enum Address {
    Url(String),
    /// A program that each connection starts.
    Command(Vec<String>),
}

/// A command and its arguments.
pub(crate) fn parts(command: &Command) -> Vec<String> {
    let command = command.as_std();
    let arguments = command.get_args();
    let parts = std::iter::once(command.get_program()).chain(arguments);
    parts
        .map(|part| part.to_string_lossy().into_owned())
        .collect()
}

impl Gateway {
    /// A gateway that starts its backend.
    pub(crate) async fn starting(name: &'static str, backend: &Command) -> Self {
        let mut command = Command::new(REFRAIN);
        command.args(["gateway", "--listen", "127.0.0.1:0", "--"]);
        Self::start(name, command.args(parts(backend))).await
    }

    /// A gateway that connects to its backend.
    pub(crate) async fn connecting(name: &'static str, url: &str) -> Self {
        let mut command = Command::new(REFRAIN);
        Self::start(
            name,
            command.args(["gateway", "--listen", "127.0.0.1:0", "--url", url]),
        )
        .await
    }

    /// A gateway that clients start.
    pub(crate) fn over_stdio(name: &'static str, backend: &Command) -> Target {
        let gateway = [REFRAIN, "gateway", "--stdio", "--"].map(str::to_owned);
        let command = gateway.into_iter().chain(parts(backend)).collect();
        Target {
            name,
            address: Address::Command(command),
        }
    }

    async fn start(name: &'static str, command: &mut Command) -> Self {
        let command = std::mem::replace(command, Command::new(REFRAIN));
        let (process, url) = listening(command).await;
        Self { name, url, process }
    }

    pub(crate) fn target(&self) -> Target {
        Target {
            name: self.name,
            address: Address::Url(self.url.clone()),
        }
    }

    /// Stops the gateway, and returns its log.
    pub(crate) async fn stop(mut self) -> Log {
        self.process.stop().await;
        self.process.log.clone()
    }
}
