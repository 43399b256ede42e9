//! Servers, and how to reach them.

use refrain_client::{Client, ClientBuilder, Error};
use refrain_testkit::net::process::Process;
use refrain_testkit::net::sdk_programs::Program;

/// How to reach a server.
pub(crate) enum Target {
    /// A running server that listens on a port. Dropping it kills the process.
    Http { url: String, _process: Box<Process> },
    /// A program that each connection starts.
    Stdio(Program),
}

impl Target {
    /// Starts a server that listens on a port.
    pub(crate) async fn listen(program: Program, transport: &str) -> Self {
        let (process, url) = program.listen(transport).await;
        let _process = Box::new(process);
        Self::Http { url, _process }
    }

    /// Opens a new connection.
    pub(crate) async fn connect(&self, client: ClientBuilder) -> Result<Client, Error> {
        match self {
            Self::Http { url, .. } => client.connect(url).await,
            Self::Stdio(program) => client.spawn(program.stdio().await).await,
        }
    }
}
