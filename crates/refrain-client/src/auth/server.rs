//! The authorization of a client with one server: what is held of it, and when there must be another.
//!
//! Always: one request at a time asks for authorization, and those that are refused meanwhile share what comes of it.
//! What is held is used all the while: a person who thinks about more rights does not stop what needs fewer.

use super::Refusal;
use super::challenge::Demand;
use super::dpop::Nonces;
use super::error::AuthError;
use super::grant::Grant;
use super::http::Http;
use super::setup::Setup;
use http::{HeaderMap, Method, StatusCode, header};
use oauth2::RefreshToken;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Mutex, OwnedMutexGuard};
use url::Url;

/// How often one request may be refused and sent again.
const TRIES_MAX: u32 = 3;

/// One server, and what is held of authorizations for it.
pub(super) struct Server {
    pub(super) setup: Arc<Setup>,
    pub(super) http: Http,
    pub(super) url: Url,
    pub(super) nonces: Nonces,
    held: RwLock<Held>,
    turn: Arc<Mutex<Turn>>,
    /// How often authorization was asked for, whatever came of it.
    asked: AtomicU64,
}

/// What is held.
#[derive(Clone, Default)]
struct Held {
    grant: Option<Arc<Grant>>,
    /// Whether this process got it by asking, so that it makes no sense to ask for the same again.
    is_fresh: bool,
}

/// What one request at a time has: it may look at what the host keeps, and ask for more.
#[derive(Default)]
struct Turn {
    /// Why the last asking was in vain, if it was.
    failure: Option<String>,
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

    /// The headers of a request. None, as long as nothing is known: the server then says what it wants.
    pub(super) async fn headers(
        self: &Arc<Self>,
        method: &Method,
        url: &Url,
    ) -> Result<HeaderMap, AuthError> {
        let mut grant = self.held().grant;
        if !grant.as_ref().is_some_and(|grant| grant.is_good()) {
            grant = self.look_and_renew().await?;
        }
        match grant {
            Some(grant) => grant.headers(method, url, &self.nonces),
            None => Ok(HeaderMap::new()),
        }
    }

    /// Whether a refused request shall be sent again.
    pub(super) async fn refused(self: &Arc<Self>, refusal: Refusal<'_>) -> Result<bool, AuthError> {
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
        if let Some(reason) = &turn.failure
            && self.asked.load(Ordering::Acquire) > asked
        {
            return Err(AuthError::Awaited(reason.clone()));
        }
        self.look().await?;
        if self.is_outdated(refusal.sent)? {
            return Ok(true);
        }
        let outcome = self.ask(&demand, &refusal).await;
        self.asked.fetch_add(1, Ordering::Release);
        turn.failure = outcome.as_ref().err().map(ToString::to_string);
        outcome.map(|()| true)
    }

    /// Asks for authorization, if that may help.
    async fn ask(&self, demand: &Demand, refusal: &Refusal<'_>) -> Result<(), AuthError> {
        let held = self.held();
        let lacks_scope = refusal.status == StatusCode::FORBIDDEN;
        if let (Some(grant), true) = (&held.grant, held.is_fresh) {
            let wanted = demand.scopes.clone().unwrap_or_default();
            if lacks_scope && grant.scopes.contains_all(&wanted) {
                return Err(AuthError::scopes(&grant.scopes));
            }
            if !lacks_scope && refusal.earlier > 0 {
                return Err(AuthError::Refused);
            }
        }
        let grant = self
            .authorize(demand, held.grant.as_deref(), lacks_scope)
            .await?;
        self.keep(grant, true).await;
        Ok(())
    }

    /// What is held, renewed if it is about to expire. A failure to renew it is no reason not to try it.
    async fn look_and_renew(self: &Arc<Self>) -> Result<Option<Arc<Grant>>, AuthError> {
        let turn = self.turn().await;
        self.look().await?;
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
                tracing::warn!(server = %self.url, %error, "an access token could not be renewed");
                Ok(Some(grant))
            }
        }
    }

    /// Uses a refresh token, in a task of its own: it may be good for one use only, and what it gave must be kept even
    /// if nobody waits for it any more.
    async fn renew(
        self: &Arc<Self>,
        turn: OwnedMutexGuard<Turn>,
        grant: Arc<Grant>,
        token: RefreshToken,
    ) -> Result<Arc<Grant>, AuthError> {
        let server = Arc::clone(self);
        let is_fresh = self.held().is_fresh;
        let task = tokio::spawn(async move {
            let renewed = server.refresh(&grant, &token).await?;
            let renewed = server.keep(renewed, is_fresh).await;
            drop(turn);
            Ok(renewed)
        });
        task.await.unwrap_or_else(|_| Err(AuthError::Refused))
    }

    async fn turn(&self) -> OwnedMutexGuard<Turn> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// Looks at what the host keeps: another process may have got something newer.
    async fn look(&self) -> Result<(), AuthError> {
        let Some(grants) = &self.setup.grants else {
            return Ok(());
        };
        let kept = grants.get(&self.url).await.map_err(AuthError::Grants)?;
        let Some(kept) = kept.filter(|kept| self.setup.is_ours(kept)) else {
            return Ok(());
        };
        let is_newer = self.held().grant.is_none_or(|held| {
            kept.obtained >= held.obtained
                && kept.access_token.secret() != held.access_token.secret()
        });
        if is_newer {
            self.hold(Arc::new(kept), false);
        }
        Ok(())
    }

    /// Holds a grant, and has the host keep it. If it does not, the grant is good all the same.
    async fn keep(&self, grant: Grant, is_fresh: bool) -> Arc<Grant> {
        let grant = Arc::new(grant);
        self.hold(Arc::clone(&grant), is_fresh);
        if let Some(grants) = &self.setup.grants
            && let Err(error) = grants.put(&self.url, &grant).await
        {
            tracing::warn!(server = %self.url, %error, "an authorization could not be kept: it ends with this process");
        }
        grant
    }

    /// Whether a request was sent before what is held now was.
    fn is_outdated(&self, sent: &HeaderMap) -> Result<bool, AuthError> {
        match self.held().grant {
            Some(grant) => Ok(sent.get(header::AUTHORIZATION) != Some(&grant.authorization()?)),
            None => Ok(false),
        }
    }

    fn held(&self) -> Held {
        self.held.read().clone()
    }

    fn hold(&self, grant: Arc<Grant>, is_fresh: bool) {
        *self.held.write() = Held {
            grant: Some(grant),
            is_fresh,
        };
    }
}
