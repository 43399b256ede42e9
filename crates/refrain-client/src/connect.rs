//! Version negotiation: which revision a server speaks.
//!
//! The client sends `server/discover` in 2026-07-28, and the response decides:
//!
//! | response | the server |
//! | --- | --- |
//! | its capabilities | speaks 2026-07-28, or names a legacy revision |
//! | an error that only modern servers have | speaks no common revision, or rejects the request |
//! | any other, none for a while, or its exit | is a legacy server if it can be initialized |
//! | "method not found", twice | speaks 2026-07-28, without discovery |

use crate::builder::ClientBuilder;
use crate::client::{Client, Ids, Inner};
use crate::dialect::Dialect;
use crate::error::{Error, ErrorKind};
use crate::legacy::{Greeting, Legacy};
use crate::retry::within;
use crate::transport::{Link, LinkResult, Response};
use futures_util::future::{Either, select};
use refrain_wire::client::{Request, RpcFailure, ServerInfo, check_complete};
use refrain_wire::legacy::Revision;
use refrain_wire::{ErrorCode, PROTOCOL_VERSION};
use serde_json::Value;
use std::pin::pin;
use std::sync::Arc;

enum Verdict {
    Modern(ServerInfo),
    /// It speaks this legacy revision.
    Legacy(String),
    /// It may be a legacy server. If it is not, this is the error.
    Perhaps(ErrorKind),
}

enum Found {
    Modern(ServerInfo),
    Legacy(Greeting),
}

impl Client {
    pub(crate) async fn open(link: Link, setup: ClientBuilder, ids: Ids) -> Result<Self, Error> {
        let mut inner = Inner::new(link, setup, ids);
        let found = match inner.setup.dialect {
            None => inner.negotiate().await?,
            Some(dialect) => inner.initialize_in(dialect).await?,
        };
        match found {
            Found::Modern(server) => {
                inner.link.set_modern();
                inner.server = server;
            }
            Found::Legacy(greeting) => {
                inner.server = greeting.server.clone();
                inner.legacy = Some(Legacy::start(greeting, &inner).await);
                inner.set_log_level().await;
            }
        }
        Ok(Self {
            inner: Arc::new(inner),
        })
    }
}

impl Inner {
    /// Initializes a server in a dialect that it has to speak.
    async fn initialize_in(&self, dialect: Dialect) -> Result<Found, ErrorKind> {
        let Dialect::Revision(revision) = dialect else {
            return self.discover_in(dialect).await.map(Found::Modern);
        };
        let greeting = self.initialize(revision.as_str()).await?;
        if greeting.server.version != revision.as_str() {
            let supported = vec![greeting.server.version];
            return Err(ErrorKind::NoCommonVersion { supported });
        }
        Ok(Found::Legacy(greeting))
    }

    /// Discovers a server in a dialect that the link translates.
    async fn discover_in(&self, dialect: Dialect) -> Result<ServerInfo, ErrorKind> {
        let not_mcp = |why| self.not_mcp(format!("it does not speak {dialect}: {why}"));
        let raw = match self.request(Request::discover()).await {
            Err(ErrorKind::Refused(refusal)) => return Err(not_mcp(refusal.to_string())),
            raw => raw?,
        };
        let server = ServerInfo::from_discover(&raw).map_err(|error| not_mcp(error.to_string()))?;
        Ok(ServerInfo {
            version: dialect.name().to_owned(),
            // A draft does not list revisions.
            versions: Vec::new(),
            ..server
        })
    }

    async fn negotiate(&self) -> Result<Found, ErrorKind> {
        let request = Request::discover().into();
        let mut asking = pin!(self.exchange(&request));
        let asked = if self.link.pipe().is_none() {
            asking.await
        } else {
            match within(self.setup.limits.probe, asking.as_mut()).await {
                Some(asked) => asked,
                None => return self.initialize_while(asking).await,
            }
        };
        match self.judge(asked)? {
            Verdict::Modern(server) => Ok(Found::Modern(server)),
            Verdict::Legacy(version) => Ok(Found::Legacy(self.initialize(&version).await?)),
            Verdict::Perhaps(error) => self.try_legacy(error).await,
        }
    }

    /// The server has not responded for a while: it may be a legacy server, or slow to start. It is initialized too, and
    /// the first response decides.
    async fn initialize_while(
        &self,
        asking: impl Future<Output = LinkResult<Response>>,
    ) -> Result<Found, ErrorKind> {
        let asking = pin!(asking);
        let greeting = pin!(self.initialize(Revision::LATEST.as_str()));
        let greeted = match select(asking, greeting).await {
            Either::Left((asked, greeting)) => match self.judge(asked)? {
                Verdict::Modern(server) => return Ok(Found::Modern(server)),
                Verdict::Legacy(_) | Verdict::Perhaps(_) => greeting.await,
            },
            Either::Right((Err(error), asking)) => {
                let asked = within(self.setup.limits.probe, asking).await;
                match asked.map(|asked| self.judge(asked)) {
                    Some(Ok(Verdict::Modern(server))) => return Ok(Found::Modern(server)),
                    _ => Err(error),
                }
            }
            Either::Right((greeted, _)) => greeted,
        };
        match greeted.map_err(ErrorKind::from) {
            Ok(greeting) => Ok(Found::Legacy(greeting)),
            // It may have ended because of the request for discovery.
            Err(error @ ErrorKind::Exited { .. }) => self.try_legacy(error).await,
            Err(error) => Err(error),
        }
    }

