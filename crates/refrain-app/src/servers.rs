//! The servers of one instance, built from its settings.

use crate::config::Ready;
use crate::store::StoreUrl;
use crate::{App, Failure};
use clap::Args;
use refrain::runtime::SystemSource;
use refrain::server::{Draft, KeyRing, Server, ServerBuilder};
use refrain::store::Store;
use std::sync::Arc;

/// The environment variable with the key ring, used when no key file is set.
const KEYS: &str = "REFRAIN_KEYS";

/// What `serve` adds to the settings.
#[derive(Default)]
pub(crate) struct Extras {
    /// The instance's name in the `refrain-round` header of replies.
    pub(crate) explain: Option<String>,
    /// The drafts to speak beside the ratified protocol.
    pub(crate) drafts: Vec<Draft>,
}

/// The server of `/mcp`, and those of the drafts.
pub(crate) struct Servers {
    pub(crate) server: Server,
    pub(crate) drafts: Vec<(Draft, Server)>,
}

impl Servers {
    /// Opens the store and builds the servers.
    pub(crate) async fn build<F: Args>(
        app: &App<F>,
        flags: &F,
        mut ready: Ready,
        extras: &Extras,
    ) -> Result<Self, Failure> {
        if ready.keys.is_none() {
            ready.keys = keys_of_environment()?;
        }
        check_keys(app.name, &ready)?;
        let store = open_store(&mut ready).await?;
        let mut server = shared((app.build)(flags, None)?, &ready, &store, extras);
        if let Some(url) = &ready.config.advertise {
            server = server.advertise(url.as_str());
        }
        let server = server.build()?;
        let speaking = |draft: &Draft| {
            let builder = shared((app.build)(flags, Some(*draft))?, &ready, &store, extras);
            Ok((*draft, speaking(builder, *draft, &ready, &server).build()?))
        };
        let drafts = extras.drafts.iter().map(speaking);
        let drafts = drafts.collect::<Result<_, Failure>>()?;
        Ok(Self { server, drafts })
    }

    pub(crate) fn all(&self) -> Vec<Server> {
        let drafts = self.drafts.iter().map(|(_, server)| server);
        [&self.server].into_iter().chain(drafts).cloned().collect()
    }
}

async fn open_store(ready: &mut Ready) -> Result<Arc<dyn Store>, Failure> {
    let named = ready.config.store.take().map(|url| url.0);
    let named = StoreUrl::named(named)?;
    let is_default = named.is_none();
    let url = named.unwrap_or_default();
    if is_default && ready.keys.is_some() {
        tracing::warn!(
            "no store is named, so that it is {url} in the working directory: instances that share these keys have to \
             share a store as well, for tasks; name it with --store"
        );
    }
    url.open().await
}

/// Settings that need keys which last longer than the process.
fn check_keys(program: &str, ready: &Ready) -> Result<(), Failure> {
    if ready.keys.is_some() {
        return Ok(());
    }
    let need = if ready.config.tasks.seal {
        "tasks.seal needs keys that are there after a restart"
    } else if ready.config.advertise.is_some() {
        "advertise needs keys that all instances share"
    } else {
        return Ok(());
    };
    Err(format!(
        "{need}: make some with `{program} keys new FILE`, and name the file as `keys` in the configuration or with \
         --keys, or put its text into ${KEYS}"
    )
    .into())
}

/// The settings that all servers of the instance share.
fn shared(
    builder: ServerBuilder,
    ready: &Ready,
    store: &Arc<dyn Store>,
    extras: &Extras,
) -> ServerBuilder {
    let config = &ready.config;
    let mut builder = builder
        .limits(config.limits.server())
        .token_ttl(config.token_ttl_seconds.seconds())
        .flow_ttl(config.flow_ttl_seconds.seconds())
        .clock_skew(config.clock_skew_seconds.seconds())
        .max_token(config.limits.token_chars.size())
        .replay_log(store.clone())
        .tasks(store.clone(), config.tasks.options());
    if let Some(audience) = &config.audience {
        builder = builder.audience(audience.as_str());
    }
    if let Some(ring) = &ready.keys {
        builder = builder.keys(ring.clone());
    }
    if let Some(tokens) = &ready.tokens {
        builder = builder.authenticator(tokens.clone());
    }
    builder = ready.auth.clone().apply(builder);
    if let Some(instance) = &extras.explain {
        builder = builder.explain_as(instance);
    }
    builder
}

/// A draft's tools are others: it shares neither tokens nor tasks with the main server, but its metrics.
fn speaking(builder: ServerBuilder, draft: Draft, ready: &Ready, main: &Server) -> ServerBuilder {
    let builder = builder.draft(draft).count_with(main);
    match ready.keys {
        Some(_) => builder,
        // The main server has already warned that there are no keys.
        None => builder.keys(KeyRing::generate(&SystemSource::new())),
    }
}

fn keys_of_environment() -> Result<Option<KeyRing>, Failure> {
    match std::env::var(KEYS) {
        Ok(text) => Ok(Some(
            text.parse().map_err(|error| format!("${KEYS}: {error}"))?,
        )),
        Err(_) => Ok(None),
    }
}
