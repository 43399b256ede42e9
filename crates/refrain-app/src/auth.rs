//! The `[auth]` table: how callers over HTTP are authenticated.

use crate::config::{Filled, Loaded, OneOrMore, Seconds};
use clap::Args;
use refrain::auth::{Jwks, JwtVerifier, ResourceMetadata, TrustedProxy};
use refrain::runtime::SystemSource;
use refrain::runtime::server::{JwtVerifierError, TrustedProxyError};
use refrain::server::{BuildError, KeyRing, Server, ServerBuilder};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

type Text = Filled<String>;

/// The `[auth]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct AuthTable {
    resource: Option<Text>,
    authorization_servers: Option<Vec<Text>>,
    scopes: Option<Vec<Text>>,
    implies: Option<BTreeMap<String, Vec<Text>>>,
    pub(crate) jwt: Option<JwtTable>,
    pub(crate) proxy: Option<ProxyTable>,
}

/// The `[auth.jwt]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct JwtTable {
    issuer: Option<Text>,
    jwks: Option<Text>,
    audience: Option<OneOrMore>,
    leeway_seconds: Option<Seconds<0>>,
    max_age_seconds: Option<Seconds<0>>,
    min_interval_seconds: Option<Seconds<0>>,
}

/// The `[auth.proxy]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct ProxyTable {
    secret_file: Option<Filled<PathBuf>>,
    secret_header: Option<Text>,
    user_header: Option<Text>,
    scopes_header: Option<Text>,
}

/// The flags for the settings that authentication cannot do without.
#[derive(Args)]
pub(crate) struct Flags {
    /// The issuer of the access tokens (JWTs) that callers must send; needs --jwks and --resource.
    #[arg(long, value_name = "URL")]
    issuer: Option<String>,
    /// The public keys of the issuer, as a JWK set.
    #[arg(long, value_name = "FILE OR URL")]
    jwks: Option<String>,
    /// The URL of the endpoint as clients know it, for which access tokens are issued.
    #[arg(long, value_name = "URL")]
    resource: Option<String>,
}

impl Flags {
    /// Lays the flags over the settings of the file.
    pub(crate) fn put(&self, loaded: &mut Loaded) {
        loaded.flag("auth.jwt.issuer", self.issuer.as_ref(), |c, v| {
            c.auth.jwt.get_or_insert_default().issuer = Some(Filled(v));
        });
        loaded.flag("auth.jwt.jwks", self.jwks.as_ref(), |c, v| {
            c.auth.jwt.get_or_insert_default().jwks = Some(Filled(v));
        });
        loaded.flag("auth.resource", self.resource.as_ref(), |c, v| {
            c.auth.resource = Some(Filled(v));
        });
    }
}

/// The checked table.
#[derive(Clone, Debug)]
pub(crate) struct Auth {
    scopes: Vec<String>,
    implies: BTreeMap<String, Vec<String>>,
    by: Option<By>,
    metadata: Option<ResourceMetadata>,
}

#[derive(Clone, Debug)]
enum By {
    Jwt(JwtVerifier),
    Proxy(Box<TrustedProxy>),
}

