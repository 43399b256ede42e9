//! Sealed handles: text that names the instance which keeps state for a caller.

use crate::relay::Holder;
use crate::server::Server;
use crate::services::{Services, open_text, seal_text};
use refrain_core::{OpenError, Principal, limited_event};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The maximum size of a payload in bytes. Models repeat handles, so they should be short.
const MAX_PAYLOAD: usize = 1024;
/// The maximum length of a handle: payload, holder and seal in base64.
const MAX_HANDLE: usize = 8 * MAX_PAYLOAD;

/// Why a handle could not be sealed or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// The handle is forged, has expired, or belongs to another principal.
    #[error("invalid or expired handle")]
    Invalid,
    /// Another instance made the handle, or this one before a restart.
    #[error("the state behind this handle is lost: the instance that had it is gone")]
    Lost,
    /// The payload is too large.
    #[error("the payload of a handle has {size} bytes, but the limit is {limit}")]
    TooLarge {
        /// The size of the payload.
        size: usize,
        /// The limit.
        limit: usize,
    },
}

/// The sealed content of a handle.
#[derive(Serialize, Deserialize)]
struct HandleClaims {
    /// The instance that made the handle, and its advertised URL.
    holder: String,
    /// In seconds since 1970.
    expires: u64,
    payload: String,
}

/// An opened handle.
pub(crate) struct OpenedHandle {
    pub(crate) holder: Holder,
    payload: String,
}

impl Services {
    /// Opens a handle of this principal. The reason of a failure is logged, but not part of the error.
    pub(crate) fn open_handle(
        &self,
        principal: &Principal,
        handle: &str,
    ) -> Result<OpenedHandle, HandleError> {
        self.try_open_handle(principal, handle).map_err(|reason| {
            limited_event!(WARN, %reason, "handle rejected");
            HandleError::Invalid
        })
    }

    fn try_open_handle(
        &self,
        principal: &Principal,
        handle: &str,
    ) -> Result<OpenedHandle, OpenError> {
        if handle.len() > MAX_HANDLE {
            return Err(OpenError::Length);
        }
        let opened = open_text(&self.sealer, &self.handle_binding(principal), handle)?;
        let claims: HandleClaims =
            serde_json::from_slice(&opened).map_err(|_| OpenError::Content)?;
        let skew = self.sealer.options().skew.as_secs();
        if self.source.unix_seconds() > claims.expires.saturating_add(skew) {
            return Err(OpenError::Expired);
        }
        Ok(OpenedHandle {
            holder: Holder::parse(&claims.holder).ok_or(OpenError::Content)?,
            payload: claims.payload,
        })
    }

    /// A handle is bound to the audience and the principal.
    fn handle_binding(&self, principal: &Principal) -> Vec<u8> {
        let audience = &self.sealer.options().audience;
        let (kind, id) = match principal.id() {
            Some(id) => ("id ", id),
            None => ("anonymous", ""),
        };
        format!("handle {}:{audience} {kind}{id}", audience.len()).into_bytes()
    }
}

impl Server {
    /// Seals a handle: text that a client passes back as an argument, so that its calls reach this instance again. It
    /// contains the advertised URL of this instance and the payload, which clients cannot read. A tool that is registered with
    /// [`pin_by_handle`](crate::Tool::pin_by_handle) runs on the instance that its handle names.
    ///
    /// Only this principal can use the handle, until it expires after `ttl`. All anonymous callers are one principal: each of
    /// them can use a handle that was sealed for another.
    ///
    /// ```
    /// use refrain::prelude::*;
    /// use std::time::Duration;
    ///
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Page { session: String }
    ///
    /// /// Opens a browser and returns its session.
    /// async fn open(cx: Cx, server: State<Server>) -> Result<String> {
    ///     let browser = "17"; // The key of the browser in the memory of this instance.
    ///     Ok(server.seal_handle(cx.principal(), browser, Duration::from_secs(3600))?)
    /// }
    ///
    /// /// Runs on the instance that has the browser.
    /// async fn close(cx: Cx, server: State<Server>, page: Page) -> Result<String> {
    ///     let browser = server.open_handle(cx.principal(), &page.session)?;
    ///     Ok(format!("closed {browser}"))
    /// }
    ///
    /// let server = Server::builder("browser", "1.0")
    ///     .tool(Tool::new("open", open))
    ///     .tool(Tool::new("close", close).pin_by_handle("session"))
    ///     .build()?;
    /// # Ok::<(), refrain::server::BuildError>(())
    /// ```
    pub fn seal_handle(
        &self,
        principal: &Principal,
        payload: &str,
        ttl: Duration,
    ) -> Result<String, HandleError> {
        let (size, limit) = (payload.len(), MAX_PAYLOAD);
        if size > limit {
            return Err(HandleError::TooLarge { size, limit });
        }
        let services = &self.0.services;
        let claims = HandleClaims {
            holder: self.0.relay.own.to_string(),
            expires: services.source.unix_seconds().saturating_add(ttl.as_secs()),
            payload: payload.to_owned(),
        };
        let claims = serde_json::to_vec(&claims).expect("the claims serialize to JSON");
        let binding = services.handle_binding(principal);
        Ok(seal_text(&services.sealer, &binding, &claims))
    }

    /// Returns the payload of a handle that this instance sealed for the principal with [`seal_handle`](Self::seal_handle).
    pub fn open_handle(&self, principal: &Principal, handle: &str) -> Result<String, HandleError> {
        let opened = self.0.services.open_handle(principal, handle)?;
        match self.0.relay.is_own(&opened.holder) {
            true => Ok(opened.payload),
            false => Err(HandleError::Lost),
        }
    }
}