    /// Initializes a server that may be a legacy one. Otherwise returns the error of the discovery.
    async fn try_legacy(&self, error: ErrorKind) -> Result<Found, ErrorKind> {
        self.revive().await?;
        let refused: ErrorKind = match self.initialize(Revision::LATEST.as_str()).await {
            Ok(greeting) => return Ok(Found::Legacy(greeting)),
            Err(refused) => refused.into(),
        };
        if !is_refusal(&refused) {
            return Err(refused);
        }
        if is_unknown_method(&error) {
            return Ok(Found::Modern(ServerInfo {
                version: PROTOCOL_VERSION.to_owned(),
                ..ServerInfo::default()
            }));
        }
        if let Some(link) = self.link.http()
            && link.is_http_sse().await
        {
            return Err(ErrorKind::FirstTransport);
        }
        Err(match error {
            ErrorKind::Status { status, .. } => {
                self.not_mcp(format!("it answered with HTTP status {status}"))
            }
            error => error,
        })
    }

    pub(crate) fn not_mcp(&self, why: String) -> ErrorKind {
        let address = self.link.address().to_owned();
        ErrorKind::NotMcp { address, why }
    }

    fn judge(&self, asked: LinkResult<Response>) -> Result<Verdict, ErrorKind> {
        match asked.map_err(ErrorKind::from) {
            Ok(response) => match response.outcome {
                Ok(raw) => match ServerInfo::from_discover(&raw) {
                    Ok(server) => {
                        check_complete(&raw)?;
                        choose(server)
                    }
                    Err(error) => Ok(Verdict::Perhaps(self.not_mcp(error.to_string()))),
                },
                Err(refusal) => judge_refusal(refusal),
            },
            Err(ErrorKind::BadAnswer(error)) => {
                let error = self.not_mcp(error.to_string());
                match self.link.pipe() {
                    None => Err(error),
                    // A legacy process may refuse an unknown method in its own way.
                    Some(_) => Ok(Verdict::Perhaps(error)),
                }
            }
            // Some legacy servers exit if the first message is not `initialize`.
            Err(error @ ErrorKind::Exited { .. }) => Ok(Verdict::Perhaps(error)),
            Err(error) if is_refusal(&error) => Ok(Verdict::Perhaps(error)),
            Err(error) => Err(error),
        }
    }
}

fn choose(server: ServerInfo) -> Result<Verdict, ErrorKind> {
    let mut versions = server.versions.iter();
    if versions.any(|known| known == PROTOCOL_VERSION) {
        return Ok(Verdict::Modern(server));
    }
    choose_legacy(server.versions)
}

fn choose_legacy(supported: Vec<String>) -> Result<Verdict, ErrorKind> {
    let newest = Revision::CLIENT
        .into_iter()
        .find(|known| supported.iter().any(|version| version == known));
    match newest {
        Some(version) => Ok(Verdict::Legacy(version.to_owned())),
        None => Err(ErrorKind::NoCommonVersion { supported }),
    }
}

fn judge_refusal(refusal: RpcFailure) -> Result<Verdict, ErrorKind> {
    if refusal.is(ErrorCode::UnsupportedVersion) {
        let supported = refusal.data["supported"].as_array();
        let names = supported.into_iter().flatten().filter_map(Value::as_str);
        return choose_legacy(names.map(str::to_owned).collect());
    }
    if refusal.is(ErrorCode::HeaderMismatch) || refusal.is(ErrorCode::MissingCapability) {
        return Err(ErrorKind::Refused(refusal));
    }
    Ok(Verdict::Perhaps(ErrorKind::Refused(refusal)))
}

/// Whether the server has rejected the request as such.
fn is_refusal(error: &ErrorKind) -> bool {
    match error {
        ErrorKind::Refused(_) => true,
        // Authorization and rate limits do not depend on the request.
        ErrorKind::Status { status, .. } => {
            (400..500).contains(status) && !matches!(status, 401 | 403 | 407 | 408 | 429)
        }
        _ => false,
    }
}

fn is_unknown_method(error: &ErrorKind) -> bool {
    matches!(error, ErrorKind::Refused(refusal) if refusal.is(ErrorCode::MethodNotFound))
}
