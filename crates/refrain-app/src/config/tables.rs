//! The tables of the configuration file. `defaults.toml` has the defaults and documents every setting.

use super::value::{
    Address, BoundedInt, Count, HeaderName, Hosts, LogFormat, Millis, NonBlank, Origin, Seconds,
    Size,
};
use crate::auth::AuthTable;
use crate::store::StoreUrl;
use crate::tls::TlsFiles;
use crate::webhooks::WebhookTable;
use refrain::server::{ServerBuilder, ServerCard, ServerLimits};
use refrain::task::{Limits, TaskOptions};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) listen: Address,
    pub(crate) metrics: Option<Address>,
    pub(crate) store: Option<NonBlank<StoreUrl>>,
    pub(crate) tls_cert: Option<NonBlank<PathBuf>>,
    pub(crate) tls_key: Option<NonBlank<PathBuf>>,
    pub(crate) keys: Option<NonBlank<PathBuf>>,
    pub(crate) tokens: Option<NonBlank<PathBuf>>,
    pub(crate) allowed_hosts: Option<Hosts>,
    pub(crate) allowed_origins: Option<Vec<Origin>>,
    pub(crate) advertise: Option<NonBlank<String>>,
    pub(crate) client_address_header: Option<HeaderName>,
    pub(crate) audience: Option<NonBlank<String>>,
    pub(crate) log: LogFormat,
    pub(crate) token_ttl_seconds: Seconds<1>,
    pub(crate) flow_ttl_seconds: Seconds<1>,
    pub(crate) clock_skew_seconds: BoundedInt<0, { ServerBuilder::MAX_CLOCK_SKEW.as_secs() }>,
    pub(crate) limits: LimitsTable,
    pub(crate) tasks: TasksTable,
    #[serde(default)]
    pub(crate) auth: AuthTable,
    pub(crate) server_card: Option<ServerCardTable>,
    #[serde(default)]
    pub(crate) webhooks: BTreeMap<String, WebhookTable>,
}

impl Config {
    /// The files of the certificate, if both are set.
    pub(crate) fn tls(&self) -> Option<TlsFiles> {
        Some(TlsFiles {
            cert: self.tls_cert.as_ref()?.0.clone(),
            key: self.tls_key.as_ref()?.0.clone(),
        })
    }

    /// Whether every caller is anonymous.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        self.tokens.is_none() && self.auth.jwt.is_none() && self.auth.proxy.is_none()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct ServerCardTable {
    name: NonBlank<String>,
    url: Option<NonBlank<String>>,
}

impl ServerCardTable {
    pub(crate) fn card(&self) -> ServerCard {
        let card = ServerCard::new(self.name.as_str());
        match &self.url {
            Some(url) => card.url(url.as_str()),
            None => card,
        }
    }

