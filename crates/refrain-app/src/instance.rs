//! The flags of `serve` and `worker`, and the lifecycle of an instance.

use crate::config::{
    Address, CheckedConfig, Config, LogFormat, NonBlank, Settings, UncheckedConfig, parse,
};
use crate::error::with_hint;
use crate::servers::{self, Servers};
use crate::setup::Setup;
use crate::signals::{self, Shutdown};
use crate::store::StoreUrl;
use crate::{App, AppError, EndpointFlags, log, runtime, secret_file};
use clap::Args;
use refrain::server::{Server, serve_metrics};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::de::DeserializeOwned;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};

/// How long to wait for blocking threads at the end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the program's stop hook may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of connections that may wait to be accepted. The system limits it too (`net.core.somaxconn`).
const BACKLOG: u32 = 4096;

/// The flags of `serve` and `worker`.
#[derive(Args)]
pub struct InstanceFlags<F: Args> {
    /// A TOML file with settings; flags override it. The `config` command checks it and prints the defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where tasks are stored: `sqlite:FILE` for the processes of one machine, `postgres://…` for a
    /// fleet, `memory:` for one `serve` process alone. Other users of the machine can see flags:
    /// put a URL with a password into the configuration file or $REFRAIN_STORE
    /// [default: $REFRAIN_STORE, then sqlite:refrain.db].
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,
    /// A separate address and port for `/metrics`, `/healthz` and `/readyz` [default: none].
    #[arg(long, value_name = "ADDRESS", value_parser = parse::<Address>)]
    metrics: Option<Address>,
    /// The key file that the instances of a fleet share. Without it, the keys are the text in
    /// $REFRAIN_KEYS, or a temporary key that is lost when the process ends.
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// The service name that sealed tokens (`requestState`) are bound to; not the `aud` claim of access tokens [default: the
    /// server's name].
    #[arg(long, value_name = "NAME", value_parser = NonBlank::<String>::parse)]
    audience: Option<NonBlank<String>>,
    /// The format of log lines [default: text].
    #[arg(long, value_name = "FORMAT")]
    log: Option<LogFormat>,
    #[command(flatten)]
    app: F,
}

impl<F: Args> InstanceFlags<F> {
    pub(crate) fn load<C: DeserializeOwned>(
        &self,
        settings: &Settings,
    ) -> Result<UncheckedConfig<C>, AppError> {
        let mut config = match &self.config {
            Some(file) => UncheckedConfig::read(settings, file)?,
            None => UncheckedConfig::defaults(settings),
        };
        config.override_by_flag("store", self.store.as_ref(), |c, v| {
            c.store = Some(NonBlank(v));
        });
        config.override_by_flag("metrics", self.metrics.as_ref(), |c, v| c.metrics = Some(v));
        config.override_by_flag("keys", self.keys.as_ref(), |c, v| {
            c.keys = Some(NonBlank(v));
        });
        config.override_by_flag("audience", self.audience.as_ref(), |c, v| {
            c.audience = Some(v);
        });
        config.override_by_flag("log", self.log.as_ref(), |c, v| c.log = v);
        Ok(config)
    }

    /// Runs an instance: `work` until it ends, and the metrics port meanwhile.
    pub(crate) fn run<C>(
        &self,
        app: &App<F, C>,
        config: UncheckedConfig<C>,
        endpoints: &EndpointFlags,
        work: impl AsyncFnOnce(Servers, &Config, Shutdown) -> Result<(), AppError>,
    ) -> Result<ExitCode, AppError> {
        let (config, own) = config.check()?;
        let log = config.config.log;
        // Dropped at the end, after the runtime: the last spans end with it.
        let _telemetry = log::start(app.name, "info", log, std::io::stderr)?;
        let secrets = [&config.config.keys, &config.config.tls_key];
        let webhooks = config.config.webhooks.values();
        let webhooks = webhooks.map(|webhook| &webhook.secret_file);
        for file in secrets.into_iter().flatten().chain(webhooks) {
            secret_file::warn_if_exposed(&file.0);
        }
        raise_file_limit();
        let runtime = runtime()?;
        let ended = runtime.block_on(self.run_setup(app, config, own, endpoints, work));
        // Drops all tasks, which ends processes that they started. A thread that reads standard input is not waited for.
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        match ended {
            // A program that reads JSON lines must get the error as JSON, too.
            Err(error) if log == LogFormat::Json => {
                tracing::error!(%error, "instance failed");
                Ok(ExitCode::FAILURE)
            }
            ended => ended,
        }
    }

