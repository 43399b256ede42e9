//! `refrain serve`: one instance with the documents' tools.

use crate::auth;
use crate::config::{self, Config, Loaded, LogFormat, Ready};
use crate::tools::{self, Ledger};
use crate::{Failure, keys, log, runtime};
use clap::Args;
use refrain::{AllowedHosts, KeyRing, Server, serve, serve_metrics, serve_stdio};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// The environment variable that holds a key ring, where there is no file.
const KEYS: &str = "REFRAIN_KEYS";

#[derive(Args)]
pub(crate) struct Options {
    /// A TOML file with the same settings and more; flags override it. `refrain config` shows and checks it.
    #[arg(long)]
    config: Option<PathBuf>,
    /// The address to listen on [default: 127.0.0.1:8080].
    #[arg(long, value_parser = config::address)]
    listen: Option<SocketAddr>,
    /// The address of a port of its own for `/metrics`, `/healthz` and `/readyz`; without it there is none.
    #[arg(long, value_name = "ADDRESS", value_parser = config::address)]
    metrics: Option<SocketAddr>,
    /// Speak over standard input and output instead of HTTP.
    #[arg(long, conflicts_with = "listen")]
    stdio: bool,
    /// The key file that the fleet shares. Without one, $REFRAIN_KEYS; without that, a key made at start.
    #[arg(long)]
    keys: Option<PathBuf>,
    /// The name of the service that tokens are bound to [default: refrain].
    #[arg(long)]
    audience: Option<String>,
    /// A file with lines of `PRINCIPAL TOKEN [SCOPE …]`: callers must send one of the tokens.
    #[arg(long)]
    tokens: Option<PathBuf>,
    #[command(flatten)]
    auth: auth::Flags,
    /// A host to answer for; may be given several times [default: localhost and the loopback addresses].
    #[arg(long = "allow-host", value_parser = config::host)]
    allowed_hosts: Vec<String>,
    /// How log lines are written [default: text].
    #[arg(long)]
    log: Option<LogFormat>,
    /// Name this instance, and say in a `refrain-round` header of each reply what the round did.
    #[arg(long, value_name = "NAME")]
    explain: Option<String>,
    /// Which version of the `accounts` tool to serve.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    accounts: u8,
    /// A file to which every effect of a step is appended, a line each.
    #[arg(long)]
    ledger: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, Failure> {
    let loaded = match &options.config {
        Some(file) => Loaded::read(file)?,
        None => Loaded::default(),
    };
    let ready = with_flags(loaded, options).ready()?;
    let config = ready.config.clone();
    log::start(config.log)?;
    match start(options, ready, &config) {
        // Whoever reads JSON reads nothing else.
        Err(error) if config.log == LogFormat::Json => {
            tracing::error!(%error, "the instance cannot go on");
            Ok(ExitCode::FAILURE)
        }
        ended => ended,
    }
}

fn start(options: &Options, ready: Ready, config: &Config) -> Result<ExitCode, Failure> {
    let server = build(options, ready)?;
    runtime()?.block_on(async {
        reload_on_hangup(server.clone(), config.keys.clone())?;
        let metrics = listen_for_metrics(config.metrics).await?;
        let serving = async {
            if options.stdio {
                let input = tokio::io::BufReader::new(tokio::io::stdin());
                let stop = told_to_stop()?;
                serve_stdio(server.clone(), input, tokio::io::stdout(), stop).await?;
                // Standard input is read by a thread of its own, which cannot be ended from here.
                std::process::exit(0);
            }
            serve_http(server.clone(), config).await
        };
        let watching = async {
            match metrics {
                // As long as the server: how it drains is worth watching.
                Some(listener) => {
                    serve_metrics(listener, server.clone(), std::future::pending()).await
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            served = serving => served?,
            failed = watching => failed?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// What flags say counts more than what the file says.
fn with_flags(mut loaded: Loaded, options: &Options) -> Loaded {
    loaded.flag("listen", options.listen.as_ref(), |c, v| c.listen = v);
    loaded.flag("metrics", options.metrics.as_ref(), |c, v| {
        c.metrics = Some(v);
    });
    loaded.flag("keys", options.keys.as_ref(), |c, v| c.keys = Some(v));
    loaded.flag("tokens", options.tokens.as_ref(), |c, v| c.tokens = Some(v));
    loaded.flag("audience", options.audience.as_ref(), |c, v| {
        c.sealing.audience = v;
    });
    loaded.flag("log", options.log.as_ref(), |c, v| c.log = v);
    options.auth.put(&mut loaded);
    let hosts = Some(&options.allowed_hosts).filter(|hosts| !hosts.is_empty());
    loaded.flag("allowed_hosts", hosts, |c, v| c.allowed_hosts = Some(v));
    loaded
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| format!("cannot listen on {address}: {error}").into())
}

async fn listen_for_metrics(address: Option<SocketAddr>) -> Result<Option<TcpListener>, Failure> {
    let Some(address) = address else {
        return Ok(None);
    };
    let listener = listen(address).await?;
    let address = listener.local_addr()?;
    tracing::info!("metrics at http://{address}/metrics");
    Ok(Some(listener))
}

async fn serve_http(server: Server, config: &Config) -> Result<(), Failure> {
    let listener = listen(config.listen).await?;
    let address = listener.local_addr()?;
    // Before the line that says it listens: whoever read that may send a signal.
    let stop = told_to_stop()?;
    match config.log {
        LogFormat::Text => anstream::eprintln!("refrain: listening on http://{address}/mcp"),
        LogFormat::Json => tracing::info!("listening on http://{address}/mcp"),
    }
    if !address.ip().is_loopback() && config.lets_anyone_in() {
        tracing::warn!(
            "anyone who reaches {address} can call, and take over calls of others whose tokens they get: \
             set --tokens, or [auth] in the configuration"
        );
    }
    serve(listener, server, hosts(config), stop).await?;
    Ok(())
}

fn build(options: &Options, ready: Ready) -> Result<Server, Failure> {
    let Ready {
        config: Config {
            sealing, limits, ..
        },
        keys,
        tokens,
        auth,
    } = ready;
    let mut builder = Server::builder("refrain", env!("CARGO_PKG_VERSION"))
        .title("Refrain's tools")
        .instructions("Tools that ask for what they need, one round at a time.")
        .limits(limits)
        .audience(sealing.audience)
        .token_ttl(sealing.ttl)
        .flow_ttl(sealing.flow_ttl)
        .clock_skew(sealing.skew)
        .max_token(sealing.max_token);
    if let Some(ring) = keys.map_or_else(keys_of_environment, |ring| Ok(Some(ring)))? {
        builder = builder.keys(ring);
    }
    if let Some(tokens) = tokens {
        builder = builder.authenticator(tokens);
    }
    builder = auth.apply(builder);
    if let Some(instance) = &options.explain {
        builder = builder.explain_as(instance);
    }
    let ledger = Ledger::open(options.ledger.as_deref())?;
    Ok(tools::register(builder, ledger, options.accounts).build()?)
}

/// The keys from the environment, for where there is no file.
fn keys_of_environment() -> Result<Option<KeyRing>, Failure> {
    match std::env::var(KEYS) {
        Ok(text) => Ok(Some(
            text.parse().map_err(|error| format!("${KEYS}: {error}"))?,
        )),
        Err(_) => Ok(None),
    }
}

fn hosts(config: &Config) -> AllowedHosts {
    match &config.allowed_hosts {
        Some(hosts) if hosts.iter().any(|host| host == "*") => AllowedHosts::any(),
        Some(hosts) => AllowedHosts::only(hosts),
        None => AllowedHosts::local(),
    }
}

/// Done when the process is asked to end. Asked a second time, the process ends at once.
fn told_to_stop() -> Result<impl Future<Output = ()>, Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut told = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    Ok(async move {
        told().await;
        tokio::spawn(async move {
            // Some supervisors send each signal twice, to the process and to its group.
            tokio::time::sleep(Duration::from_secs(1)).await;
            while tokio::time::timeout(Duration::ZERO, told()).await.is_ok() {}
            told().await;
            tracing::warn!("told to stop twice: running calls are dropped");
            std::process::exit(1);
        });
    })
}

/// Reads the key file again on SIGHUP. A file that is not usable leaves the keys as they are.
fn reload_on_hangup(server: Server, keys: Option<PathBuf>) -> Result<(), Failure> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let Some(file) = &keys else {
                tracing::warn!("SIGHUP: there is no key file to read again");
                continue;
            };
            match keys::read(file) {
                Ok(ring) => {
                    tracing::info!(keys = ?ring, "the keys were read again");
                    server.reload_keys(ring);
                }
                Err(error) => tracing::error!(%error, "the keys stay as they are"),
            }
        }
    });
    Ok(())
}
