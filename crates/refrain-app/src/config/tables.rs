//! The tables of the configuration file. `defaults.toml` has the defaults and documents every setting.

use super::value::{
    Address, ClockSkew, Count, HeaderName, Hosts, LogFormat, Millis, NonBlank, Origin, Seconds,
    Size,
};
use crate::auth::AuthTable;
use crate::store::StoreUrl;
use crate::tls::TlsFiles;
use crate::webhooks::WebhookTable;
use refrain::server::{ServerCard, ServerLimits};
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
    pub(crate) clock_skew_seconds: ClockSkew,
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

/// Declares a table of settings and its conversions. `setting: Type => field` gives a field of the result; a setting without
/// `=>` is used elsewhere. `with name` gives the field of this name by the method of this name.
macro_rules! table {
    (struct $table:ident; $(fn $method:ident -> $struct:ident $(with $nested:ident)? {
        $($vis:vis $setting:ident: $type:ty $(=> $field:ident)?,)*
    })*) => {
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, expecting = "a table")]
        pub(crate) struct $table {
            $($($vis $setting: $type,)*)*
        }

        impl $table {
            $(pub(crate) fn $method(&self) -> $struct {
                $struct {
                    $($($field: self.$setting.into(),)?)*
                    $($nested: self.$nested(),)?
                }
            })*
        }
    };
}

table! {
    struct LimitsTable;
    fn server -> ServerLimits with flow {
        connections: Size<1> => connections,
        connections_each: Size<1> => connections_each,
        head_bytes: Size<8192> => head,
        body_bytes: Size<256> => body,
        body_bytes_all: Size<256> => body_all,
        body_bytes_each: Size<256> => body_each,
        body_seconds: Seconds<1> => body_time,
        discard_bytes: Size<0> => discard,
        json_values: Size<256> => json_values,
        pub(crate) token_chars: Size<128>,
        pub(super) concurrent_calls: Size<1> => concurrent_calls,
        pub(super) concurrent_calls_each: Size<1> => concurrent_calls_each,
        pub(super) shed_above: Size<0> => shed_above,
        round_seconds: Seconds<1> => round_time,
        live_calls: Size<0> => live_calls,
        live_calls_each: Size<0> => live_calls_each,
        live_bytes: Size<0> => live_bytes,
        live_bytes_each: Size<0> => live_bytes_each,
        live_seconds: Seconds<1> => live_time,
        idle_seconds: Seconds<1> => idle_time,
        drain_seconds: Seconds<0> => drain_time,
        drain_grace_ms: Millis<0> => drain_grace,
        page_size: Size<1> => page_size,
        subscriptions: Size<0> => subscriptions,
        subscriptions_each: Size<0> => subscriptions_each,
        subscribed_resources: Size<0> => subscribed_resources,
        subscribed_bytes: Size<0> => subscribed_bytes,
        keep_alive_ms: Millis<1> => keep_alive,
        session_seconds: Seconds<1> => session_time,
        sessions: Size<0> => sessions,
        sessions_each: Size<0> => sessions_each,
        session_bytes: Size<0> => session_bytes,
        session_bytes_each: Size<0> => session_bytes_each,
        resume_seconds: Seconds<0> => resume_time,
        resume_bytes: Size<0> => resume_bytes,
        resume_bytes_all: Size<0> => resume_bytes_all,
        resume_bytes_each: Size<0> => resume_bytes_each,
        batch: Size<1> => batch,
    }
    fn flow -> Limits {
        rounds: Count<1> => rounds,
        asks: Size<1> => asks,
        entries: Size<1> => entries,
        retries: Count<0> => retries,
        sheds: Count<0> => sheds,
        notes: Size<1> => notes,
    }
}

table! {
    struct TasksTable;
    fn options -> TaskOptions {
        concurrent: Size<1> => concurrent,
        lease_ms: Millis<100> => lease,
        look_ms: Millis<1> => store_poll,
        attempts: Count<1> => attempts,
        retry_after_ms: Millis<0> => retry_after,
        retry_at_most_seconds: Seconds<0> => retry_at_most,
        ttl_seconds: Seconds<1> => ttl,
        poll_interval_ms: Millis<1> => poll_interval,
        keep_seconds: Seconds<0> => keep,
        sweep_seconds: Seconds<1> => sweep,
        journal_bytes: Size<1> => journal,
        unfinished_each: Size<1> => unfinished_each,
        bytes_each: Size<1> => bytes_each,
        bytes: Size<1> => bytes,
        subscribed: Size<0> => subscribed,
        waiting: Size<0> => waiting,
        waiting_each: Size<0> => waiting_each,
        pub(crate) seal: bool => seal,
        webhook_age_seconds: Seconds<1> => webhook_age,
        webhook_rows: Size<1> => webhook_rows,
    }
}
