//! The servers of one instance, built from its configuration.

use crate::config::CheckedConfig;
use crate::error::{program, with_hint};
use crate::store::StoreUrl;
use crate::{App, AppError, EndpointFlags, Endpoints};
use clap::Args;
use refrain::auth::BearerTokens;
use refrain::runtime::SystemSource;
use refrain::server::{KeyRing, Server, ServerBuilder, TlsCertificate};
use refrain::store::Store;
use std::sync::Arc;

/// The environment variable with the keys of a fleet.
pub const KEYS: &str = "REFRAIN_KEYS";

pub(crate) struct Servers {
    pub(crate) main: Server,
    pub(crate) endpoints: Endpoints,
    /// The certificate of the endpoints.
    pub(crate) tls: Option<TlsCertificate>,
    /// The callers in the token file.
    pub(crate) tokens: Option<BearerTokens>,
}

impl Servers {
    pub(crate) fn build<F: Args, C>(
        app: &App<F, C>,
        flags: &F,
        builder: &ServerBuilder,
        config: CheckedConfig,
        store: &Arc<dyn Store>,
        endpoints: &EndpointFlags,
    ) -> Result<Self, AppError> {
        let mut main = configure(builder.clone(), &config, store);
        if let Some(url) = &config.config.advertise {
            main = main.advertise(url.as_str());
        }
        if let Some(card) = &config.config.server_card {
            main = main.server_card(card.card());
        }
        let main = main.build()?;
        let endpoints = Endpoints::build(endpoints, &config, store, &main, |draft| {
            match &app.build_endpoint {
                Some(build) => build(flags, draft),
                None => Ok(builder.clone()),
            }
        })?;
        Ok(Self {
            main,
            endpoints,
            tls: config.tls,
            tokens: config.tokens,
        })
    }

    pub(crate) fn all(&self) -> Vec<Server> {
        let main = std::iter::once(&self.main);
        main.chain(self.endpoints.servers()).cloned().collect()
    }
}

/// Completes the configuration from the environment, and opens the store.
pub(crate) async fn open_store<F: Args, C>(
    app: &App<F, C>,
    config: &mut CheckedConfig,
) -> Result<Arc<dyn Store>, AppError> {
    if config.keys.is_none() {
        config.keys = keys_from_environment()?;
    }
    check_keys(config)?;
    let configured = config.config.store.take().map(|url| url.0);
    let url = match StoreUrl::or_environment(configured)? {
        Some(url) => url,
        None => {
            let url = app.default_store.clone();
            if config.keys.is_some() {
                tracing::warn!(
                    store = %url,
                    hint = "tasks, `cx.once` and single-use tokens need a store that all instances share: set --store",
                    "using the default store"
                );
            }
            url
        }
    };
    url.open().await
}

/// Checks the settings that need keys which outlive the process.
fn check_keys(config: &CheckedConfig) -> Result<(), AppError> {
    let Some(message) = missing_keys(config) else {
        return Ok(());
    };
    let program = program();
    Err(with_hint(
        message,
        format!(
            "create a key file with `{program} keys new FILE`, then pass --keys FILE, set `keys` in the configuration to \
             its path, or put the text of the file into ${KEYS}"
        ),
    ))
}

/// The setting that needs keys, if there are none.
pub(crate) fn missing_keys(config: &CheckedConfig) -> Option<&'static str> {
    if config.keys.is_some() {
        None
    } else if config.config.tasks.seal {
        Some("`tasks.seal` needs keys that outlive the process")
    } else if config.config.advertise.is_some() {
        Some(
            "--advertise (or `advertise` in the configuration) needs keys that all instances share",
        )
    } else {
        None
    }
}

/// Applies the settings that all servers of the instance share.
pub(crate) fn configure(
    builder: ServerBuilder,
    checked: &CheckedConfig,
    store: &Arc<dyn Store>,
) -> ServerBuilder {
    let config = &checked.config;
    let mut builder = builder
        .limits(config.limits.server())
        .token_ttl(config.token_ttl_seconds.into())
        .flow_ttl(config.flow_ttl_seconds.into())
        .clock_skew(config.clock_skew_seconds.into())
        .max_token(config.limits.token_chars.into())
        .store(store.clone())
        .task_options(config.tasks.options());
    if let Some(audience) = &config.audience {
        builder = builder.audience(audience.as_str());
    }
    if let Some(header) = &config.client_address_header {
        builder = builder.client_address_header(&header.0);
    }
    if let Some(ring) = &checked.keys {
        builder = builder.keys(ring.clone());
    } else if checked.is_worker {
        // Without keys, the builder warns about calls. A worker serves none.
        builder = builder.keys(KeyRing::generate(&SystemSource::new()));
    }
    if let Some(tokens) = &checked.tokens {
        builder = builder.authenticator(tokens.clone());
    }
    for webhook in &checked.webhooks {
        builder = builder.webhook(webhook.clone());
    }
    builder = checked.auth.clone().apply(builder);
    if let Some(instance) = &checked.explain {
        builder = builder.explain_as(instance);
    }
    builder
}

fn keys_from_environment() -> Result<Option<KeyRing>, AppError> {
    let Ok(text) = std::env::var(KEYS) else {
        return Ok(None);
    };
    let ring = text.parse::<KeyRing>().map_err(|error| {
        with_hint(
            format!("invalid ${KEYS}: {error}"),
            format!("${KEYS} is the text of a key file; pass the path of a file with --keys"),
        )
    })?;
    Ok(Some(ring))
}
