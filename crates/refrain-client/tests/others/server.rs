//! The server processes.

use refrain_client::{Client, ClientBuilder, Error};
use refrain_testkit::net::process::Process;
use refrain_testkit::net::programs::Program;

/// How to reach a server.
pub(crate) enum Target {
    /// The URL of a running server.
    Http(String),
    /// A program that each connection starts.
    Stdio(Program),
}

impl Target {
    /// Opens a new connection.
    pub(crate) async fn connect(&self, client: ClientBuilder) -> Result<Client, Error> {
        match self {
            Self::Http(url) => client.connect(url).await,
            Self::Stdio(program) => client.spawn(program.stdio().await).await,
        }
    }
}

/// A server that listens on a port. Dropping it kills the process.
pub(crate) struct HttpServer {
    url: String,
    _process: Process,
}

impl HttpServer {
    pub(crate) async fn start(program: Program, transport: &str) -> Self {
        let (process, url) = program.listen(transport).await;
        Self {
            url,
            _process: process,
        }
    }

    pub(crate) fn target(&self) -> Target {
        Target::Http(self.url.clone())
    }
}
