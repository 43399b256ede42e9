//! The `[auth]` table: who may call over HTTP, and what they are told.

use crate::Failure;
use clap::Args;
use refrain::{
    Jwks, JwtVerifier, JwtVerifierError, KeyRing, ResourceMetadata, Server, ServerBuilder,
    SystemSource, TrustedProxy,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the `[auth]` table may say. Every key is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AuthConfig {
    /// Scopes that every request needs.
    scopes: Vec<String>,
    /// For a scope those that it implies.
    implies: BTreeMap<String, Vec<String>>,
    /// The URL of the endpoint as clients know it.
    resource: Option<String>,
    /// Who issues tokens for it; the issuer if not set.
    authorization_servers: Option<Vec<String>>,
    jwt: Option<JwtConfig>,
    proxy: Option<ProxyConfig>,
}

/// The `[auth.jwt]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct JwtConfig {
    issuer: Option<String>,
    /// The resource if not set.
    audience: Option<Audience>,
    /// A file or a URL.
    jwks: Option<String>,
    leeway_seconds: Option<u64>,
    max_age_seconds: Option<u64>,
    min_interval_seconds: Option<u64>,
}

/// One audience, or several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

/// The `[auth.proxy]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ProxyConfig {
    secret_file: Option<PathBuf>,
    secret_header: Option<String>,
    user_header: Option<String>,
    scopes_header: Option<String>,
}

/// The flags that say the same.
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

/// How callers are told apart, checked and ready.
#[derive(Debug)]
pub(crate) struct Auth {
    config: AuthConfig,
    by: Option<By>,
    metadata: Option<ResourceMetadata>,
}

#[derive(Debug)]
enum By {
    Jwt(JwtVerifier),
    Proxy(Box<TrustedProxy>),
}

impl AuthConfig {
    /// Puts what flags say in place of what the file says.
    pub(crate) fn override_with(&mut self, flags: &Flags) {
        if flags.issuer.is_some() || flags.jwks.is_some() {
            let jwt = self.jwt.get_or_insert_default();
            jwt.issuer = flags.issuer.clone().or(jwt.issuer.take());
            jwt.jwks = flags.jwks.clone().or(jwt.jwks.take());
        }
        self.resource = flags.resource.clone().or(self.resource.take());
    }

    /// Checks all of it, and reads the files it names. Messages begin with the key that is at fault.
    pub(crate) fn ready(&self, tokens: Option<&Path>) -> Result<Auth, Failure> {
        let by = match (&self.jwt, &self.proxy, tokens) {
            (Some(_), Some(_), _) => {
                return Err("auth.proxy: there is auth.jwt as well: choose one of them".into());
            }
            (Some(_), _, Some(_)) => {
                return Err("auth.jwt: there are tokens as well: choose one of them".into());
            }
            (_, Some(_), Some(_)) => {
                return Err("auth.proxy: there are tokens as well: choose one of them".into());
            }
            (Some(jwt), None, None) => Some(By::Jwt(jwt.verifier(self.resource.as_deref())?)),
            (None, Some(proxy), None) => Some(By::Proxy(Box::new(proxy.ready()?))),
            (None, None, _) => None,
        };
        if !self.scopes.is_empty() && by.is_none() && tokens.is_none() {
            let hint = "nobody could have them: set tokens, [auth.jwt] or [auth.proxy]";
            return Err(format!("auth.scopes: {hint}").into());
        }
        check("auth.scopes", |builder| builder.scopes(&self.scopes))?;
        let metadata = self.metadata()?;
        if let Some(metadata) = metadata.clone() {
            let key = match &self.authorization_servers {
                Some(_) => "auth.resource, auth.authorization_servers",
                None => "auth.resource",
            };
            check(key, |builder| builder.resource_metadata(metadata))?;
        }
        Ok(Auth {
            config: self.clone(),
            by,
            metadata,
        })
    }

    /// What clients are told about where to get their tokens, if that is known.
    fn metadata(&self) -> Result<Option<ResourceMetadata>, Failure> {
        let issuer = self.jwt.as_ref().and_then(|jwt| jwt.issuer.clone());
        match (&self.resource, &self.authorization_servers, issuer) {
            (Some(resource), Some(servers), _) => {
                Ok(Some(ResourceMetadata::new(resource, servers)))
            }
            (Some(resource), None, Some(issuer)) => {
                Ok(Some(ResourceMetadata::new(resource, [issuer])))
            }
            (Some(_), None, None) => Err(
                "auth.resource: set auth.authorization_servers too: who issues tokens for it?"
                    .into(),
            ),
            (None, Some(_), _) => Err(
                "auth.authorization_servers: set auth.resource too: what do they issue tokens for?"
                    .into(),
            ),
            (None, None, _) => Ok(None),
        }
    }
}

