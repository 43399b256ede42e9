//! Negotiation of the protocol revision.
//!
//! The client sends `server/discover` in 2026-07-28, and the response decides:
//!
//! | response | conclusion |
//! | --- | --- |
//! | capabilities | 2026-07-28, or the newest legacy revision that both support |
//! | -32022, unsupported version | the newest legacy revision that both support; an error if there is none |
//! | -32020, header mismatch, or -32021, missing capability | an error |
//! | any other response, silence, or exit | a legacy server, if `initialize` succeeds |
//! | "method not found", then `initialize` rejected | 2026-07-28 without discovery |
//! | another rejection of both over HTTP, and GET opens a stream with an `endpoint` event | the HTTP+SSE transport of 2024-11-05, then `initialize` over it |

use crate::builder::ClientBuilder;
use crate::client::{Client, ClientInner, RequestIds};
use crate::dialect::{Dialect, DialectError};
use crate::error::{Error, ErrorKind, QUOTE_MAX, after_colon};
use crate::legacy::{Handshake, Legacy};
use crate::retry::within;
use crate::transport::{EventStream, Link, LinkResponse, LinkResult, PipeLink};
use futures_util::future::{Either, select};
use refrain_wire::client::{Request, RpcFailure, ServerInfo, check_complete};
use refrain_wire::legacy::Revision;
use refrain_wire::{ErrorCode, PROTOCOL_VERSION};
use serde_json::Value;
use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// A process that exits within this time after reading `server/discover` counts as unable to handle it.
const EXIT_DELAY_MAX: Duration = Duration::from_secs(5);
/// The interval of checks whether a process has read its input.
const INPUT_POLL: Duration = Duration::from_millis(100);

enum Discovery {
    Modern(ServerInfo),
    /// The legacy revision to use.
    Legacy(String),
    /// A legacy server if `initialize` succeeds; otherwise this is the error.
    MaybeLegacy(ErrorKind),
}

enum Negotiation {
    Modern(ServerInfo),
    Legacy(Handshake),
}

/// Why a negotiation did not succeed.
enum NegotiationError {
    Failed(ErrorKind),
    /// The server uses the HTTP+SSE transport of 2024-11-05.
    EventStream(Box<EventStream>),
}

impl<E: Into<ErrorKind>> From<E> for NegotiationError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Client {
    pub(crate) async fn open(
        link: Link,
        setup: ClientBuilder,
        ids: RequestIds,
    ) -> Result<Self, Error> {
        let mut inner = ClientInner::new(link, setup, ids.clone());
        let negotiated = match inner.setup.dialect {
            None => inner.negotiate().await,
            Some(dialect) => inner.connect_in(dialect).await,
        };
        let negotiation = match negotiated {
            Ok(negotiation) => negotiation,
            Err(NegotiationError::Failed(error)) => return Err(error.into()),
            Err(NegotiationError::EventStream(stream)) => {
                let link = PipeLink::over_http(*stream, inner.setup.pipe());
                inner = ClientInner::new(Link::Pipe(Box::new(link)), inner.setup, ids);
                Negotiation::Legacy(inner.initialize_configured().await?)
            }
        };
        match negotiation {
            Negotiation::Modern(server) => {
                inner.connection.link.set_modern();
                inner.connection.set_negotiated(server, None);
            }
            Negotiation::Legacy(handshake) => {
                let server = handshake.server.clone();
                let legacy = Legacy::start(handshake, &inner).await;
                inner.connection.set_negotiated(server, Some(legacy));
                inner.set_log_level().await;
            }
        }
        Ok(Self {
            inner: Arc::new(inner),
        })
    }
}

impl ClientInner {
    /// Connects in a configured dialect, without negotiation.
    async fn connect_in(&self, dialect: Dialect) -> Result<Negotiation, NegotiationError> {
        match dialect {
            Dialect::Modern => Ok(Negotiation::Modern(self.discover_modern().await?)),
            Dialect::Revision(_) | Dialect::FirstRevision => {
                match self.initialize_configured().await {
                    Ok(handshake) => Ok(Negotiation::Legacy(handshake)),
                    Err(error) if is_rejection(&error) => Err(self.event_stream_or(error).await),
                    Err(error) => Err(error.into()),
                }
            }
            translated => {
                let server = self.discover_translated(translated.name()).await?;
                Ok(Negotiation::Modern(server))
            }
        }
    }

    /// Sends `initialize`, in the configured revision if there is one.
    async fn initialize_configured(&self) -> Result<Handshake, ErrorKind> {
        let configured = self.setup.dialect.and_then(Dialect::legacy_name);
        let handshake = self
            .initialize(configured.unwrap_or(Revision::LATEST.as_str()))
            .await?;
        if configured.is_some_and(|revision| handshake.server.version != revision) {
            let supported = vec![handshake.server.version];
            return Err(ErrorKind::NoCommonVersion { supported });
        }
        Ok(handshake)
    }

