//! All there is to set: names, defaults, what is allowed, and what it means.
//!
//! A new setting is one entry of [`SETTINGS`]. Its default is whatever [`Config::default`] has in its place.

use super::{Config, LogFormat};
use crate::auth::{JwtConfig, ProxyConfig};
use crate::store::StoreUrl;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use toml::Spanned;
use toml::de::DeValue;

/// The longest time that can be set: ten years.
const MOST_SECONDS: u64 = 10 * 365 * 24 * 3600;

/// One thing to set.
pub(crate) struct Setting {
    /// Its key, after the name of its table and a dot where it is in one.
    pub(crate) name: &'static str,
    /// The smallest number allowed, where it is a number.
    least: u64,
    /// What it is for, in a few words.
    pub(crate) meaning: &'static str,
    /// A value as it is written in a file, where there is none by default.
    pub(crate) example: Option<&'static str>,
    place: fn(&mut Config) -> Place<'_>,
}

/// Where a value goes, and of which kind it is.
enum Place<'a> {
    Address(&'a mut SocketAddr),
    SecondAddress(&'a mut Option<SocketAddr>),
    Text(&'a mut String),
    /// Text that need not be there.
    Given(&'a mut Option<String>),
    /// A list of texts.
    Texts(&'a mut Option<Vec<String>>),
    /// One text, or a list of them.
    OneOrMore(&'a mut Option<Vec<String>>),
    /// Texts by their names.
    Named(&'a mut Option<BTreeMap<String, String>>),
    /// Lists of texts by their names.
    Lists(&'a mut Option<BTreeMap<String, Vec<String>>>),
    File(&'a mut Option<PathBuf>),
    Hosts(&'a mut Option<Vec<String>>),
    Log(&'a mut LogFormat),
    Store(&'a mut Option<StoreUrl>),
    Switch(&'a mut bool),
    Size(&'a mut usize),
    Count(&'a mut u32),
    Seconds(&'a mut Duration),
    GivenSeconds(&'a mut Option<Duration>),
    Millis(&'a mut Duration),
}

use Place::{
    Address, Count, File, Given, GivenSeconds, Hosts, Lists, Log, Millis, Named, OneOrMore,
    SecondAddress, Seconds, Size, Store, Switch, Text, Texts,
};

/// Every setting, in the order in which they are shown; those outside of tables first, as TOML demands.
#[rustfmt::skip]
pub(crate) static SETTINGS: &[Setting] = &[
    setting("listen", "the address and port to serve", |c| Address(&mut c.listen)),
    setting("metrics", "the address and port of /metrics", |c| SecondAddress(&mut c.metrics))
        .example("\"127.0.0.1:9464\""),
    setting("store", "where tasks live; without it, $REFRAIN_STORE; without that, this file", |c| Store(&mut c.store))
        .example("\"sqlite:refrain.db\""),
    setting("keys", "the key file; without one, $REFRAIN_KEYS", |c| File(&mut c.keys)).example("\"fleet.keys\""),
    setting("tokens", "lines of PRINCIPAL TOKEN [SCOPE …]; without it or [auth] every caller is anonymous", |c| File(&mut c.tokens))
        .example("\"callers.txt\""),
    setting("allowed_hosts", "localhost and loopback addresses if not set; \"*\" for any", |c| Hosts(&mut c.allowed_hosts))
        .example("[\"mcp.example.com\"]"),
    setting("audience", "the name of the service that tokens are bound to", |c| Text(&mut c.sealing.audience)),
    setting("log", "or \"json\"", |c| Log(&mut c.log)),
    number("token_ttl_seconds", 1, "how long a token is accepted", |c| Seconds(&mut c.sealing.ttl)),
    number("flow_ttl_seconds", 1, "all rounds of a flow together", |c| Seconds(&mut c.sealing.flow_ttl)),
    number("clock_skew_seconds", 0, "how far clocks may be apart", |c| Seconds(&mut c.sealing.skew)),
    number("limits.body_bytes", 256, "a larger body: HTTP 413", |c| Size(&mut c.limits.body)),
    number("limits.discard_bytes", 0, "of a larger body, read so that the 413 is read", |c| Size(&mut c.limits.discard)),
    number("limits.token_chars", 128, "a larger token waits in the store, and what travels names it", |c| Size(&mut c.sealing.max_token)),
    number("limits.concurrent_calls", 1, "one more: HTTP 503", |c| Size(&mut c.limits.concurrent_calls)),
    number(SHED_ABOVE, 0, "three quarters of concurrent_calls if not set", |c| Size(&mut c.limits.shed_above)),
    number("limits.round_seconds", 1, "then: cut with the open asks, or an error", |c| Seconds(&mut c.limits.round_time)),
    number("limits.live_calls", 0, "kept in memory for live tools and older clients; one more: HTTP 503", |c| Size(&mut c.limits.live_calls)),
    number("limits.live_calls_each", 0, "of one caller who is known by name, or of one session; one more: HTTP 503", |c| Size(&mut c.limits.live_calls_each)),
    number("limits.live_seconds", 1, "one of them, however long a person thinks; then: an error", |c| Seconds(&mut c.limits.live_time)),
    number("limits.idle_seconds", 1, "a connection that sends nothing: closed, after twice this at most", |c| Seconds(&mut c.limits.idle_time)),
    number("limits.drain_seconds", 0, "for what still runs when told to stop", |c| Seconds(&mut c.limits.drain_time)),
    number("limits.drain_grace_ms", 0, "from /readyz saying no to no new connections", |c| Millis(&mut c.limits.drain_grace)),
    number("limits.page_size", 1, "things on one page of a list", |c| Size(&mut c.limits.page_size)),
    number("limits.subscriptions", 0, "clients that listen at the same time; one more: HTTP 503", |c| Size(&mut c.limits.subscriptions)),
    number("limits.subscriptions_each", 0, "of one caller who is known by name", |c| Size(&mut c.limits.subscriptions_each)),
    number("limits.subscribed_resources", 0, "in one subscription", |c| Size(&mut c.limits.subscribed_resources)),
    number("limits.subscribed_bytes", 0, "of their URIs together", |c| Size(&mut c.limits.subscribed_bytes)),
    number("limits.keep_alive_ms", 1, "without a message, then a stream says that it is still there", |c| Millis(&mut c.limits.keep_alive)),
    number("limits.session_seconds", 1, "how long a session of an older client lasts", |c| Seconds(&mut c.limits.session_time)),
    number("limits.resume_seconds", 0, "how long an older client may come back to a stream that broke", |c| Seconds(&mut c.limits.resume_time)),
    number("limits.resume_bytes", 0, "of such a stream that are kept", |c| Size(&mut c.limits.resume_bytes)),
    number("limits.resume_bytes_all", 0, "of all such streams; the oldest that ended are dropped first", |c| Size(&mut c.limits.resume_bytes_all)),
    number("limits.carried_bytes", 0, "of the answers of one session that wait for another instance", |c| Size(&mut c.limits.carried_bytes)),
    number("limits.batch", 1, "messages of an older client in one body", |c| Size(&mut c.limits.batch)),
    number("limits.rounds", 1, "of one flow", |c| Count(&mut c.limits.flow.rounds)),
    number("limits.asks", 1, "of one round", |c| Size(&mut c.limits.flow.asks)),
    number("limits.entries", 1, "of one journal", |c| Size(&mut c.limits.flow.entries)),
    number("limits.retries", 0, "answers to one ask that do not fit", |c| Count(&mut c.limits.flow.retries)),
    number("limits.sheds", 0, "times one flow is handed on", |c| Count(&mut c.limits.flow.sheds)),
    number("limits.notes", 1, "progress and log messages waiting to be sent; the oldest are dropped", |c| Size(&mut c.limits.flow.notes)),
    number("tasks.concurrent", 1, "that one instance runs at the same time", |c| Size(&mut c.tasks.concurrent)),
    number("tasks.lease_ms", 100, "how long a worker has a task before another may take it; held on to every third of it", |c| Millis(&mut c.tasks.lease)),
    number("tasks.look_ms", 1, "how often the store is asked for what is due, whatever hints there are", |c| Millis(&mut c.tasks.look)),
    number("tasks.attempts", 1, "without getting on, then the task is failed", |c| Count(&mut c.tasks.attempts)),
    number("tasks.retry_after_ms", 0, "before a second attempt; doubled for each one after it", |c| Millis(&mut c.tasks.retry_after)),
    number("tasks.retry_at_most_seconds", 0, "the longest wait between two attempts", |c| Seconds(&mut c.tasks.retry_at_most)),
    number("tasks.ttl_seconds", 1, "how long a task may live, unless its tool says otherwise", |c| Seconds(&mut c.tasks.ttl)),
    number("tasks.poll_interval_ms", 1, "how often clients should look, unless its tool says otherwise", |c| Millis(&mut c.tasks.poll_interval)),
    number("tasks.keep_seconds", 0, "how long a task that ended is kept at least", |c| Seconds(&mut c.tasks.keep)),
    number("tasks.sweep_seconds", 1, "how often what is over is thrown away", |c| Seconds(&mut c.tasks.sweep)),
    number("tasks.journal_bytes", 1, "a larger journal, or token that waits: an error that names the largest entry", |c| Size(&mut c.tasks.journal)),
    number("tasks.subscribed", 0, "in one subscription", |c| Size(&mut c.tasks.subscribed)),
    number("tasks.waiting", 0, "clients of drafts that wait for what becomes of one; one more: HTTP 503", |c| Size(&mut c.tasks.waiting)),
    setting("tasks.seal", "seal what tasks hold; keys must be kept for as long as tasks live", |c| Switch(&mut c.tasks.seal)),
    setting("peers.name", "which of the instances this one is; --peer-name counts more", |c| Given(&mut c.peers.name)).example("\"a\""),
    setting("peers.urls", "the endpoint of each, as the others reach it; they share this list and the keys", |c| Named(&mut c.peers.urls))
        .example("{ a = \"http://10.0.0.7:8080/mcp\", b = \"http://10.0.0.8:8080/mcp\" }"),
    setting("auth.resource", "the endpoint's URL as clients know it", |c| Given(&mut c.auth.resource))
        .example("\"https://mcp.example.com/mcp\""),
    setting("auth.authorization_servers", "who issues tokens for it; auth.jwt.issuer if not set", |c| Texts(&mut c.auth.authorization_servers))
        .example("[\"https://login.example.com\"]"),
    setting("auth.scopes", "every request needs them", |c| Texts(&mut c.auth.scopes)).example("[\"tools\"]"),
    setting("auth.implies", "for a scope those that it includes", |c| Lists(&mut c.auth.implies))
        .example("{ admin = [\"tools\"] }"),
    setting("auth.jwt.issuer", "exactly the `iss` of access tokens", |c| Given(&mut jwt(c).issuer))
        .example("\"https://login.example.com\""),
    setting("auth.jwt.jwks", "the issuer's keys: a file or a URL", |c| Given(&mut jwt(c).jwks)).example("\"jwks.json\""),
    setting("auth.jwt.audience", "one or a list; auth.resource if not set", |c| OneOrMore(&mut jwt(c).audience))
        .example("\"api://files\""),
    setting("auth.jwt.leeway_seconds", "how far the issuer's clock may be off; 30 if not set", |c| GivenSeconds(&mut jwt(c).leeway))
        .example("30"),
    setting("auth.jwt.max_age_seconds", "then keys are read again; 600 for a URL, 1 for a file if not set", |c| GivenSeconds(&mut jwt(c).max_age))
        .example("600"),
    setting("auth.jwt.min_interval_seconds", "between two attempts to read them; 5 or 1 if not set", |c| GivenSeconds(&mut jwt(c).min_interval))
        .example("5"),
    setting("auth.proxy.secret_file", "what the proxy sends in secret_header", |c| File(&mut proxy(c).secret_file))
        .example("\"proxy.secret\""),
    setting("auth.proxy.secret_header", "this one if not set", |c| Given(&mut proxy(c).secret_header))
        .example("\"x-proxy-secret\""),
    setting("auth.proxy.user_header", "who is calling; this one if not set", |c| Given(&mut proxy(c).user_header))
        .example("\"x-forwarded-user\""),
    setting("auth.proxy.scopes_header", "their scopes; nobody has any if not set", |c| Given(&mut proxy(c).scopes_header))
        .example("\"x-forwarded-scopes\""),
];

fn jwt(config: &mut Config) -> &mut JwtConfig {
    config.auth.jwt.get_or_insert_default()
}

fn proxy(config: &mut Config) -> &mut ProxyConfig {
    config.auth.proxy.get_or_insert_default()
}

/// The setting whose default depends on another.
pub(super) const SHED_ABOVE: &str = "limits.shed_above";

const fn setting(
    name: &'static str,
    meaning: &'static str,
    place: fn(&mut Config) -> Place<'_>,
) -> Setting {
    number(name, 0, meaning, place)
}

const fn number(
    name: &'static str,
    least: u64,
    meaning: &'static str,
    place: fn(&mut Config) -> Place<'_>,
) -> Setting {
    Setting {
        name,
        least,
        meaning,
        example: None,
        place,
    }
}

impl Setting {
    const fn example(mut self, example: &'static str) -> Self {
        self.example = Some(example);
        self
    }

    /// The setting of this name.
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// The table it is in, if it is in one, and its key.
    pub(crate) fn path(&self) -> (Option<&'static str>, &'static str) {
        split(self.name)
    }

    /// The value it has in a configuration.
    pub(crate) fn value(&self, config: &Config) -> Value {
        match (self.place)(&mut config.clone()) {
            Address(address) => json!(address),
            SecondAddress(address) => json!(address),
            Text(text) => json!(text),
            File(file) => json!(file.as_ref().map(|file| file.to_string_lossy())),
            Given(text) => json!(text),
            Hosts(texts) | Texts(texts) | OneOrMore(texts) => json!(texts),
            Named(texts) => json!(texts),
            Lists(lists) => json!(lists),
            Log(log) => json!(log),
            // Without its password.
            Store(url) => json!(url.as_ref().map(StoreUrl::to_string)),
            Switch(on) => json!(on),
            Size(size) => json!(size),
            Count(count) => json!(count),
            Seconds(time) => json!(time.as_secs()),
            GivenSeconds(time) => json!(time.as_ref().map(Duration::as_secs)),
            Millis(time) => json!(time.as_millis()),
        }
    }

    /// Puts a value in its place, or says what would be allowed.
    pub(super) fn put(
        &self,
        config: &mut Config,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<(), String> {
        match (self.place)(config) {
            Address(place) => *place = address(text(value)?)?,
            SecondAddress(place) => *place = Some(address(text(value)?)?),
            Text(place) => *place = filled(text(value)?)?.to_owned(),
            File(place) => *place = Some(filled(text(value)?)?.into()),
            Given(place) => *place = Some(filled(text(value)?)?.to_owned()),
            Hosts(place) => *place = Some(hosts(value)?),
            Texts(place) => *place = Some(texts(value.get_ref())?),
            OneOrMore(place) => {
                *place = Some(match value.get_ref().as_str() {
                    Some(one) => vec![filled(one)?.to_owned()],
                    None => texts(value.get_ref())?,
                });
            }
            Named(place) => *place = Some(named(value.get_ref())?),
            Lists(place) => *place = Some(lists(value.get_ref())?),
            Log(place) => {
                *place = match text(value)? {
                    "text" => LogFormat::Text,
                    "json" => LogFormat::Json,
                    other => return Err(format!("must be \"text\" or \"json\", not {other:?}")),
                }
            }
            Store(place) => *place = Some(filled(text(value)?)?.into()),
            Switch(place) => {
                let value = value.get_ref();
                *place = value
                    .as_bool()
                    .ok_or_else(|| wrong("true or false", value))?;
            }
            Size(place) => *place = self.whole(value, usize::MAX as u64)? as usize,
            Count(place) => *place = self.whole(value, u32::MAX.into())? as u32,
            Seconds(place) => *place = Duration::from_secs(self.whole(value, MOST_SECONDS)?),
            GivenSeconds(place) => {
                *place = Some(Duration::from_secs(self.whole(value, MOST_SECONDS)?));
            }
            Millis(place) => {
                *place = Duration::from_millis(self.whole(value, MOST_SECONDS * 1000)?);
            }
        }
        Ok(())
    }

    fn whole(&self, value: &Spanned<DeValue<'_>>, most: u64) -> Result<u64, String> {
        let DeValue::Integer(number) = value.get_ref() else {
            return Err(wrong("a whole number", value.get_ref()));
        };
        let (least, shown) = (self.least, number.as_str());
        match i128::from_str_radix(shown, number.radix()) {
            Ok(number) if number < least.into() => {
                Err(format!("must be at least {least}, not {number}"))
            }
            Ok(number) => u64::try_from(number)
                .ok()
                .filter(|number| *number <= most)
                .ok_or_else(|| format!("must be at most {most}, not {number}")),
            Err(_) => Err(format!("must be at most {most}")),
        }
    }
}

/// The table of a name, if it is in one, and what is left of it.
pub(super) fn split(name: &str) -> (Option<&str>, &str) {
    match name.rsplit_once('.') {
        Some((table, key)) => (Some(table), key),
        None => (None, name),
    }
}

fn wrong(expected: &str, found: &DeValue<'_>) -> String {
    let found = match found {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    format!("must be {expected}, not {found}")
}

fn text<'a>(value: &'a Spanned<DeValue<'_>>) -> Result<&'a str, String> {
    let value = value.get_ref();
    value.as_str().ok_or_else(|| wrong("text in quotes", value))
}

fn filled(text: &str) -> Result<&str, String> {
    if text.trim().is_empty() {
        return Err("must not be empty".into());
    }
    Ok(text)
}

fn texts(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let expected = "a list of texts in quotes";
    let DeValue::Array(list) = value else {
        return Err(wrong(expected, value));
    };
    list.iter()
        .map(|item| match item.get_ref().as_str() {
            Some(text) => filled(text).map(str::to_owned),
            None => Err(wrong(expected, item.get_ref())),
        })
        .collect()
}

fn named(value: &DeValue<'_>) -> Result<BTreeMap<String, String>, String> {
    let expected = "a table of texts in quotes";
    let DeValue::Table(entries) = value else {
        return Err(wrong(expected, value));
    };
    entries
        .iter()
        .map(|(name, text)| match text.get_ref().as_str() {
            Some(text) => Ok((name.get_ref().to_string(), filled(text)?.to_owned())),
            None => Err(wrong(expected, text.get_ref())),
        })
        .collect()
}

fn lists(value: &DeValue<'_>) -> Result<BTreeMap<String, Vec<String>>, String> {
    let DeValue::Table(entries) = value else {
        return Err(wrong("a table of lists", value));
    };
    entries
        .iter()
        .map(|(name, list)| Ok((name.get_ref().to_string(), texts(list.get_ref())?)))
        .collect()
}

/// An address and a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let example = "like \"127.0.0.1:8080\" or \"[::1]:8080\"";
        match text.parse::<std::net::IpAddr>() {
            Ok(_) => format!("has no port: it must be an address and a port, {example}"),
            Err(_) => format!("must be an IP address and a port, {example}"),
        }
    })
}

fn hosts(value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, String> {
    let expected = "a list of hosts, like [\"mcp.example.com\"]";
    let DeValue::Array(list) = value.get_ref() else {
        return Err(wrong(expected, value.get_ref()));
    };
    if list.is_empty() {
        return Err("must name a host, or no request would be answered; \"*\" is any".into());
    }
    list.iter()
        .map(|item| match item.get_ref().as_str() {
            Some(text) => host(text),
            None => Err(wrong(expected, item.get_ref())),
        })
        .collect()
}

/// A host to answer for, or `*`.
pub(crate) fn host(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_graphic() && !"/@?#\\\"".contains(c);
    if text.is_empty() || !text.chars().all(plain) {
        return Err(format!(
            "{text:?} is no host: write a name without a scheme and a path, like \"mcp.example.com\", with a port if only \
             that one is meant"
        ));
    }
    Ok(text.to_owned())
}