impl JwtConfig {
    fn verifier(&self, resource: Option<&str>) -> Result<JwtVerifier, Failure> {
        let issuer = self.issuer.as_ref();
        let issuer = issuer.ok_or("auth.jwt.issuer: set it: who issues the access tokens?")?;
        let jwks = self.jwks.as_ref();
        let jwks = jwks.ok_or("auth.jwt.jwks: set it: a file or a URL with the issuer's keys")?;
        let jwks = match jwks.split_once("://") {
            Some(_) => Jwks::Url(jwks.clone()),
            None => Jwks::File(jwks.into()),
        };
        let mut audiences = match (&self.audience, resource) {
            (Some(Audience::One(audience)), _) => vec![audience.as_str()],
            (Some(Audience::Several(audiences)), _) => {
                audiences.iter().map(String::as_str).collect()
            }
            (None, resource) => resource.into_iter().collect(),
        }
        .into_iter();
        let first = audiences.next();
        let first = first.ok_or(
            "auth.jwt.audience: set it, or auth.resource: whom are the access tokens for?",
        )?;
        let mut builder = JwtVerifier::builder(issuer, first, jwks);
        for audience in audiences {
            builder = builder.audience(audience);
        }
        let seconds = |given: Option<u64>| given.map(Duration::from_secs);
        if let Some(leeway) = seconds(self.leeway_seconds) {
            builder = builder.leeway(leeway);
        }
        if let Some(age) = seconds(self.max_age_seconds) {
            builder = builder.max_age(age);
        }
        if let Some(interval) = seconds(self.min_interval_seconds) {
            builder = builder.min_interval(interval);
        }
        builder.build().map_err(|error| {
            let key = match error {
                JwtVerifierError::Issuer { .. } => "issuer",
                JwtVerifierError::Audience => "audience",
                _ => "jwks",
            };
            format!("auth.jwt.{key}: {error}").into()
        })
    }
}

impl ProxyConfig {
    fn ready(&self) -> Result<TrustedProxy, Failure> {
        let key = "auth.proxy.secret_file";
        let file = self.secret_file.as_ref();
        let file =
            file.ok_or_else(|| format!("{key}: set it: how does the proxy prove itself?"))?;
        let secret = std::fs::read_to_string(file)
            .map_err(|error| format!("{key}: {} cannot be read: {error}", file.display()))?;
        let mut proxy = TrustedProxy::new(secret.trim_end_matches(['\r', '\n']))
            .map_err(|error| format!("{key}: {}: {error}", file.display()))?;
        let named = |key: &str, error| format!("auth.proxy.{key}: {error}");
        if let Some(name) = &self.secret_header {
            let set = proxy.secret_header(name);
            proxy = set.map_err(|error| named("secret_header", error))?;
        }
        if let Some(name) = &self.user_header {
            let set = proxy.user_header(name);
            proxy = set.map_err(|error| named("user_header", error))?;
        }
        if let Some(name) = &self.scopes_header {
            let set = proxy.scopes_header(name);
            proxy = set.map_err(|error| named("scopes_header", error))?;
        }
        Ok(proxy)
    }
}

impl Auth {
    /// Are callers told apart by it?
    pub(crate) fn is_set(&self) -> bool {
        self.by.is_some()
    }

    /// Has a server do what the configuration says.
    pub(crate) fn apply(self, mut builder: ServerBuilder) -> ServerBuilder {
        builder = builder.scopes(self.config.scopes);
        for (broad, narrow) in self.config.implies {
            builder = builder.scope_implies(broad, narrow);
        }
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

/// Has a builder look at one part by itself, so that what is wrong with it is known by its key.
fn check(key: &str, set: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Result<(), Failure> {
    let keys = KeyRing::generate(&SystemSource::new());
    let builder = set(Server::builder("check", "0").keys(keys));
    match builder.build() {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{key}: {error}").into()),
    }
}
