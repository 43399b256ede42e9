//! `refrain serve`: one instance with the documents' tools.

use crate::auth::{self, Auth};
use crate::config::{Config, LogFormat};
use crate::tools::{self, Ledger};
use crate::{Failure, keys, runtime};
use clap::Args;
use refrain::{AllowedHosts, BearerTokens, KeyRing, Server, serve, serve_stdio};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// The environment variable that holds a key ring, where there is no file.
const KEYS: &str = "REFRAIN_KEYS";

#[derive(Args)]
pub(crate) struct Options {
    /// A TOML file with the same settings; flags override it.
    #[arg(long)]
    config: Option<PathBuf>,
    /// The address to listen on [default: 127.0.0.1:8080].
    #[arg(long)]
    listen: Option<SocketAddr>,
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
    #[arg(long = "allow-host")]
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
    let mut config = match &options.config {
        Some(file) => Config::read(file)?,
        None => Config::default(),
    };
    config.auth.override_with(&options.auth);
    let log = options.log.or(config.log).unwrap_or_default();
    start_logging(log);
    let keys = options.keys.clone().or(config.keys.clone());
    let tokens = options.tokens.as_deref().or(config.tokens.as_deref());
    let auth = config.auth.ready(tokens)?;
    let open = tokens.is_none() && !auth.is_set();
    let server = build(options, &config, keys.as_ref(), auth)?;
    runtime()?.block_on(async {
        reload_on_hangup(server.clone(), keys)?;
        if options.stdio {
            let input = tokio::io::BufReader::new(tokio::io::stdin());
            serve_stdio(server, input, tokio::io::stdout()).await?;
            // Standard input is read by a thread of its own, which cannot be ended from here.
            std::process::exit(0);
        }
        let default = SocketAddr::from(([127, 0, 0, 1], 8080));
        let listen = options.listen.or(config.listen).unwrap_or(default);
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|error| format!("cannot listen on {listen}: {error}"))?;
        let address = listener.local_addr()?;
        let hosts = hosts(options, &config);
        // Before the line that says it listens: whoever read that may send a signal.
        let stop = told_to_stop()?;
        match log {
            LogFormat::Text => anstream::eprintln!("refrain: listening on http://{address}/mcp"),
            LogFormat::Json => tracing::info!("listening on http://{address}/mcp"),
        }
        if !address.ip().is_loopback() && open {
            tracing::warn!(
                "anyone who reaches {address} can call, and take over calls of others whose tokens they get: \
                 set --tokens, or [auth] in the configuration"
            );
        }
        serve(listener, server, hosts, stop).await?;
        Ok(ExitCode::SUCCESS)
    })
}

fn build(
    options: &Options,
    config: &Config,
    keys: Option<&PathBuf>,
    auth: Auth,
) -> Result<Server, Failure> {
    let name = "refrain";
    let mut builder = Server::builder(name, env!("CARGO_PKG_VERSION"))
        .title("Refrain's tools")
        .instructions("Tools that ask for what they need, one round at a time.")
        .limits(config.limits.to_limits());
    if let Some(audience) = options.audience.as_ref().or(config.audience.as_ref()) {
        builder = builder.audience(audience);
    }
    if let Some(ring) = key_ring(keys)? {
        builder = builder.keys(ring);
    }
    if let Some(seconds) = config.token_ttl_seconds {
        builder = builder.token_ttl(Duration::from_secs(seconds));
    }
    if let Some(seconds) = config.flow_ttl_seconds {
        builder = builder.flow_ttl(Duration::from_secs(seconds));
    }
    if let Some(seconds) = config.clock_skew_seconds {
        builder = builder.clock_skew(Duration::from_secs(seconds));
    }
    if let Some(characters) = config.limits.token_chars {
        builder = builder.max_token(characters);
    }
    if let Some(file) = options.tokens.as_ref().or(config.tokens.as_ref()) {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("the tokens {} cannot be read: {error}", file.display()))?;
        let tokens =
            BearerTokens::parse(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        builder = builder.authenticator(tokens);
    }
    builder = auth.apply(builder);
    if let Some(instance) = &options.explain {
        builder = builder.explain_as(instance);
    }
    let ledger = Ledger::open(options.ledger.as_deref())?;
    Ok(tools::register(builder, ledger, options.accounts).build()?)
}

/// The keys from a file or the environment.
fn key_ring(file: Option<&PathBuf>) -> Result<Option<KeyRing>, Failure> {
    if let Some(file) = file {
        return keys::read(file).map(Some);
    }
    match std::env::var(KEYS) {
        Ok(text) => Ok(Some(
            text.parse().map_err(|error| format!("${KEYS}: {error}"))?,
        )),
        Err(_) => Ok(None),
    }
}

fn hosts(options: &Options, config: &Config) -> AllowedHosts {
    let given = &options.allowed_hosts;
    match &config.allowed_hosts {
        _ if given.iter().any(|host| host == "*") => AllowedHosts::any(),
        _ if !given.is_empty() => AllowedHosts::only(given),
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

/// Log lines go to standard error: standard output may be the transport.
fn start_logging(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
}
