//! Checks the configuration of a builder and builds the server.

use super::{BuildError, ServerBuilder};
use crate::catalog::{Catalog, Rules};
use crate::legacy::LegacySessions;
use crate::limits::InstanceLimits;
use crate::live::LiveCalls;
use crate::metrics::{GaugeSource, Metrics};
use crate::relay::Relay;
use crate::rounds::{Flows, Rounds, SealedLog};
use crate::server::{Server, ServerInner, WeakServer};
use crate::services::Services;
use crate::skills::Skills;
use crate::subscriptions::Subscriptions;
use crate::tasks::{Namespace, Tasks};
use refrain_core::{KeyRing, ReplayLog, Sealer};
use refrain_wire::{CALL_ID_KEY, SKILLS_EXTENSION, TASKS_EXTENSION};
use regex::Regex;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value};
use std::sync::Arc;

impl ServerBuilder {
    /// Checks the configuration and builds the server.
    pub fn build(mut self) -> Result<Server, BuildError> {
        self.limits.check()?;
        if self.sealing.skew > Self::MAX_CLOCK_SKEW {
            return Err(BuildError::ClockSkew(self.sealing.skew));
        }
        self.declare_extensions()?;
        self.check_webhooks()?;
        if self.advertise.is_some() && self.keys.is_none() {
            return Err(BuildError::AdvertiseNeedsKeys);
        }
        let namespace = Namespace::new(std::mem::take(&mut self.task_namespace))?;
        let header = self.client_address_header.take();
        let client_address_header = header
            .map(|name| name.parse().map_err(|_| BuildError::HeaderName(name)))
            .transpose()?;
        let resource = self.access.metadata.as_ref();
        let resource = resource.map(|metadata| metadata.resource.as_str());
        let server_card = self.server_card.take();
        let server_card = server_card.map(|card| card.publish(&self.info, resource));
        let server_card = server_card.transpose()?;
        let skills = Skills::new(&self.skills)?;
        let services = self.services();
        let catalog = Arc::new(self.catalog(&services)?);
        self.warn_about_scopes(&catalog);
        let auth = Arc::new(self.access.build(self.authenticator)?);
        let relay = Arc::new(Relay::new(self.advertise, self.peers, &services)?);
        let subscriptions = Subscriptions::new(catalog.clone(), auth.clone(), services.clone());
        let subscriptions = Arc::new(subscriptions);
        services.metrics.add_server(GaugeSource {
            limits: services.limits.clone(),
            subscriptions: subscriptions.registry.clone(),
        });
        Ok(Server(Arc::new_cyclic(|server| {
            let server = WeakServer::new(server.clone());
            let flows = Flows::new(server, catalog.clone(), services.clone());
            let flows = Arc::new(flows);
            let tasks = self.task_store.map(|store| {
                let (catalog, auth) = (catalog.clone(), auth.clone());
                let (flows, services) = (flows.clone(), services.clone());
                let (store, webhooks) = ((store, self.task_options), self.webhooks);
                Tasks::new(store, namespace, webhooks, catalog, auth, flows, services)
            });
            let live = LiveCalls::new(&relay.own, flows.clone(), services.clone());
            let rounds = Rounds::new(
                catalog.clone(),
                auth.clone(),
                flows,
                tasks.clone(),
                live.clone(),
                relay.clone(),
                services.clone(),
            );
            ServerInner {
                legacy: LegacySessions::new(
                    catalog.clone(),
                    auth.clone(),
                    rounds.clone(),
                    subscriptions.clone(),
                    relay.clone(),
                    services.clone(),
                ),
                instructions: self.instructions,
                extensions: self.extensions,
                instance: self.instance,
                catalog,
                subscriptions,
                live,
                relay,
                auth,
                client_address_header,
                rounds,
                tasks,
                server_card,
                skills,
                services: services.clone(),
            }
        })))
    }

    fn check_webhooks(&self) -> Result<(), BuildError> {
        for (index, webhook) in self.webhooks.iter().enumerate() {
            let name = webhook.name.clone();
            if self.task_store.is_none() {
                return Err(BuildError::WebhookNeedsTaskStore(name));
            }
            if self.webhooks[..index]
                .iter()
                .any(|other| other.name == name)
            {
                let kind = "webhook";
                return Err(BuildError::Duplicate { kind, name });
            }
        }
        Ok(())
    }

    fn warn_about_scopes(&self, catalog: &Catalog) {
        if self.authenticator.is_none() && catalog.entries().needs_scopes() {
            tracing::warn!(
                "no authenticator is set: HTTP callers cannot use entries that need scopes; set one with .authenticator(..)"
            );
        }
    }

    /// Checks the declared extensions and adds the built-in ones.
    fn declare_extensions(&mut self) -> Result<(), BuildError> {
        if let Some(name) = self.extensions.keys().find(|name| !is_extension_name(name)) {
            return Err(BuildError::ExtensionName(name.clone()));
        }
        for name in [TASKS_EXTENSION, SKILLS_EXTENSION, CALL_ID_KEY] {
            if self.extensions.contains_key(name) {
                return Err(BuildError::ReservedExtension(name));
            }
        }
        let no_settings = || Value::Object(Map::new());
        // Tells clients that they may repeat a call whose response was lost.
        self.extensions.insert(CALL_ID_KEY.into(), no_settings());
        if !self.skills.is_empty() {
            self.extensions
                .insert(SKILLS_EXTENSION.into(), no_settings());
        }
        if self.task_store.is_some() {
            self.task_options.check()?;
            if self.task_options.seal && self.keys.is_none() {
                return Err(BuildError::SealingNeedsKeys);
            }
            self.extensions
                .insert(TASKS_EXTENSION.into(), no_settings());
        }
        Ok(())
    }

    fn services(&mut self) -> Services {
        let keys = self.keys.take().unwrap_or_else(|| {
            tracing::warn!(
                "no keys are configured: a call that waits for an answer can continue only in this process, and not after a restart"
            );
            KeyRing::generate(&*self.source)
        });
        let sealer = Arc::new(Sealer::new(keys, self.sealing.clone(), self.source.clone()));
        let is_sealed = self.task_store.is_some() && self.task_options.seal;
        let replay_log = self.replay_log.clone().map(|log| match is_sealed {
            true => Arc::new(SealedLog::new(log, sealer.clone())) as Arc<dyn ReplayLog>,
            false => log,
        });
        let info = to_raw_value(&self.info).expect("server info serializes");
        let metrics = self.metrics.take();
        Services {
            info: info.into(),
            source: self.source.clone(),
            sealer,
            metrics: metrics.unwrap_or_else(|| Metrics::new(&self.info.name, &self.info.version)),
            #[cfg(feature = "metrics")]
            registries: std::mem::take(&mut self.registries),
            limits: InstanceLimits::new(self.limits.clone(), self.authenticator.is_some()),
            replay_log,
        }
    }

    fn catalog(&mut self, services: &Services) -> Result<Catalog, BuildError> {
        let rules = Rules {
            states: std::mem::take(&mut self.states),
            has_replay_log: self.replay_log.is_some(),
            has_task_store: self.task_store.is_some(),
            page_size: self.limits.page_size,
            caches: self.caches,
            metrics: services.metrics.clone(),
        };
        Catalog::new(&self.registered, rules)
    }
}

/// Whether a name has the form `prefix/name`, with a prefix of labels separated by dots.
fn is_extension_name(name: &str) -> bool {
    let label = "[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?";
    let form = format!(r"^{label}(\.{label})*/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$");
    let form = Regex::new(&form).expect("the regex is valid");
    form.is_match(name)
}