    /// The event stream of a server that rejects POST requests to its URL, or else this error.
    async fn event_stream_or(&self, error: ErrorKind) -> NegotiationError {
        let Some(http) = self.connection.link.http() else {
            return error.into();
        };
        match EventStream::open(http).await {
            Ok(Some(stream)) => NegotiationError::EventStream(Box::new(stream)),
            Err(invalid @ ErrorKind::NotMcp { .. }) => invalid.into(),
            Ok(None) | Err(_) => error.into(),
        }
    }

    /// Sends `server/discover`, and fails unless the server speaks 2026-07-28.
    async fn discover_modern(&self) -> Result<ServerInfo, ErrorKind> {
        let discovered = self.exchange(&Request::discover().into()).await;
        let why = match self.interpret(discovered)? {
            Discovery::Modern(server) => return Ok(server),
            Discovery::Legacy(version) => format!("it supports {version}"),
            Discovery::MaybeLegacy(error @ ErrorKind::Exited { .. }) => return Err(error),
            Discovery::MaybeLegacy(error) => error.to_string(),
        };
        Err(ErrorKind::Dialect(DialectError::NotSpoken {
            address: self.connection.link.address().to_owned(),
            dialect: Dialect::Modern,
            why,
        }))
    }

    /// Sends `server/discover` through a translating link.
    async fn discover_translated(&self, dialect: &str) -> Result<ServerInfo, ErrorKind> {
        let not_mcp = |why| self.not_mcp(format!("it does not support {dialect}: {why}"));
        let raw = match self.request(Request::discover()).await {
            Err(ErrorKind::Rpc(failure)) => return Err(not_mcp(failure.to_string())),
            raw => raw?,
        };
        let server = ServerInfo::from_discover(&raw).map_err(|error| not_mcp(error.to_string()))?;
        Ok(ServerInfo {
            version: dialect.to_owned(),
            // Translated responses do not list revisions.
            versions: Vec::new(),
            ..server
        })
    }

    async fn negotiate(&self) -> Result<Negotiation, NegotiationError> {
        let request = Request::discover().into();
        let mut discover = pin!(self.exchange(&request));
        let discovered = if self.connection.link.pipe().is_none() {
            discover.await
        } else {
            match within(self.setup.limits.probe, discover.as_mut()).await {
                Some(discovered) => discovered,
                None => return self.initialize_meanwhile(discover).await,
            }
        };
        match self.interpret(discovered)? {
            Discovery::Modern(server) => Ok(Negotiation::Modern(server)),
            Discovery::Legacy(version) => Ok(Negotiation::Legacy(self.initialize(&version).await?)),
            Discovery::MaybeLegacy(error) => self.try_legacy(error).await,
        }
    }

    /// Sends `initialize` to a server that is silent: it may be a legacy server, or slow to start. The first request
    /// that it accepts decides.
    async fn initialize_meanwhile(
        &self,
        discover: impl Future<Output = LinkResult<LinkResponse>>,
    ) -> Result<Negotiation, NegotiationError> {
        let mut survived = false;
        let negotiated = tokio::select! {
            negotiated = self.first_negotiated(discover) => negotiated,
            never = self.watch_survival(&mut survived) => match never {},
        };
        match negotiated {
            // `server/discover` may have made the server exit.
            Err(error @ ErrorKind::Exited { .. }) if !survived && !self.has_read_no_input() => {
                self.try_legacy(error).await
            }
            negotiated => Ok(negotiated?),
        }
    }

    /// Sets `survived` once the process has read its input and still runs [`EXIT_DELAY_MAX`] later. A later exit has other
    /// reasons.
    async fn watch_survival(&self, survived: &mut bool) -> Infallible {
        let link = self.connection.link.pipe();
        while link.is_some_and(|link| !link.has_read_all_input()) {
            sleep(INPUT_POLL).await;
        }
        sleep(EXIT_DELAY_MAX).await;
        *survived = true;
        pending().await
    }

    async fn first_negotiated(
        &self,
        discover: impl Future<Output = LinkResult<LinkResponse>>,
    ) -> Result<Negotiation, ErrorKind> {
        let discover = pin!(discover);
        let initialize = pin!(self.initialize(Revision::LATEST.as_str()));
        let initialized = match select(discover, initialize).await {
            Either::Left((discovered, initialize)) => match self.interpret(discovered)? {
                Discovery::Modern(server) => return Ok(Negotiation::Modern(server)),
                Discovery::Legacy(_) | Discovery::MaybeLegacy(_) => initialize.await,
            },
            // A modern server may reject `initialize` before it responds to `server/discover`.
            Either::Right((Err(error), discover)) => {
                let discovered = within(self.setup.limits.probe, discover).await;
                match discovered.map(|discovered| self.interpret(discovered)) {
                    Some(Ok(Discovery::Modern(server))) => return Ok(Negotiation::Modern(server)),
                    _ => Err(error),
                }
            }
            Either::Right((initialized, _)) => initialized,
        };
        Ok(Negotiation::Legacy(initialized?))
    }

