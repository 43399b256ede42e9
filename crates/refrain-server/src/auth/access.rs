//! Access control: the authenticator and the required scopes of a server.

use super::metadata::PublishedMetadata;
use super::{AuthRejection, Authenticator, Caller, ResourceMetadata, Scopes};
use crate::builder::{BuildError, ServerBuilder};
use http::{HeaderMap, Method};
use refrain_core::Principal;
use refrain_wire::RpcError;
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The settings of a builder for access control.
#[derive(Clone, Default)]
pub(crate) struct AccessRules {
    scopes: Vec<String>,
    /// Pairs of a broad scope and the narrow scopes that it includes.
    implied: Vec<(String, Vec<String>)>,
    pub(crate) metadata: Option<ResourceMetadata>,
}

/// The access control of a built server.
pub(crate) struct Auth {
    authenticator: Option<Arc<dyn Authenticator>>,
    scopes: Vec<String>,
    /// For each scope that another one implies: itself, and the scopes that imply it directly or indirectly.
    broader: HashMap<String, Vec<String>>,
    /// The value of `scope` in challenges (`WWW-Authenticate`): `scopes`, separated by spaces.
    pub(crate) challenge_scope: String,
    pub(crate) metadata: Option<Arc<PublishedMetadata>>,
    pub(crate) requires_dpop: bool,
}

/// The scopes that a request requires, separated by spaces. The caller lacks at least one of them.
#[derive(Debug)]
pub(crate) struct MissingScopes(pub(crate) String);

impl ServerBuilder {
    /// Requires these scopes for every request, including lists. Every challenge (`WWW-Authenticate`)
    /// names them.
    pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
        self.access
            .scopes
            .extend(scopes.into_iter().map(Into::into));
        self
    }

    /// Declares that the scope `broad` includes the scopes `narrow`. `build` rejects invalid scopes.
    ///
    /// ```
    /// use refrain::server::Server;
    ///
    /// let server = Server::builder("files", "1.0")
    ///     .scope_implies("files:admin", ["files:write"])
    ///     .scope_implies("files:write", ["files:read"]);
    /// ```
    pub fn scope_implies<S: Into<String>>(
        mut self,
        broad: impl Into<String>,
        narrow: impl IntoIterator<Item = S>,
    ) -> Self {
        let narrow = narrow.into_iter().map(Into::into).collect();
        self.access.implied.push((broad.into(), narrow));
        self
    }

    /// Sets the metadata that tells clients where to get tokens. It is served without authentication, and every challenge
    /// names its URL. `scopes_supported` defaults to the scopes that every request requires.
    pub fn resource_metadata(mut self, metadata: ResourceMetadata) -> Self {
        self.access.metadata = Some(metadata);
        self
    }
}

impl AccessRules {
    pub(crate) fn build(
        self,
        authenticator: Option<Arc<dyn Authenticator>>,
    ) -> Result<Auth, BuildError> {
        check_scopes("the server", &self.scopes)?;
        for (broad, narrow) in &self.implied {
            check_scopes("the server", [broad].into_iter().chain(narrow))?;
        }
        let requires_dpop = authenticator
            .as_ref()
            .is_some_and(|authenticator| authenticator.requires_dpop());
        let publish = |mut metadata: ResourceMetadata| {
            if metadata.scopes_supported.is_empty() {
                metadata.scopes_supported.clone_from(&self.scopes);
            }
            check_scopes("the resource metadata", &metadata.scopes_supported)?;
            metadata.publish(requires_dpop).map(Arc::new)
        };
        let metadata = self.metadata.map(publish).transpose()?;
        Ok(Auth {
            authenticator,
            challenge_scope: join_distinct(&self.scopes, &[]),
            broader: broader(&self.implied),
            scopes: self.scopes,
            metadata,
            requires_dpop,
        })
    }
}

impl Auth {
    /// The caller of a request. Anonymous if there is no authenticator.
    pub(crate) async fn authenticate(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Caller, AuthRejection> {
        match &self.authenticator {
            None => Ok(Principal::anonymous().into()),
            Some(authenticator) => authenticator.authenticate_request(method, headers).await,
        }
    }

    /// Checks that the caller has the scopes `needed`, and those that every request requires.
    pub(crate) fn allow(&self, caller: &Caller, needed: &[String]) -> Result<(), MissingScopes> {
        let mut all = self.scopes.iter().chain(needed);
        if all.all(|scope| self.grants(&caller.scopes, scope)) {
            return Ok(());
        }
        Err(MissingScopes(join_distinct(&self.scopes, needed)))
    }

    fn grants(&self, scopes: &Scopes, needed: &str) -> bool {
        let implied = |broader: &Vec<String>| broader.iter().any(|scope| scopes.has(scope));
        scopes.has(needed) || self.broader.get(needed).is_some_and(implied)
    }
}

/// The protocol has no error code for missing scopes, so this is an invalid request.
impl From<MissingScopes> for RpcError {
    fn from(MissingScopes(scopes): MissingScopes) -> Self {
        let needed: Vec<&str> = scopes.split(' ').collect();
        let message = format!("missing scope: this request requires {}", needed.join(", "));
        RpcError::invalid_request(message).with_data(&json!({"requiredScopes": needed}))
    }
}

/// For each scope that another one implies: itself, and the scopes that imply it directly or indirectly.
fn broader(implied: &[(String, Vec<String>)]) -> HashMap<String, Vec<String>> {
    let mut all = HashMap::new();
    for scope in implied.iter().flat_map(|(_, narrow)| narrow) {
        let mut found = vec![scope.clone()];
        let mut next = 0;
        while let Some(narrow) = found.get(next).cloned() {
            next += 1;
            for (broad, narrower) in implied {
                if narrower.contains(&narrow) && !found.contains(broad) {
                    found.push(broad.clone());
                }
            }
        }
        all.insert(scope.clone(), found);
    }
    all
}

fn join_distinct(first: &[String], second: &[String]) -> String {
    let mut seen = HashSet::new();
    let mut all: Vec<&str> = first.iter().chain(second).map(String::as_str).collect();
    all.retain(|scope| seen.insert(*scope));
    all.join(" ")
}

pub(crate) fn check_scopes<'a>(
    owner: &str,
    scopes: impl IntoIterator<Item = &'a String>,
) -> Result<(), BuildError> {
    for scope in scopes {
        check_scope(scope).map_err(|reason| BuildError::Scope {
            owner: owner.to_owned(),
            scope: scope.clone(),
            reason,
        })?;
    }
    Ok(())
}

/// Why a scope is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// The scope is empty, or contains characters that RFC 6749 does not allow.
    #[error("expected printable ASCII characters other than space, `\"` and `\\`")]
    Characters,
    /// `offline_access` concerns only the client and its authorization server.
    #[error(
        "a server must not require offline_access, which clients request from the authorization server"
    )]
    OfflineAccess,
}

pub(super) fn check_scope(scope: &str) -> Result<(), ScopeError> {
    let is_allowed = |c: char| matches!(c, '!'..='~') && !matches!(c, '"' | '\\');
    if scope.is_empty() || !scope.chars().all(is_allowed) {
        return Err(ScopeError::Characters);
    }
    if scope == "offline_access" {
        return Err(ScopeError::OfflineAccess);
    }
    Ok(())
}
