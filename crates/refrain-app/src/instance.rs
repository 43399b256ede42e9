//! The flags of `serve` and `worker`, and the lifecycle of an instance.

use crate::config::{Address, Config, LogFormat, NonBlank, UncheckedConfig, parse};
use crate::error::with_hint;
use crate::servers::Servers;
use crate::store::StoreUrl;
use crate::{App, AppError, EndpointFlags, log, runtime, secret_file, signals};
use clap::Args;
use refrain::server::serve_metrics;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::net::TcpListener;

/// The flags of `serve` and `worker`.
#[derive(Args)]
pub struct InstanceFlags<F: Args> {
    /// A TOML file with settings; flags override it. The `config` command checks it and prints the defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where tasks are stored: `sqlite:FILE` for the processes of one machine, `postgres://…` for a fleet. Other users of
    /// the machine can see flags: put a URL with a password into the configuration file or $REFRAIN_STORE
    /// [default: sqlite:refrain.db].
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,
    /// A separate address and port for `/metrics`, `/healthz` and `/readyz` [default: none].
    #[arg(long, value_name = "ADDRESS", value_parser = parse::<Address>)]
    metrics: Option<Address>,
    /// The key file that the instances of a fleet share. Without it, $REFRAIN_KEYS is used, or a temporary key.
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// The service name that sealed tokens (`requestState`) are bound to; not the `aud` claim of access tokens [default: the
    /// server's name].
    #[arg(long, value_name = "NAME")]
    audience: Option<String>,
    /// The format of log lines [default: text].
    #[arg(long, value_name = "FORMAT")]
    log: Option<LogFormat>,
    #[command(flatten)]
    app: F,
}

impl<F: Args> InstanceFlags<F> {
    pub(crate) fn load(&self) -> Result<UncheckedConfig, AppError> {
        let mut config = match &self.config {
            Some(file) => UncheckedConfig::read(file)?,
            None => UncheckedConfig::default(),
        };
        config.flag("store", self.store.as_ref(), |c, v| {
            c.store = Some(NonBlank(v));
        });
        config.flag("metrics", self.metrics.as_ref(), |c, v| c.metrics = Some(v));
        config.flag("keys", self.keys.as_ref(), |c, v| {
            c.keys = Some(NonBlank(v));
        });
        config.flag("audience", self.audience.as_ref(), |c, v| {
            c.audience = Some(NonBlank(v));
        });
        config.flag("log", self.log.as_ref(), |c, v| c.log = v);
        Ok(config)
    }

    /// Runs an instance: `work` until it ends, and the metrics port alongside.
    pub(crate) fn run(
        &self,
        app: &App<F>,
        config: UncheckedConfig,
        endpoints: &EndpointFlags,
        work: impl AsyncFnOnce(Servers, &Config) -> Result<(), AppError>,
    ) -> Result<ExitCode, AppError> {
        let checked = config.check()?;
        let config = checked.config.clone();
        log::start("info", config.log, std::io::stderr)?;
        for file in [&config.keys, &config.tls_key].into_iter().flatten() {
            secret_file::warn_if_exposed(&file.0);
        }
        raise_file_limit();
        let ended = runtime()?.block_on(async {
            let servers = Servers::build(app, &self.app, checked, endpoints).await?;
            signals::reload_on_hangup(&servers, &config)?;
            let server = servers.main.clone();
            let metrics = listen_for_metrics(config.metrics).await?;
            let serve_metrics = async {
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
                failed = serve_metrics => failed?,
            }
            Ok(ExitCode::SUCCESS)
        });
        match ended {
            // A reader of JSON lines gets the error as one, too.
            Err(error) if config.log == LogFormat::Json => {
                let error: AppError = error;
                tracing::error!(%error, "instance failed");
                Ok(ExitCode::FAILURE)
            }
            ended => ended,
        }
    }
}

/// Raises the soft limit of open files to the hard limit, because each connection needs one.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "failed to raise the limit of open files");
    }
}

/// Listens on an address that this flag sets.
pub(crate) async fn listen(address: SocketAddr, flag: &str) -> Result<TcpListener, AppError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| {
        let message = format!("cannot listen on {address}: {error}");
        match error.kind() {
            ErrorKind::AddrInUse => with_hint(message, format!("choose another port with {flag}")),
            _ => message.into(),
        }
    })
}

async fn listen_for_metrics(address: Option<Address>) -> Result<Option<TcpListener>, AppError> {
    let Some(Address(address)) = address else {
        return Ok(None);
    };
    let listener = listen(address, "--metrics").await?;
    let address = listener.local_addr()?;
    tracing::info!(url = %format_args!("http://{address}/metrics"), "serving metrics");
    Ok(Some(listener))
}

/// Reports on standard error that the instance is up, whatever `$RUST_LOG` selects.
pub(crate) fn announce<F: Args>(app: &App<F>, config: &Config, event: &'static str, url: &str) {
    match config.log {
        LogFormat::Text if url.is_empty() => anstream::eprintln!("{}: {event}", app.name),
        LogFormat::Text => anstream::eprintln!("{}: {event} on {url}", app.name),
        LogFormat::Json if url.is_empty() => tracing::info!("{event}"),
        LogFormat::Json => tracing::info!(url, "{event}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_open_files_is_raised_to_the_hard_limit() {
        let limit = getrlimit(Resource::Nofile);
        let lowered = Rlimit {
            current: Some(512),
            ..limit
        };
        setrlimit(Resource::Nofile, lowered).expect("a lower limit");
        raise_file_limit();
        assert_eq!(getrlimit(Resource::Nofile).current, limit.maximum);
    }
}