    /// Sends `initialize`. Returns the error of the discovery if the server rejects that too.
    async fn try_legacy(&self, error: ErrorKind) -> Result<Negotiation, NegotiationError> {
        self.reconnect().await?;
        let rejection: ErrorKind = match self.initialize(Revision::LATEST.as_str()).await {
            Ok(handshake) => return Ok(Negotiation::Legacy(handshake)),
            Err(rejection) => rejection.into(),
        };
        if !is_rejection(&rejection) {
            return Err(rejection.into());
        }
        if is_unknown_method(&error) {
            return Ok(Negotiation::Modern(ServerInfo {
                version: PROTOCOL_VERSION.to_owned(),
                ..ServerInfo::default()
            }));
        }
        let error = match error {
            ErrorKind::HttpStatus { status, body } => {
                let reason: String = body.chars().take(QUOTE_MAX).collect();
                self.not_mcp(format!("HTTP status {status}{}", after_colon(&reason)))
            }
            error => error,
        };
        Err(self.event_stream_or(error).await)
    }

    /// Whether the server is a process that has not read any input.
    fn has_read_no_input(&self) -> bool {
        let link = self.connection.link.pipe();
        link.is_some_and(PipeLink::has_read_no_input)
    }

    pub(crate) fn not_mcp(&self, why: String) -> ErrorKind {
        let address = self.connection.link.address().to_owned();
        ErrorKind::NotMcp { address, why }
    }

    fn interpret(&self, discovered: LinkResult<LinkResponse>) -> Result<Discovery, ErrorKind> {
        match discovered.map_err(ErrorKind::from) {
            Ok(response) => match response.outcome {
                Ok(raw) => match ServerInfo::from_discover(&raw) {
                    Ok(server) => {
                        check_complete(&raw)?;
                        choose_revision(server)
                    }
                    Err(error) => Ok(Discovery::MaybeLegacy(self.not_mcp(error.to_string()))),
                },
                Err(failure) => interpret_failure(failure),
            },
            Err(ErrorKind::InvalidResponse(error)) => {
                let error = self.not_mcp(error.to_string());
                match self.connection.link.pipe() {
                    None => Err(error),
                    // A legacy process may reject an unknown method with an invalid message.
                    Some(_) => Ok(Discovery::MaybeLegacy(error)),
                }
            }
            // Some legacy servers exit if the first message is not `initialize`. A process that read nothing exited for another reason.
            Err(error @ ErrorKind::Exited { .. }) if !self.has_read_no_input() => {
                Ok(Discovery::MaybeLegacy(error))
            }
            Err(error) if is_rejection(&error) => Ok(Discovery::MaybeLegacy(error)),
            Err(error) => Err(error),
        }
    }
}

fn choose_revision(server: ServerInfo) -> Result<Discovery, ErrorKind> {
    let mut versions = server.versions.iter();
    if versions.any(|version| version == PROTOCOL_VERSION) {
        return Ok(Discovery::Modern(server));
    }
    choose_legacy(server.versions)
}

fn choose_legacy(supported: Vec<String>) -> Result<Discovery, ErrorKind> {
    let newest = Revision::CLIENT_NAMES
        .into_iter()
        .find(|name| supported.iter().any(|version| version == name));
    match newest {
        Some(version) => Ok(Discovery::Legacy(version.to_owned())),
        None => Err(ErrorKind::NoCommonVersion { supported }),
    }
}

fn interpret_failure(failure: RpcFailure) -> Result<Discovery, ErrorKind> {
    if failure.is(ErrorCode::UnsupportedVersion) {
        let supported = failure.data["supported"].as_array();
        let names = supported.into_iter().flatten().filter_map(Value::as_str);
        return choose_legacy(names.map(str::to_owned).collect());
    }
    if failure.is(ErrorCode::HeaderMismatch) || failure.is(ErrorCode::MissingCapability) {
        return Err(ErrorKind::Rpc(failure));
    }
    Ok(Discovery::MaybeLegacy(ErrorKind::Rpc(failure)))
}

/// Whether the server rejected this request, and might accept another one.
fn is_rejection(error: &ErrorKind) -> bool {
    match error {
        ErrorKind::Rpc(_) => true,
        // Authorization and rate limits do not depend on the request.
        ErrorKind::HttpStatus { status, .. } => {
            (400..500).contains(status) && !matches!(status, 401 | 403 | 407 | 408 | 429)
        }
        _ => false,
    }
}

fn is_unknown_method(error: &ErrorKind) -> bool {
    matches!(error, ErrorKind::Rpc(failure) if failure.is(ErrorCode::MethodNotFound))
}
