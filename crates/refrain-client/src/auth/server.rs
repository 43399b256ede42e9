//! The authorization of a client with one server.
//!
//! One request at a time asks for authorization, and those that are refused meanwhile share its result. The present grant
//! stays in use: a person who thinks about more rights does not stop requests that need fewer.

use super::Refusal;
use super::challenge::Demand;
use super::dpop::Nonces;
use super::error::{AuthError, AuthResult};
use super::grant::Grant;
use super::http::Http;
use super::oauth::Setup;
use http::{HeaderMap, Method, StatusCode, header};
use oauth2::RefreshToken;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Mutex, OwnedMutexGuard};
use url::Url;

/// How often one request may be refused and sent again.
const TRIES_MAX: u32 = 3;

pub(super) struct Server {
    pub(super) setup: Arc<Setup>,
    pub(super) http: Http,
    pub(super) url: Url,
    pub(super) nonces: Nonces,
    held: RwLock<Held>,
    turn: Arc<Mutex<Turn>>,
    /// How often authorization was asked for, with or without success.
    asked: AtomicU64,
}

#[derive(Clone, Default)]
struct Held {
    grant: Option<Arc<Grant>>,
    /// Whether this process got it by asking: asking for the same again is useless.
    is_fresh: bool,
}

/// The right to ask for authorization. One request at a time has it.
#[derive(Default)]
struct Turn {
    failure: Option<AuthError>,
}

impl Server {
    pub(super) fn new(setup: Arc<Setup>, http: Http, url: Url) -> Self {
        Self {
            setup,
            http,
            url,
            nonces: Nonces::default(),
            held: RwLock::default(),
            turn: Arc::default(),
            asked: AtomicU64::new(0),
        }
    }

    /// The headers of a request. Without a grant there are none: the refusal then says which authorization is needed.
    pub(super) async fn headers(
        self: &Arc<Self>,
        method: &Method,
        url: &Url,
    ) -> AuthResult<HeaderMap> {
        let mut grant = self.held().grant;
        if !grant.as_ref().is_some_and(|grant| grant.is_good()) {
            grant = self.load_and_renew().await?;
        }
        match grant {
            Some(grant) => grant.headers(method, url, &self.nonces),
            None => Ok(HeaderMap::new()),
        }
    }

    pub(super) async fn refused(self: &Arc<Self>, refusal: Refusal<'_>) -> AuthResult<bool> {
        let demand = Demand::read(refusal.headers);
        let lacks_scope = demand.error.as_deref() == Some("insufficient_scope");
        if refusal.status == StatusCode::FORBIDDEN && !lacks_scope {
            return Ok(false);
        }
        if refusal.earlier >= TRIES_MAX {
            return Err(AuthError::Refused);
        }
        let has_nonce = self.nonces.learn(refusal.url, refusal.headers);
        if has_nonce && demand.error.as_deref() == Some("use_dpop_nonce") {
            return Ok(true);
        }
        let asked = self.asked.load(Ordering::Acquire);
        let mut turn = self.turn().await;
        if let Some(failure) = &turn.failure
            && self.asked.load(Ordering::Acquire) > asked
        {
            return Err(failure.clone());
        }
        self.load().await?;
        if self.is_outdated(refusal.sent)? {
            return Ok(true);
        }
        let outcome = self.ask(&demand, &refusal).await;
        self.asked.fetch_add(1, Ordering::Release);
        turn.failure = outcome.as_ref().err().cloned();
        outcome.map(|()| true)
    }

    async fn ask(&self, demand: &Demand, refusal: &Refusal<'_>) -> AuthResult<()> {
        let held = self.held();
        let lacks_scope = refusal.status == StatusCode::FORBIDDEN;
        if let (Some(grant), true) = (&held.grant, held.is_fresh) {
            let wanted = demand.scopes.clone().unwrap_or_default();
            if lacks_scope && grant.scopes.contains_all(&wanted) {
                return Err(AuthError::Scopes(grant.scopes.to_string()));
            }
            if !lacks_scope && refusal.earlier > 0 {
                return Err(AuthError::Refused);
            }
        }
        let prior = held.grant.as_deref();
        let grant = self.authorize(demand, prior, lacks_scope).await?;
        self.store(grant, true).await;
        Ok(())
    }

    /// The present grant, renewed if it is about to expire. If that fails, the old one is tried.
    async fn load_and_renew(self: &Arc<Self>) -> AuthResult<Option<Arc<Grant>>> {
        let turn = self.turn().await;
        self.load().await?;
        let Some(grant) = self.held().grant else {
            return Ok(None);
        };
        let token = match &grant.refresh_token {
            Some(token) if !grant.is_good() => token.clone(),
            _ => return Ok(Some(grant)),
        };
        match self.renew(turn, Arc::clone(&grant), token).await {
            Ok(grant) => Ok(Some(grant)),
            Err(error) => {
                tracing::warn!(server = %self.url, %error, "failed to renew access token");
                Ok(Some(grant))
            }
        }
    }

    /// Uses a refresh token, in a spawned task: it may be valid only once, and its result must be stored even if the
    /// request is dropped.
    async fn renew(
        self: &Arc<Self>,
        turn: OwnedMutexGuard<Turn>,
        grant: Arc<Grant>,
        token: RefreshToken,
    ) -> AuthResult<Arc<Grant>> {
        let server = Arc::clone(self);
        let is_fresh = self.held().is_fresh;
        let task = tokio::spawn(async move {
            let renewed = server.refresh(&grant, &token).await?;
            let renewed = server.store(renewed, is_fresh).await;
            drop(turn);
            Ok(renewed)
        });
        task.await.unwrap_or_else(|_| Err(AuthError::Refused))
    }

    async fn turn(&self) -> OwnedMutexGuard<Turn> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// Reads the host's storage: another process may have a newer grant.
    async fn load(&self) -> AuthResult<()> {
        let Some(grants) = &self.setup.grants else {
            return Ok(());
        };
        let stored = grants.get(&self.url).await;
        let stored = stored.map_err(|error| AuthError::Grants(error.into()))?;
        let Some(stored) = stored.filter(|stored| self.setup.is_ours(stored)) else {
            return Ok(());
        };
        let is_newer = self.held().grant.is_none_or(|held| {
            stored.obtained >= held.obtained
                && stored.access_token.secret() != held.access_token.secret()
        });
        if is_newer {
            self.hold(Arc::new(stored), false);
        }
        Ok(())
    }

    /// Uses a grant from now on, and stores it.
    async fn store(&self, grant: Grant, is_fresh: bool) -> Arc<Grant> {
        let grant = Arc::new(grant);
        self.hold(Arc::clone(&grant), is_fresh);
        if let Some(grants) = &self.setup.grants
            && let Err(error) = grants.put(&self.url, &grant).await
        {
            tracing::warn!(server = %self.url, %error, "failed to store grant");
        }
        grant
    }

    /// Whether a request was sent without the present grant.
    fn is_outdated(&self, sent: &HeaderMap) -> AuthResult<bool> {
        match self.held().grant {
            Some(grant) => Ok(sent.get(header::AUTHORIZATION) != Some(&grant.authorization()?)),
            None => Ok(false),
        }
    }

    fn held(&self) -> Held {
        self.held.read().clone()
    }

    fn hold(&self, grant: Arc<Grant>, is_fresh: bool) {
        let grant = Some(grant);
        *self.held.write() = Held { grant, is_fresh };
    }
}