    /// The first invalid setting, and the reason.
    pub(super) fn find_error(&self) -> Option<(&'static str, String)> {
        let (setting, error) = match ServerCard::new(self.name.as_str()).check() {
            Err(error) => ("server_card.name", error),
            Ok(()) => ("server_card.url", self.card().check().err()?),
        };
        Some((setting, error.to_string()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct LimitsTable {
    connections: Size<1>,
    connections_each: Size<1>,
    head_bytes: Size<8192>,
    body_bytes: Size<256>,
    body_bytes_all: Size<256>,
    body_bytes_each: Size<256>,
    body_seconds: Seconds<1>,
    discard_bytes: Size<0>,
    json_values: Size<256>,
    pub(crate) token_chars: Size<128>,
    pub(super) concurrent_calls: Size<1>,
    pub(super) concurrent_calls_each: Size<1>,
    pub(super) shed_above: Size<0>,
    round_seconds: Seconds<1>,
    live_calls: Size<0>,
    live_calls_each: Size<0>,
    live_bytes: Size<0>,
    live_bytes_each: Size<0>,
    live_seconds: Seconds<1>,
    idle_seconds: Seconds<1>,
    drain_seconds: Seconds<0>,
    drain_grace_ms: Millis<0>,
    page_size: Size<1>,
    subscriptions: Size<0>,
    subscriptions_each: Size<0>,
    subscribed_resources: Size<0>,
    subscribed_bytes: Size<0>,
    keep_alive_ms: Millis<1>,
    session_seconds: Seconds<1>,
    sessions: Size<0>,
    sessions_each: Size<0>,
    session_bytes: Size<0>,
    session_bytes_each: Size<0>,
    resume_seconds: Seconds<0>,
    resume_bytes: Size<0>,
    resume_bytes_all: Size<0>,
    resume_bytes_each: Size<0>,
    batch: Size<1>,
    rounds: Count<1>,
    asks: Size<1>,
    entries: Size<1>,
    retries: Count<0>,
    sheds: Count<0>,
    notes: Size<1>,
}

impl LimitsTable {
    pub(crate) fn server(&self) -> ServerLimits {
        ServerLimits {
            connections: self.connections.size(),
            connections_each: self.connections_each.size(),
            head: self.head_bytes.size(),
            body: self.body_bytes.size(),
            body_all: self.body_bytes_all.size(),
            body_each: self.body_bytes_each.size(),
            body_time: self.body_seconds.seconds(),
            discard: self.discard_bytes.size(),
            json_values: self.json_values.size(),
            concurrent_calls: self.concurrent_calls.size(),
            concurrent_calls_each: self.concurrent_calls_each.size(),
            shed_above: self.shed_above.size(),
            round_time: self.round_seconds.seconds(),
            live_calls: self.live_calls.size(),
            live_calls_each: self.live_calls_each.size(),
            live_bytes: self.live_bytes.size(),
            live_bytes_each: self.live_bytes_each.size(),
            live_time: self.live_seconds.seconds(),
            idle_time: self.idle_seconds.seconds(),
            drain_time: self.drain_seconds.seconds(),
            drain_grace: self.drain_grace_ms.millis(),
            page_size: self.page_size.size(),
            subscriptions: self.subscriptions.size(),
            subscriptions_each: self.subscriptions_each.size(),
            subscribed_resources: self.subscribed_resources.size(),
            subscribed_bytes: self.subscribed_bytes.size(),
            keep_alive: self.keep_alive_ms.millis(),
            session_time: self.session_seconds.seconds(),
            sessions: self.sessions.size(),
            sessions_each: self.sessions_each.size(),
            session_bytes: self.session_bytes.size(),
            session_bytes_each: self.session_bytes_each.size(),
            resume_time: self.resume_seconds.seconds(),
            resume_bytes: self.resume_bytes.size(),
            resume_bytes_all: self.resume_bytes_all.size(),
            resume_bytes_each: self.resume_bytes_each.size(),
            batch: self.batch.size(),
            flow: self.flow(),
        }
    }

    fn flow(&self) -> Limits {
        Limits {
            rounds: self.rounds.count(),
            asks: self.asks.size(),
            entries: self.entries.size(),
            retries: self.retries.count(),
            sheds: self.sheds.count(),
            notes: self.notes.size(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct TasksTable {
    concurrent: Size<1>,
    lease_ms: Millis<100>,
    look_ms: Millis<1>,
    attempts: Count<1>,
    retry_after_ms: Millis<0>,
    retry_at_most_seconds: Seconds<0>,
    ttl_seconds: Seconds<1>,
    poll_interval_ms: Millis<1>,
    keep_seconds: Seconds<0>,
    sweep_seconds: Seconds<1>,
    journal_bytes: Size<1>,
    unfinished_each: Size<1>,
    bytes_each: Size<1>,
    bytes: Size<1>,
    subscribed: Size<0>,
    waiting: Size<0>,
    waiting_each: Size<0>,
    pub(crate) seal: bool,
    webhook_age_seconds: Seconds<1>,
    webhook_rows: Size<1>,
}

impl TasksTable {
    pub(crate) fn options(&self) -> TaskOptions {
        TaskOptions {
            concurrent: self.concurrent.size(),
            lease: self.lease_ms.millis(),
            store_poll: self.look_ms.millis(),
            attempts: self.attempts.count(),
            retry_after: self.retry_after_ms.millis(),
            retry_at_most: self.retry_at_most_seconds.seconds(),
            ttl: self.ttl_seconds.seconds(),
            poll_interval: self.poll_interval_ms.millis(),
            keep: self.keep_seconds.seconds(),
            sweep: self.sweep_seconds.seconds(),
            journal: self.journal_bytes.size(),
            unfinished_each: self.unfinished_each.size(),
            bytes_each: self.bytes_each.size(),
            bytes: self.bytes.size(),
            subscribed: self.subscribed.size(),
            waiting: self.waiting.size(),
            waiting_each: self.waiting_each.size(),
            seal: self.seal,
            webhook_age: self.webhook_age_seconds.seconds(),
            webhook_rows: self.webhook_rows.size(),
        }
    }
}
