//! The server process of `refrain dev`: start, wait for its end, stop.

use super::warn;
use crate::AppError;
use crate::process_group::{ProcessGroup, print_lines};
use refrain::runtime::SystemSource;
use refrain::server::KeyRing;
use rustix::process::Signal;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::process::Command;

/// How long a server may take to end before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// The interval of connection attempts to a starting server.
const TRY_INTERVAL: Duration = Duration::from_millis(20);
/// The store if the environment names none. A restarted server finds its tasks there.
const STORE: &str = "sqlite:refrain.db";

/// The settings of the server, which stay the same after a restart.
pub(super) struct ServerSettings {
    address: SocketAddr,
    flags: Vec<OsString>,
    /// Kept, so that the server can open its earlier tokens after a restart.
    keys: String,
}

pub(super) struct RunningServer(ProcessGroup);

impl ServerSettings {
    pub(super) fn new(address: SocketAddr, flags: &[OsString]) -> Self {
        Self {
            address,
            flags: flags.to_vec(),
            keys: KeyRing::generate(&SystemSource::new()).to_text(),
        }
    }

    /// Starts a server, and waits until it accepts connections. `None` if it exits before that.
    pub(super) async fn start(&self, program: &Path) -> Result<Option<RunningServer>, AppError> {
        let address = self.address.to_string();
        let mut command = Command::new(program);
        command
            .args(["serve", "--listen", &address])
            .args(&self.flags);
        for (name, value) in [
            (refrain_app::KEYS, &*self.keys),
            (refrain_app::STORE, STORE),
        ] {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        let mut process = ProcessGroup::start(&mut command)
            .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        if let Some(stdout) = process.child.stdout.take() {
            print_lines(stdout);
        }
        let accepts = async {
            while TcpStream::connect(self.address).await.is_err() {
                tokio::time::sleep(TRY_INTERVAL).await;
            }
        };
        let ended = tokio::select! {
            () = accepts => None,
            status = process.wait() => Some(status?),
        };
        if let Some(status) = ended {
            let hint = match status.success() {
                true => "; check that `main` calls `refrain_app::run`",
                false => "",
            };
            warn(&format!(
                "the server did not start: {status}{hint}; waiting for a change"
            ));
            return Ok(None);
        }
        Ok(Some(RunningServer(process)))
    }
}

impl RunningServer {
    /// Waits until the server ends by itself.
    pub(super) async fn exited(&mut self) -> String {
        match self.0.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }

    /// Stops the server; kills it if it takes too long.
    pub(super) async fn stop(mut self) {
        self.0.signal(Signal::TERM);
        if tokio::time::timeout(STOP_TIMEOUT, self.0.wait())
            .await
            .is_err()
        {
            self.0.signal(Signal::KILL);
            let _ = self.0.wait().await;
        }
    }
}
