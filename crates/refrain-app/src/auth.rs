//! The `[auth]` table: authentication of callers over HTTP.

use crate::config::{NonBlank, OneOrMore, Seconds, UncheckedConfig};
use crate::input_file;
use clap::Args;
use refrain::auth::{Jwks, JwtVerifier, ResourceMetadata, TrustedProxy};
use refrain::runtime::SystemSource;
use refrain::runtime::server::{JwtVerifierError, TrustedProxyError};
use refrain::server::{BuildError, KeyRing, Server, ServerBuilder};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct AuthTable {
    resource: Option<NonBlank<String>>,
    authorization_servers: Option<Vec<NonBlank<String>>>,
    scopes: Option<Vec<NonBlank<String>>>,
    implies: Option<BTreeMap<String, Vec<NonBlank<String>>>>,
    pub(crate) jwt: Option<JwtTable>,
    pub(crate) proxy: Option<ProxyTable>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct JwtTable {
    issuer: Option<NonBlank<String>>,
    jwks: Option<NonBlank<String>>,
    audience: Option<OneOrMore>,
    leeway_seconds: Option<Seconds<0>>,
    max_age_seconds: Option<Seconds<0>>,
    min_interval_seconds: Option<Seconds<0>>,
    dpop: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(crate) struct ProxyTable {
    secret_file: Option<NonBlank<PathBuf>>,
    secret_header: Option<NonBlank<String>>,
    user_header: Option<NonBlank<String>>,
    scopes_header: Option<NonBlank<String>>,
}

#[derive(Args)]
pub(crate) struct AuthFlags {
    /// The issuer of the access tokens (JWTs) that callers must send; requires --jwks and --resource.
    #[arg(long, value_name = "URL")]
    issuer: Option<String>,
    /// The issuer's public keys, as a JWK set.
    #[arg(long, value_name = "FILE OR URL")]
    jwks: Option<String>,
    /// The public URL of the endpoint, for which access tokens are issued.
    #[arg(long, value_name = "URL")]
    resource: Option<String>,
}

impl AuthFlags {
    pub(crate) fn override_settings<C>(&self, config: &mut UncheckedConfig<C>) {
        config.override_by_flag("auth.jwt.issuer", self.issuer.as_ref(), |c, v| {
            c.auth.jwt.get_or_insert_default().issuer = Some(NonBlank(v));
        });
        config.override_by_flag("auth.jwt.jwks", self.jwks.as_ref(), |c, v| {
            c.auth.jwt.get_or_insert_default().jwks = Some(NonBlank(v));
        });
        config.override_by_flag("auth.resource", self.resource.as_ref(), |c, v| {
            c.auth.resource = Some(NonBlank(v));
        });
    }
}

#[derive(Clone, Debug)]
pub(crate) struct AuthPolicy {
    scopes: Vec<String>,
    implies: BTreeMap<String, Vec<String>>,
    method: Option<AuthMethod>,
    metadata: Option<ResourceMetadata>,
}

#[derive(Clone, Debug)]
enum AuthMethod {
    Jwt(JwtVerifier),
    Proxy(Box<TrustedProxy>),
}

/// The invalid setting, or the table that lacks one, and the message.
type SettingError = (&'static str, String);

fn invalid(setting: &'static str, reason: impl std::fmt::Display) -> SettingError {
    (setting, format!("{setting}: {reason}"))
}

fn missing(table: &'static str, name: &str, expected: &str) -> SettingError {
    (table, format!("{table}.{name} is missing: {expected}"))
}

impl AuthTable {
    /// Checks the table and reads the files it names. `tokens` is true if the configuration has a token file.
    pub(crate) fn check(&self, tokens: bool) -> Result<AuthPolicy, Vec<SettingError>> {
        let mut errors = Vec::new();
        let method = self.method(tokens, &mut errors);
        let scopes = strings(self.scopes.iter().flatten());
        let is_unauthenticated = self.jwt.is_none() && self.proxy.is_none() && !tokens;
        if !scopes.is_empty() && is_unauthenticated {
            let reason = "anonymous callers have no scopes: set tokens, [auth.jwt] or [auth.proxy]";
            errors.push(invalid("auth.scopes", reason));
        }
        let metadata_setting = match (&self.resource, &self.authorization_servers) {
            (Some(_), _) => Some("auth.resource"),
            (None, Some(_)) => Some(SERVERS),
            (None, None) => None,
        };
        if let Some(setting) = metadata_setting.filter(|_| is_unauthenticated) {
            let reason =
                "access tokens would not be checked: set tokens, [auth.jwt] or [auth.proxy] too";
            errors.push(invalid(setting, reason));
        }
        if let Err(error) = try_build(|builder| builder.scopes(&scopes)) {
            errors.push(invalid("auth.scopes", error));
        }
        let implies = self.implies.iter().flatten();
        let implies = implies.map(|(broad, narrow)| (broad.clone(), strings(narrow)));
        let implies = implies.collect();
        if let Err(error) = try_build(|builder| imply(builder, &implies)) {
            errors.push(invalid("auth.implies", error));
        }
        let metadata = self.metadata().unwrap_or_else(|error| {
            // An invalid issuer is reported once.
            if errors.iter().all(|known| known.0 != error.0) {
                errors.push(error);
            }
            None
        });
        if errors.is_empty() {
            return Ok(AuthPolicy {
                scopes,
                implies,
                method,
                metadata,
            });
        }
        Err(errors)
    }

    fn method(&self, tokens: bool, errors: &mut Vec<SettingError>) -> Option<AuthMethod> {
        for (table, is_set) in [(JWT, self.jwt.is_some()), (PROXY, self.proxy.is_some())] {
            if is_set && tokens {
                let reason = "cannot be combined with tokens: choose one of them";
                errors.push(invalid(table, reason));
            }
        }
        if self.jwt.is_some() && self.proxy.is_some() {
            let reason = "cannot be combined with auth.jwt: choose one of them";
            errors.push(invalid(PROXY, reason));
        }
        let mut method = None;
        if let Some(jwt) = &self.jwt {
            let verifier = jwt.verifier(self.resource.as_ref(), errors);
            method = verifier.map(AuthMethod::Jwt);
        }
        if let Some(proxy) = &self.proxy {
            let proxy = proxy.check(errors);
            method = proxy.map(|proxy| AuthMethod::Proxy(Box::new(proxy)));
        }
        method
    }

    /// The metadata that names the issuers of access tokens to clients.
    fn metadata(&self) -> Result<Option<ResourceMetadata>, SettingError> {
        let issuer = self.jwt.as_ref().and_then(|jwt| jwt.issuer.as_ref());
        let servers = self.authorization_servers.as_ref().map(strings);
        let servers = servers.or_else(|| issuer.map(|issuer| strings([issuer])));
        let metadata = match (&self.resource, servers) {
            (Some(resource), Some(servers)) => ResourceMetadata::new(resource.as_str(), servers),
            (Some(_), None) if self.jwt.is_some() => return Ok(None),
            (Some(_), None) => {
                let reason =
                    "set auth.authorization_servers too: the issuers of tokens for this resource";
                return Err(invalid("auth.resource", reason));
            }
            (None, _) if self.authorization_servers.is_some() => {
                let reason = "set auth.resource too: the URL for which these servers issue tokens";
                return Err(invalid(SERVERS, reason));
            }
            (None, _) => return Ok(None),
        };
        match try_build(|builder| builder.resource_metadata(metadata.clone())) {
            Ok(()) => Ok(Some(metadata)),
            Err(BuildError::Metadata { url, reason }) if url != metadata.resource => {
                let setting = match self.authorization_servers {
                    Some(_) => SERVERS,
                    None => "auth.jwt.issuer",
                };
                Err(invalid(setting, BuildError::Metadata { url, reason }))
            }
            Err(error) => Err(invalid("auth.resource", error)),
        }
    }
}

const SERVERS: &str = "auth.authorization_servers";
const JWT: &str = "auth.jwt";
const PROXY: &str = "auth.proxy";

impl JwtTable {
    fn verifier(
        &self,
        resource: Option<&NonBlank<String>>,
        errors: &mut Vec<SettingError>,
    ) -> Option<JwtVerifier> {
        if self.issuer.is_none() {
            let expected = "set it, or --issuer, to the `iss` claim of the access tokens";
            errors.push(missing(JWT, "issuer", expected));
        }
        if self.jwks.is_none() {
            let expected = "set it, or --jwks, to a file or URL with the issuer's keys";
            errors.push(missing(JWT, "jwks", expected));
        }
        let mut audiences = match (&self.audience, resource) {
            (Some(OneOrMore(audiences)), _) => audiences.iter().map(NonBlank::as_str).collect(),
            (None, resource) => Vec::from_iter(resource.map(NonBlank::as_str)),
        }
        .into_iter();
        let first = audiences.next();
        if first.is_none() {
            let resource = "set auth.resource, or --resource, to the URL of this endpoint, \
                            or set auth.jwt.audience to the `aud` claim of the access tokens";
            let audience = "remove it, or set it to the `aud` claim of the access tokens";
            errors.push(match self.audience {
                None => missing("auth", "resource", resource),
                Some(_) => invalid("auth.jwt.audience", format!("it is empty: {audience}")),
            });
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
            builder = builder.leeway(leeway.into());
        }
        if let Some(age) = self.max_age_seconds {
            builder = builder.max_age(age.into());
        }
        if let Some(interval) = self.min_interval_seconds {
            builder = builder.min_interval(interval.into());
        }
        if let Some(resource) = resource {
            builder = builder.resource(resource.as_str());
        }
        if self.dpop == Some(true) {
            builder = builder.require_dpop();
        }
        let built = builder.build().map_err(|error| {
            let setting = match error {
                JwtVerifierError::Issuer { .. } => "auth.jwt.issuer",
                JwtVerifierError::Audience => "auth.jwt.audience",
                JwtVerifierError::Resource { .. } => "auth.jwt.dpop",
                _ => "auth.jwt.jwks",
            };
            errors.push(invalid(setting, error));
        });
        built.ok()
    }
}

impl ProxyTable {
    fn check(&self, errors: &mut Vec<SettingError>) -> Option<TrustedProxy> {
        const FILE: &str = "auth.proxy.secret_file";
        let Some(NonBlank(file)) = &self.secret_file else {
            let expected = "a file with the secret that the proxy sends";
            errors.push(missing(PROXY, "secret_file", expected));
            return None;
        };
        let proxy = match input_file::read_text(file) {
            Ok(secret) => TrustedProxy::new(secret.trim_end_matches(['\r', '\n']))
                .map_err(|error| format!("{}: {error}", file.display())),
            Err(error) => Err(format!("cannot read {}: {error}", file.display())),
        };
        let mut proxy = match proxy {
            Ok(proxy) => proxy,
            Err(reason) => {
                errors.push(invalid(FILE, reason));
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
        for (setting, name, set) in headers {
            let Some(name) = name else { continue };
            match set(proxy, name.as_str()) {
                Ok(set) => proxy = set,
                Err(error) => {
                    errors.push(invalid(setting, error));
                    return None;
                }
            }
        }
        Some(proxy)
    }
}

impl AuthPolicy {
    pub(crate) fn apply(self, mut builder: ServerBuilder) -> ServerBuilder {
        builder = imply(builder.scopes(self.scopes), &self.implies);
        if let Some(metadata) = self.metadata {
            builder = builder.resource_metadata(metadata);
        }
        match self.method {
            Some(AuthMethod::Jwt(verifier)) => builder.authenticator(verifier),
            Some(AuthMethod::Proxy(proxy)) => builder.authenticator(*proxy),
            None => builder,
        }
    }
}

fn strings<'a>(values: impl IntoIterator<Item = &'a NonBlank<String>>) -> Vec<String> {
    values.into_iter().map(|value| value.0.clone()).collect()
}

fn imply(builder: ServerBuilder, implies: &BTreeMap<String, Vec<String>>) -> ServerBuilder {
    let imply = |builder: ServerBuilder, (broad, narrow): (&String, &Vec<String>)| {
        builder.scope_implies(broad, narrow)
    };
    implies.iter().fold(builder, imply)
}

/// Builds a server with a single setting, to check that setting.
fn try_build(set: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Result<(), BuildError> {
    let keys = KeyRing::generate(&SystemSource::new());
    let builder = set(Server::builder("check", "0").keys(keys));
    builder.build().map(drop)
}
