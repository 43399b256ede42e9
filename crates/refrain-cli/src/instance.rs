//! What `refrain serve` and `refrain worker` have in common: the settings, the server with its tools and its store, and
//! the signals it listens to.

use crate::config::{self, Config, Loaded, LogFormat, Ready};
use crate::store::StoreUrl;
use crate::tools::{self, Ledger};
use crate::{Failure, keys, log, runtime};
use clap::Args;
use refrain::store::Store;
use refrain::{Draft, KeyRing, Server, SystemSource, serve_metrics};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// The environment variable that holds a key ring, where there is no file.
const KEYS: &str = "REFRAIN_KEYS";

#[derive(Args)]
pub(crate) struct Common {
    /// A TOML file with the same settings and more; flags override it. `refrain config` shows and checks it.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Where tasks live: `sqlite:FILE` for the processes of one machine, `postgres://…` for a fleet. Other users can see
    /// flags in the list of processes: write a URL with a password as `store` into the configuration, or into
    /// $REFRAIN_STORE [default: sqlite:refrain.db].
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,
    /// The address of a port of its own for `/metrics`, `/healthz` and `/readyz`; without it there is none.
    #[arg(long, value_name = "ADDRESS", value_parser = config::address)]
    metrics: Option<SocketAddr>,
    /// The key file that the fleet shares. Without one, $REFRAIN_KEYS; without that, a key made at start.
    #[arg(long)]
    keys: Option<PathBuf>,
    /// The name of the service that tokens are bound to [default: refrain].
    #[arg(long)]
    audience: Option<String>,
    /// How log lines are written [default: text].
    #[arg(long)]
    log: Option<LogFormat>,
    /// Which version of the `accounts` tools to have.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    accounts: u8,
    /// A file to which every effect of a step is appended, a line each.
    #[arg(long)]
    ledger: Option<PathBuf>,
}

impl Common {
    /// The settings: what the file says, and what these flags say, which counts more.
    pub(crate) fn load(&self) -> Result<Loaded, Failure> {
        let mut loaded = match &self.config {
            Some(file) => Loaded::read(file)?,
            None => Loaded::default(),
        };
        loaded.flag("store", self.store.as_ref(), |c, v| c.store = Some(v));
        loaded.flag("metrics", self.metrics.as_ref(), |c, v| c.metrics = Some(v));
        loaded.flag("keys", self.keys.as_ref(), |c, v| c.keys = Some(v));
        loaded.flag("audience", self.audience.as_ref(), |c, v| {
            c.sealing.audience = v;
        });
        loaded.flag("log", self.log.as_ref(), |c, v| c.log = v);
        Ok(loaded)
    }

