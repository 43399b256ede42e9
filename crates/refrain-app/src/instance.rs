//! One instance: the flags and the life of `serve` and `worker`.

use crate::config::{Address, Config, Filled, Loaded, LogFormat, parse};
use crate::servers::{Extras, Servers};
use crate::store::StoreUrl;
use crate::{App, Failure, log, runtime, signals};
use clap::Args;
use refrain::server::serve_metrics;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::net::TcpListener;

/// The flags of `serve` and `worker`.
#[derive(Args)]
pub struct Common<F: Args> {
    /// A TOML file with the same settings and more; flags override it. The `config` command shows and checks it.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Where tasks live: `sqlite:FILE` for the processes of one machine, `postgres://…` for a fleet. Other users can see
    /// flags in the list of processes: write a URL with a password as `store` into the configuration, or into
    /// $REFRAIN_STORE [default: sqlite:refrain.db].
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,
    /// A separate address and port for `/metrics`, `/healthz` and `/readyz` [default: none].
    #[arg(long, value_name = "ADDRESS", value_parser = parse::<Address>)]
    metrics: Option<Address>,
    /// The key file that the fleet shares. Without one, $REFRAIN_KEYS; without that, a key made at start.
    #[arg(long)]
    keys: Option<PathBuf>,
    /// The name of the service that tokens are bound to [default: the server's name].
    #[arg(long)]
    audience: Option<String>,
    /// How log lines are written [default: text].
    #[arg(long)]
    log: Option<LogFormat>,
    #[command(flatten)]
    app: F,
}

impl<F: Args> Common<F> {
    /// The settings of the file, overridden by these flags.
    pub(crate) fn load(&self) -> Result<Loaded, Failure> {
        let mut loaded = match &self.config {
            Some(file) => Loaded::read(file)?,
            None => Loaded::default(),
        };
        loaded.flag("store", self.store.as_ref(), |c, v| {
            c.store = Some(Filled(v));
        });
        loaded.flag("metrics", self.metrics.as_ref(), |c, v| c.metrics = Some(v));
        loaded.flag("keys", self.keys.as_ref(), |c, v| c.keys = Some(Filled(v)));
        loaded.flag("audience", self.audience.as_ref(), |c, v| {
            c.audience = Some(Filled(v));
        });
        loaded.flag("log", self.log.as_ref(), |c, v| c.log = v);
        Ok(loaded)
    }

    /// Runs an instance with these settings: `work` until it ends, and the metrics port beside it.
    pub(crate) fn run(
        &self,
        app: &App<F>,
        loaded: Loaded,
        extras: &Extras,
        work: impl AsyncFnOnce(Servers, &Config) -> Result<(), Failure>,
    ) -> Result<ExitCode, Failure> {
        let ready = loaded.ready()?;
        let config = ready.config.clone();
        log::start("info", config.log, std::io::stderr)?;
        let ended = runtime()?.block_on(async {
            let servers = Servers::build(app, &self.app, ready, extras).await?;
            signals::reload_on_hangup(servers.all(), config.keys.clone().map(|keys| keys.0))?;
            let server = servers.server.clone();
            let metrics = listen_for_metrics(config.metrics).await?;
            let watching = async {
                match metrics {
                    // As long as the server, so that draining can be observed.
                    Some(listener) => {
                        serve_metrics(listener, server.clone(), std::future::pending()).await
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                worked = work(servers, &config) => worked?,
                failed = watching => failed?,
            }
            Ok(ExitCode::SUCCESS)
        });
        match ended {
            // A reader of JSON lines gets the error as one, too.
            Err(error) if config.log == LogFormat::Json => {
                let error: Failure = error;
                tracing::error!(%error, "the instance cannot go on");
                Ok(ExitCode::FAILURE)
            }
            ended => ended,
        }
    }
}

pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| format!("cannot listen on {address}: {error}").into())
}

async fn listen_for_metrics(address: Option<Address>) -> Result<Option<TcpListener>, Failure> {
    let Some(Address(address)) = address else {
        return Ok(None);
    };
    let listener = listen(address).await?;
    let address = listener.local_addr()?;
    tracing::info!("metrics at http://{address}/metrics");
    Ok(Some(listener))
}

/// Reports on standard error that the instance is up.
pub(crate) fn announce<F: Args>(app: &App<F>, config: &Config, what: &str) {
    match config.log {
        LogFormat::Text => anstream::eprintln!("{}: {what}", app.name),
        LogFormat::Json => tracing::info!("{what}"),
    }
}