    /// Builds the program's setup, runs it, and stops it even if it failed. A second signal ends everything at once.
    async fn run_setup<C>(
        &self,
        app: &App<F, C>,
        mut checked: CheckedConfig,
        own: C,
        endpoints: &EndpointFlags,
        work: impl AsyncFnOnce(Servers, &Config, Shutdown) -> Result<(), AppError>,
    ) -> Result<ExitCode, AppError> {
        let config = checked.config.clone();
        let store = servers::open_store(app, &mut checked).await?;
        // Installed before the instance is announced: a reader of that line may send a signal at once.
        let (mut stop, abort) = signals::shutdown()?;
        let Setup {
            builder,
            on_start,
            on_stop,
        } = tokio::select! {
            setup = app.build.build(&self.app, own) => setup?,
            () = &mut stop => return Ok(ExitCode::SUCCESS),
        };
        let ended = async {
            let servers = Servers::build(app, &self.app, &builder, checked, &store, endpoints)?;
            on_start(servers.main.clone());
            signals::reload_on_hangup(&servers, &config)?;
            let server = servers.main.clone();
            let metrics = listen_for_metrics(config.metrics)?;
            tokio::select! {
                worked = work(servers, &config, stop) => worked,
                failed = run_metrics(metrics, server) => failed,
            }
        };
        let run = async {
            let ended = ended.await;
            if tokio::time::timeout(STOP_TIMEOUT, on_stop).await.is_err() {
                tracing::warn!(seconds = STOP_TIMEOUT.as_secs(), "stop hook timed out");
            }
            ended
        };
        tokio::select! {
            ended = run => ended.map(|()| ExitCode::SUCCESS),
            () = abort => Ok(ExitCode::FAILURE),
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
pub(crate) fn listen(address: SocketAddr, flag: &str) -> Result<TcpListener, AppError> {
    bind(address).map_err(|error| {
        let message = format!("cannot listen on {address}: {error}");
        match error.kind() {
            ErrorKind::AddrInUse => with_hint(message, format!("choose another port with {flag}")),
            _ => message.into(),
        }
    })
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // As `TcpListener::bind` does, so that a restarted instance gets its port back.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn listen_for_metrics(address: Option<Address>) -> Result<Option<TcpListener>, AppError> {
    let Some(Address(address)) = address else {
        return Ok(None);
    };
    let listener = listen(address, "--metrics")?;
    let address = listener.local_addr()?;
    tracing::info!(url = %format_args!("http://{address}/metrics"), "serving metrics");
    Ok(Some(listener))
}

/// Serves metrics as long as the server runs, so that draining can be observed.
async fn run_metrics(listener: Option<TcpListener>, server: Server) -> Result<(), AppError> {
    match listener {
        Some(listener) => Ok(serve_metrics(listener, server, std::future::pending()).await?),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpStream;

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

    #[tokio::test]
    async fn connections_of_a_burst_wait_to_be_accepted() {
        let listener = listen(([127, 0, 0, 1], 0).into(), "--listen");
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        // A connection for which there is no room is tried again after a second.
        let burst = async {
            let mut open = Vec::new();
            for _ in 0..300 {
                open.push(TcpStream::connect(address).await.expect("a connection"));
            }
            open.len()
        };
        let burst = tokio::time::timeout(Duration::from_secs(20), burst).await;
        assert_eq!(burst, Ok(300));
    }
}