    /// Runs an instance with these settings: `work` until it is over, the port for metrics beside it. `explain` is the
    /// name by which replies speak of it, and `drafts` are those that it speaks as well.
    pub(crate) fn run(
        &self,
        loaded: Loaded,
        explain: Option<&str>,
        drafts: &[Draft],
        work: impl AsyncFnOnce(Servers, &Config) -> Result<(), Failure>,
    ) -> Result<ExitCode, Failure> {
        let ready = loaded.ready()?;
        let config = ready.config.clone();
        log::start(config.log)?;
        let ended = runtime()?.block_on(async {
            let servers = self.build(ready, explain, drafts).await?;
            reload_on_hangup(servers.all(), config.keys.clone())?;
            let server = servers.server.clone();
            let metrics = listen_for_metrics(config.metrics).await?;
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
                worked = work(servers, &config) => worked?,
                failed = watching => failed?,
            }
            Ok(ExitCode::SUCCESS)
        });
        match ended {
            // Whoever reads JSON reads nothing else.
            Err(error) if config.log == LogFormat::Json => {
                let error: Failure = error;
                tracing::error!(%error, "the instance cannot go on");
                Ok(ExitCode::FAILURE)
            }
            ended => ended,
        }
    }

    async fn build(
        &self,
        mut ready: Ready,
        explain: Option<&str>,
        drafts: &[Draft],
    ) -> Result<Servers, Failure> {
        let keys = ready.keys.take();
        ready.keys = keys.map_or_else(keys_of_environment, |ring| Ok(Some(ring)))?;
        if ready.config.tasks.seal && ready.keys.is_none() {
            return Err(format!(
                "tasks.seal needs keys that are there after a restart: make some with `refrain keys new FILE`, and name \
                 the file as `keys` in the configuration or with --keys, or put its text into ${KEYS}"
            )
            .into());
        }
        if ready.config.peers.peers().is_some() && ready.keys.is_none() {
            return Err(format!(
                "peers need keys that they share: make some with `refrain keys new FILE`, and name the file as `keys` in \
                 the configuration or with --keys, or put its text into ${KEYS}"
            )
            .into());
        }
        let named = StoreUrl::named(ready.config.store.take())?;
        let unnamed = named.is_none();
        let url = named.unwrap_or_default();
        if unnamed && ready.keys.is_some() {
            tracing::warn!(
                "no store is named, so that it is {url} in the working directory: instances that share these keys have to \
                 share a store as well, for older clients and tasks; name it with --store"
            );
        }
        let store = Opened {
            store: url.open().await?,
            shared: url.is_shared(),
        };
        let server = self.server(&ready, &store, explain, None)?;
        let speaking = |draft: &Draft| {
            let beside = Some((*draft, &server));
            Ok((*draft, self.server(&ready, &store, explain, beside)?))
        };
        let drafts = drafts.iter().map(speaking);
        let drafts = drafts.collect::<Result<_, Failure>>()?;
        Ok(Servers { server, drafts })
    }

    /// A server with the documents' tools: those of a draft as its document shows them, beside the one of `/mcp`.
    fn server(
        &self,
        ready: &Ready,
        Opened { store, shared }: &Opened,
        explain: Option<&str>,
        draft: Option<(Draft, &Server)>,
    ) -> Result<Server, Failure> {
        let config = &ready.config;
        let ledger = Ledger::open(self.ledger.as_deref())?;
        let sealing = &config.sealing;
        let mut builder = Server::builder("refrain", env!("CARGO_PKG_VERSION"))
            .title("Refrain's tools")
            .instructions("Tools that ask for what they need, one round at a time.")
            .limits(config.limits.clone())
            .audience(&sealing.audience)
            .token_ttl(sealing.ttl)
            .flow_ttl(sealing.flow_ttl)
            .clock_skew(sealing.skew)
            .max_token(sealing.max_token)
            .replay_log(store.clone())
            .tasks(store.clone(), config.tasks.clone());
        // What no other instance reads carries no answers between them, and ends no session everywhere.
        if *shared {
            builder = builder.sessions(store.clone());
        }
        match (&ready.keys, draft) {
            (Some(ring), _) => builder = builder.keys(ring.clone()),
            // That there is none was said of the other server.
            (None, Some(_)) => builder = builder.keys(KeyRing::generate(&SystemSource::new())),
            (None, None) => {}
        }
        match draft {
            // Its tools are others: neither tokens nor tasks go from one to the other, and peers are of one kind.
            Some((draft, main)) => builder = builder.draft(draft).count_with(main),
            None => {
                if let Some(peers) = config.peers.peers() {
                    builder = builder.peers(peers);
                }
            }
        }
        if let Some(tokens) = &ready.tokens {
            builder = builder.authenticator(tokens.clone());
        }
        builder = ready.auth.clone().apply(builder);
        if let Some(instance) = explain {
            builder = builder.explain_as(instance);
        }
        let draft = draft.map(|(draft, _)| draft);
        Ok(tools::register(builder, ledger, self.accounts, draft).build()?)
    }
}

/// A store, and whether other instances can use it.
struct Opened {
    store: Arc<dyn Store>,
    shared: bool,
}

/// The server of an instance, and those that speak drafts.
pub(crate) struct Servers {
    pub(crate) server: Server,
    pub(crate) drafts: Vec<(Draft, Server)>,
}

impl Servers {
    fn all(&self) -> Vec<Server> {
        let drafts = self.drafts.iter().map(|(_, server)| server);
        [&self.server].into_iter().chain(drafts).cloned().collect()
    }
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

pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
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

/// Says that the instance is up.
pub(crate) fn say(config: &Config, what: &str) {
    match config.log {
        LogFormat::Text => anstream::eprintln!("refrain: {what}"),
        LogFormat::Json => tracing::info!("{what}"),
    }
}

/// Done when the process is asked to end. Asked a second time, the process ends at once.
pub(crate) fn told_to_stop() -> Result<impl Future<Output = ()>, Failure> {
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
fn reload_on_hangup(servers: Vec<Server>, keys: Option<PathBuf>) -> Result<(), Failure> {
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
                    for server in &servers {
                        server.reload_keys(ring.clone());
                    }
                }
                Err(error) => tracing::error!(%error, "the keys stay as they are"),
            }
        }
    });
    Ok(())
}
