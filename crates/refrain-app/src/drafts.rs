//! The drafts that preceded MCP 2026-07-28: flags, servers and serving.
//!
//! Each draft has its own server, whose tools may differ. That server shares metrics with the main one, but not tokens or
//! tasks.

use crate::config::{CheckedConfig, InvalidValue};
use crate::error::with_hint;
use crate::servers::configure;
use crate::{App, AppError};
use clap::Args;
use refrain::runtime::SystemSource;
use refrain::runtime::server::drafts;
use refrain::server::{AllowedHosts, Draft, KeyRing, Listener, Server, ServerBuilder, serve_stdio};
use refrain::store::Store;
use std::sync::Arc;
use tokio::io::{AsyncBufRead, AsyncWrite};

pub(crate) type BuildEndpoint<F> = dyn Fn(&F, Draft) -> Result<ServerBuilder, AppError>;

/// The flags that select the drafts to serve.
#[derive(Args, Default)]
pub(crate) struct EndpointFlags {
    /// Also serve the three drafts that preceded MCP 2026-07-28, at /drafts/0/mcp, /drafts/1/mcp and /drafts/2/mcp.
    #[arg(long, conflicts_with = "stdio")]
    drafts: bool,
    /// The draft to speak over standard input and output: draft-0, draft-1 or draft-2. Requires --stdio.
    #[arg(long, value_name = "DRAFT", value_parser = parse)]
    dialect: Option<Draft>,
}

impl EndpointFlags {
    pub(crate) fn check(&self, stdio: bool) -> Result<(), AppError> {
        match self.dialect {
            Some(_) if !stdio => Err(with_hint(
                "--dialect requires --stdio",
                "over HTTP, --drafts serves every draft at its own path",
            )),
            _ => Ok(()),
        }
    }
}

fn parse(name: &str) -> Result<Draft, InvalidValue> {
    let names = Draft::ALL.map(Draft::name).join(", ");
    Draft::from_name(name).ok_or_else(|| InvalidValue(format!("expected one of {names}")))
}

impl<F: Args, C> App<F, C> {
    /// Serves each draft with the tools that `build` returns for it. Without this, all drafts have the tools of the server.
    pub fn with_drafts(
        mut self,
        build: impl Fn(&F, Draft) -> Result<ServerBuilder, AppError> + 'static,
    ) -> Self {
        self.build_endpoint = Some(Box::new(build));
        self
    }
}

/// The drafts that an instance serves, each with its server.
pub(crate) struct Endpoints(Vec<(Draft, Server)>);

impl Endpoints {
    pub(crate) fn build(
        selected: &EndpointFlags,
        config: &CheckedConfig,
        store: &Arc<dyn Store>,
        main: &Server,
        build: impl Fn(Draft) -> Result<ServerBuilder, AppError>,
    ) -> Result<Self, AppError> {
        let server = |draft: &Draft| {
            let mut builder = configure(build(*draft)?, config, store)
                .draft(*draft)
                .share_metrics_with(main);
            if config.keys.is_none() {
                // The main server has already warned that there are no keys.
                builder = builder.keys(KeyRing::generate(&SystemSource::new()));
            }
            Ok((*draft, builder.build()?))
        };
        let drafts = match selected.drafts {
            true => Draft::ALL.as_slice(),
            false => selected.dialect.as_slice(),
        };
        let servers: Result<_, AppError> = drafts.iter().map(server).collect();
        servers.map(Self)
    }

    pub(crate) fn servers(&self) -> impl Iterator<Item = &Server> {
        self.0.iter().map(|(_, server)| server)
    }

    /// Logs the URLs, which start with `base`.
    pub(crate) fn log(&self, base: &str) {
        for (draft, _) in &self.0 {
            tracing::info!(%draft, url = %format_args!("{base}{}", draft.path()), "serving draft");
        }
    }

    /// Serves the main server at `/mcp` and the drafts at their paths.
    pub(crate) async fn serve_http(
        self,
        listener: Listener,
        main: Server,
        hosts: AllowedHosts,
        stop: impl Future<Output = ()>,
    ) -> Result<(), AppError> {
        Ok(drafts::serve(listener, main, self.0, hosts, stop).await?)
    }

    /// Serves the selected draft; without one, the main server.
    pub(crate) async fn serve_stdio(
        self,
        main: Server,
        input: impl AsyncBufRead + Unpin + Send + 'static,
        output: impl AsyncWrite + Unpin + Send + 'static,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), AppError> {
        match self.0.into_iter().next() {
            Some((draft, server)) => {
                drafts::serve_stdio(draft, server, input, output, stop).await?;
            }
            None => serve_stdio(main, input, output, stop).await?,
        }
        Ok(())
    }
}