/// The setting at fault, or the table that lacks one, and a message that begins with its name.
type Mistake = (&'static str, String);

/// The value of this setting is wrong.
fn wrong(place: &'static str, reason: impl std::fmt::Display) -> Mistake {
    (place, format!("{place}: {reason}"))
}

/// A setting of this table is missing.
fn unset(place: &'static str, name: &str, reason: &str) -> Mistake {
    (place, format!("{place}.{name}: set it{reason}"))
}

impl AuthTable {
    /// Checks all of it and reads the files it names. `tokens` says whether there is a list of tokens.
    pub(crate) fn ready(&self, tokens: bool) -> Result<Auth, Vec<Mistake>> {
        let mut mistakes = Vec::new();
        let by = self.by(tokens, &mut mistakes);
        let scopes = texts(self.scopes.iter().flatten());
        let is_open = self.jwt.is_none() && self.proxy.is_none() && !tokens;
        if !scopes.is_empty() && is_open {
            let hint = "nobody could have them: set tokens, [auth.jwt] or [auth.proxy]";
            mistakes.push(wrong("auth.scopes", hint));
        }
        // Clients would be sent for tokens that are not checked.
        let announced = match (&self.resource, &self.authorization_servers) {
            (Some(_), _) => Some("auth.resource"),
            (None, Some(_)) => Some(SERVERS),
            (None, None) => None,
        };
        if let Some(place) = announced.filter(|_| is_open) {
            let hint = "everybody is let in: set tokens, [auth.jwt] or [auth.proxy] too";
            mistakes.push(wrong(place, hint));
        }
        if let Err(error) = check(|builder| builder.scopes(&scopes)) {
            mistakes.push(wrong("auth.scopes", error));
        }
        let implies = self.implies.iter().flatten();
        let implies = implies.map(|(broad, narrow)| (broad.clone(), texts(narrow)));
        let implies = implies.collect();
        if let Err(error) = check(|builder| imply(builder, &implies)) {
            mistakes.push(wrong("auth.implies", error));
        }
        let metadata = self.metadata().unwrap_or_else(|mistake| {
            // An invalid issuer is reported once.
            if mistakes.iter().all(|known| known.0 != mistake.0) {
                mistakes.push(mistake);
            }
            None
        });
        if mistakes.is_empty() {
            return Ok(Auth {
                scopes,
                implies,
                by,
                metadata,
            });
        }
        Err(mistakes)
    }

    fn by(&self, tokens: bool, mistakes: &mut Vec<Mistake>) -> Option<By> {
        for (place, set) in [(JWT, self.jwt.is_some()), (PROXY, self.proxy.is_some())] {
            if set && tokens {
                mistakes.push(wrong(place, "there are tokens as well: choose one of them"));
            }
        }
        if self.jwt.is_some() && self.proxy.is_some() {
            let reason = "there is auth.jwt as well: choose one of them";
            mistakes.push(wrong(PROXY, reason));
        }
        let mut by = None;
        if let Some(jwt) = &self.jwt {
            by = jwt.verifier(self.resource.as_ref(), mistakes).map(By::Jwt);
        }
        if let Some(proxy) = &self.proxy {
            by = proxy
                .ready(mistakes)
                .map(|proxy| By::Proxy(Box::new(proxy)));
        }
        by
    }

    /// The metadata that tells clients where to get their tokens.
    fn metadata(&self) -> Result<Option<ResourceMetadata>, Mistake> {
        let issuer = self.jwt.as_ref().and_then(|jwt| jwt.issuer.as_ref());
        let servers = self.authorization_servers.as_ref().map(texts);
        let servers = servers.or_else(|| issuer.map(|issuer| texts([issuer])));
        let metadata = match (&self.resource, servers) {
            (Some(resource), Some(servers)) => ResourceMetadata::new(resource.as_str(), servers),
            (Some(_), None) if self.jwt.is_some() => return Ok(None),
            (Some(_), None) => {
                let hint = "set auth.authorization_servers too: who issues tokens for it?";
                return Err(wrong("auth.resource", hint));
            }
            (None, _) if self.authorization_servers.is_some() => {
                let hint = "set auth.resource too: what do they issue tokens for?";
                return Err(wrong(SERVERS, hint));
            }
            (None, _) => return Ok(None),
        };
        match check(|builder| builder.resource_metadata(metadata.clone())) {
            Ok(()) => Ok(Some(metadata)),
            Err(BuildError::Metadata { url, reason }) if url != metadata.resource => {
                let place = match self.authorization_servers {
                    Some(_) => SERVERS,
                    None => "auth.jwt.issuer",
                };
                Err(wrong(place, BuildError::Metadata { url, reason }))
            }
            Err(error) => Err(wrong("auth.resource", error)),
        }
    }
}

const SERVERS: &str = "auth.authorization_servers";
const JWT: &str = "auth.jwt";
const PROXY: &str = "auth.proxy";

impl JwtTable {
    fn verifier(
        &self,
        resource: Option<&Text>,
        mistakes: &mut Vec<Mistake>,
    ) -> Option<JwtVerifier> {
        if self.issuer.is_none() {
            mistakes.push(unset(JWT, "issuer", ": who issues the access tokens?"));
        }
        if self.jwks.is_none() {
            let hint = ": a file or a URL with the issuer's keys";
            mistakes.push(unset(JWT, "jwks", hint));
        }
        let mut audiences = match (&self.audience, resource) {
            (Some(OneOrMore(audiences)), _) => audiences.iter().map(Text::as_str).collect(),
            (None, resource) => Vec::from_iter(resource.map(Text::as_str)),
        }
        .into_iter();
        let first = audiences.next();
        if first.is_none() {
            let hint = ", or auth.resource: whom are the access tokens for?";
            let mut mistake = unset(JWT, "audience", hint);
            if self.audience.is_some() {
                mistake.0 = "auth.jwt.audience";
            }
            mistakes.push(mistake);
        }
        let (issuer, jwks) = (self.issuer.as_ref()?, self.jwks.as_ref()?);
        let jwks = match jwks.as_str().split_once("://") {
            Some(_) => Jwks::Url(jwks.0.clone()),
            None => Jwks::File(jwks.as_str().into()),
        };
        let mut builder = JwtVerifier::builder(issuer.as_str(), first?, jwks);
        for audience in audiences {
            builder = builder.audience(audience);
        }
        if let Some(leeway) = self.leeway_seconds {
            builder = builder.leeway(leeway.seconds());
        }
        if let Some(age) = self.max_age_seconds {
            builder = builder.max_age(age.seconds());
        }
        if let Some(interval) = self.min_interval_seconds {
            builder = builder.min_interval(interval.seconds());
        }
        let built = builder.build().map_err(|error| {
            let place = match error {
                JwtVerifierError::Issuer { .. } => "auth.jwt.issuer",
                JwtVerifierError::Audience => "auth.jwt.audience",
                _ => "auth.jwt.jwks",
            };
            mistakes.push(wrong(place, error));
        });
        built.ok()
    }
}

impl ProxyTable {
    fn ready(&self, mistakes: &mut Vec<Mistake>) -> Option<TrustedProxy> {
        const FILE: &str = "auth.proxy.secret_file";
        let Some(Filled(file)) = &self.secret_file else {
            let hint = ": how does the proxy prove itself?";
            mistakes.push(unset(PROXY, "secret_file", hint));
            return None;
        };
        let proxy = match std::fs::read_to_string(file) {
            Ok(secret) => TrustedProxy::new(secret.trim_end_matches(['\r', '\n']))
                .map_err(|error| format!("{}: {error}", file.display())),
            Err(error) => Err(format!("{} cannot be read: {error}", file.display())),
        };
        let mut proxy = match proxy {
            Ok(proxy) => proxy,
            Err(reason) => {
                mistakes.push(wrong(FILE, reason));
                return None;
            }
        };
        type Set = fn(TrustedProxy, &str) -> Result<TrustedProxy, TrustedProxyError>;
        let headers: [(_, _, Set); 3] = [
            (
                "auth.proxy.secret_header",
                &self.secret_header,
                TrustedProxy::secret_header,
            ),
            (
                "auth.proxy.user_header",
                &self.user_header,
                TrustedProxy::user_header,
            ),
            (
                "auth.proxy.scopes_header",
                &self.scopes_header,
                TrustedProxy::scopes_header,
            ),
        ];
        for (place, name, set) in headers {
            let Some(name) = name else { continue };
            match set(proxy, name.as_str()) {
                Ok(set) => proxy = set,
                Err(error) => {
                    mistakes.push(wrong(place, error));
                    return None;
                }
            }
        }
        Some(proxy)
    }
}

impl Auth {
    /// Applies the configuration to a server.
    pub(crate) fn apply(self, mut builder: ServerBuilder) -> ServerBuilder {
        builder = imply(builder.scopes(self.scopes), &self.implies);
        if let Some(metadata) = self.metadata {
            builder = builder.resource_metadata(metadata);
        }
        match self.by {
            Some(By::Jwt(verifier)) => builder.authenticator(verifier),
            Some(By::Proxy(proxy)) => builder.authenticator(*proxy),
            None => builder,
        }
    }
}

fn texts<'a>(filled: impl IntoIterator<Item = &'a Text>) -> Vec<String> {
    filled.into_iter().map(|text| text.0.clone()).collect()
}

/// Registers which scopes include others.
fn imply(builder: ServerBuilder, implies: &BTreeMap<String, Vec<String>>) -> ServerBuilder {
    let imply = |builder: ServerBuilder, (broad, narrow): (&String, &Vec<String>)| {
        builder.scope_implies(broad, narrow)
    };
    implies.iter().fold(builder, imply)
}

/// Checks one part of a builder by itself, to find the setting at fault.
fn check(set: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Result<(), BuildError> {
    let keys = KeyRing::generate(&SystemSource::new());
    let builder = set(Server::builder("check", "0").keys(keys));
    builder.build().map(drop)
}
