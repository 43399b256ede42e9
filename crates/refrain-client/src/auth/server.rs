//! The authorization state of one server.
//!
//! One request at a time asks for authorization, and requests rejected meanwhile share its result. The current grant stays
//! in use: requests that need no further scopes do not wait for a person.

use super::RejectedRequest;
use super::challenge::AuthChallenge;
use super::dpop::Nonces;
use super::error::{AuthError, AuthResult};
use super::grant::Grant;
use super::http::AuthHttp;
use super::oauth::OAuthSetup;
use http::{HeaderMap, Method, StatusCode, header};
use oauth2::RefreshToken;
use parking_lot::RwLock;
use refrain_wire::limited_event;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Mutex, OwnedMutexGuard};
use url::Url;

/// How often one request may be rejected and sent again.
const REJECTIONS_MAX: u32 = 3;

pub(super) struct ServerAuth {
    pub(super) setup: Arc<OAuthSetup>,
    pub(super) http: AuthHttp,
    pub(super) url: Url,
    pub(super) nonces: Nonces,
    current: RwLock<CurrentGrant>,
    /// Locked during an authorization.
    last_attempt: Arc<Mutex<LastAttempt>>,
    /// The number of authorizations attempted, successful or not.
    attempts: AtomicU64,
}

#[derive(Clone, Default)]
struct CurrentGrant {
    grant: Option<Arc<Grant>>,
    /// Whether this process obtained the grant in a flow, so that repeating the flow would not help.
    is_fresh: bool,
}

#[derive(Default)]
struct LastAttempt {
    failure: Option<AuthError>,
}

impl ServerAuth {
    pub(super) fn new(setup: Arc<OAuthSetup>, http: AuthHttp, url: Url) -> Self {
        Self {
            setup,
            http,
            url,
            nonces: Nonces::default(),
            current: RwLock::default(),
            last_attempt: Arc::default(),
            attempts: AtomicU64::new(0),
        }
    }

    /// The headers of a request. Empty without a grant, so that a 401 response names the required authorization.
    pub(super) async fn headers(
        self: &Arc<Self>,
        method: &Method,
        url: &Url,
    ) -> AuthResult<HeaderMap> {
        let mut grant = self.current().grant;
        if !grant.as_ref().is_some_and(|grant| grant.is_valid()) {
            grant = self.load_and_renew().await?;
        }
        match grant {
            Some(grant) => grant.headers(method, url, &self.nonces),
            None => Ok(HeaderMap::new()),
        }
    }

    pub(super) async fn handle_rejection(
        self: &Arc<Self>,
        rejection: RejectedRequest<'_>,
    ) -> AuthResult<bool> {
        let challenge = AuthChallenge::read(rejection.headers);
        if !rejection.is_about_token(&challenge) {
            return Ok(false);
        }
        if rejection.previous >= REJECTIONS_MAX {
            return Err(rejection.error(&challenge));
        }
        let has_nonce = self.nonces.update(rejection.url, rejection.headers);
        if has_nonce && challenge.error.as_deref() == Some("use_dpop_nonce") {
            return Ok(true);
        }
        let attempts = self.attempts.load(Ordering::Acquire);
        let mut last_attempt = self.lock_authorization().await;
        // The attempt that this request waited for has failed.
        if let Some(failure) = &last_attempt.failure
            && self.attempts.load(Ordering::Acquire) > attempts
        {
            return Err(failure.clone());
        }
        let mut storage_lock = self.lock_storage().await;
        self.load().await?;
        if self.is_outdated(rejection.sent)? {
            return Ok(true);
        }
        let outcome = self
            .run_flow(&challenge, &rejection, &mut storage_lock)
            .await;
        self.attempts.fetch_add(1, Ordering::Release);
        last_attempt.failure = outcome.as_ref().err().cloned();
        outcome.map(|()| true)
    }

    async fn run_flow(
        &self,
        challenge: &AuthChallenge,
        rejection: &RejectedRequest<'_>,
        storage_lock: &mut Option<Box<dyn Send>>,
    ) -> AuthResult<()> {
        let current = self.current();
        let lacks_scope = rejection.status == StatusCode::FORBIDDEN;
        if let (Some(grant), true) = (&current.grant, current.is_fresh) {
            let required = challenge.scopes.clone().unwrap_or_default();
            if lacks_scope && grant.scopes.contains_all(&required) {
                return Err(AuthError::InsufficientScope(grant.scopes.to_string()));
            }
            if !lacks_scope && rejection.previous > 0 {
                return Err(rejection.error(challenge));
            }
        }
        let prior = current.grant.as_deref();
        let grant = self
            .authorize(challenge, prior, lacks_scope, storage_lock)
            .await?;
        self.store(grant, true).await;
        Ok(())
    }

    /// The current grant, renewed if it is about to expire. Returns the old grant if the renewal fails.
    async fn load_and_renew(self: &Arc<Self>) -> AuthResult<Option<Arc<Grant>>> {
        let guard = self.lock_authorization().await;
        let lock = self.lock_storage().await;
        self.load().await?;
        let Some(grant) = self.current().grant else {
            return Ok(None);
        };
        let token = match &grant.refresh_token {
            Some(token) if !grant.is_valid() => token.clone(),
            _ => return Ok(Some(grant)),
        };
        match self.renew((guard, lock), Arc::clone(&grant), token).await {
            Ok(grant) => Ok(Some(grant)),
            Err(error) => {
                limited_event!(WARN, server = %self.url, %error, "failed to refresh access token");
                Ok(Some(grant))
            }
        }
    }

    /// Uses a refresh token, in a tokio task that continues if the request is dropped: the token may be valid only once, so
    /// the new grant must be stored.
    async fn renew(
        self: &Arc<Self>,
        locks: (OwnedMutexGuard<LastAttempt>, Option<Box<dyn Send>>),
        grant: Arc<Grant>,
        token: RefreshToken,
    ) -> AuthResult<Arc<Grant>> {
        let server = Arc::clone(self);
        let is_fresh = self.current().is_fresh;
        let task = tokio::spawn(async move {
            let renewed = server.refresh(&grant, &token).await?;
            let renewed = server.store(renewed, is_fresh).await;
            drop(locks);
            Ok(renewed)
        });
        task.await.unwrap_or_else(|_| Err(AuthError::Unauthorized))
    }

    async fn lock_authorization(&self) -> OwnedMutexGuard<LastAttempt> {
        Arc::clone(&self.last_attempt).lock_owned().await
    }

    /// Locks the host's storage, so that no other process uses the same refresh token.
    async fn lock_storage(&self) -> Option<Box<dyn Send>> {
        let grants = self.setup.grants.as_ref()?;
        let locked = grants.lock(&self.url).await;
        locked
            .inspect_err(|error| {
                limited_event!(WARN, server = %self.url, %error, "failed to lock grant");
            })
            .ok()
    }

    /// Reads the host's storage, where another process may have put a newer grant.
    async fn load(&self) -> AuthResult<()> {
        let Some(grants) = &self.setup.grants else {
            return Ok(());
        };
        let stored = grants.get(&self.url).await;
        let stored = stored.map_err(|error| AuthError::Grants(error.into()))?;
        let Some(stored) = stored.filter(|stored| self.setup.accepts(stored)) else {
            return Ok(());
        };
        let is_newer = self.current().grant.is_none_or(|current| {
            stored.obtained >= current.obtained
                && stored.access_token.secret() != current.access_token.secret()
        });
        if is_newer {
            self.set_current(Arc::new(stored), false);
        }
        Ok(())
    }

    async fn store(&self, grant: Grant, is_fresh: bool) -> Arc<Grant> {
        let grant = Arc::new(grant);
        self.set_current(Arc::clone(&grant), is_fresh);
        if let Some(grants) = &self.setup.grants
            && let Err(error) = grants.put(&self.url, &grant).await
        {
            limited_event!(WARN, server = %self.url, %error, "failed to store grant");
        }
        grant
    }

    /// Whether a request was sent without the current grant.
    fn is_outdated(&self, sent: &HeaderMap) -> AuthResult<bool> {
        match self.current().grant {
            Some(grant) => Ok(sent.get(header::AUTHORIZATION) != Some(&grant.authorization()?)),
            None => Ok(false),
        }
    }

    fn current(&self) -> CurrentGrant {
        self.current.read().clone()
    }

    fn set_current(&self, grant: Arc<Grant>, is_fresh: bool) {
        let grant = Some(grant);
        *self.current.write() = CurrentGrant { grant, is_fresh };
    }
}
