//! Finding out what a server speaks.
//!
//! It is asked in the present revision, and the answer decides:
//!
//! | answer | the server |
//! | --- | --- |
//! | what it can do | speaks the present revision, or says which older one |
//! | an error that only newer servers know | speaks none that is spoken here, or has something to object |
//! | any other, none for a while, or its end | is an older one if it can be greeted |
//! | "no such method", twice | speaks the present revision, but does not say so |

use crate::builder::ClientBuilder;
use crate::client::{Client, Ids, Inner};
use crate::dialect::Dialect;
use crate::error::{Error, ErrorKind};
use crate::older::{Greeting, Older};
use crate::transport::{Link, LinkError, Response};
use futures_util::future::{Either, select};
use refrain_wire::client::{Request, RpcFailure, ServerInfo, check_complete};
use refrain_wire::legacy::Revision;
use refrain_wire::{ErrorCode, PROTOCOL_VERSION};
use std::pin::pin;
use std::sync::Arc;
use tokio::time::timeout;

/// What the first answer of a server says of it.
enum Verdict {
    /// It speaks the present revision.
    Present(ServerInfo),
    /// It speaks this older one.
    Older(String),
    /// It may be an older one. If it is not, this is what went wrong.
    Perhaps(ErrorKind),
}

/// What a server was found to speak.
enum Found {
    Present(ServerInfo),
    Older(Greeting),
}

impl Client {
    /// Finds out what the server speaks.
    pub(crate) async fn open(link: Link, setup: ClientBuilder, ids: Ids) -> Result<Self, Error> {
        let mut inner = Inner::new(link, setup, ids);
        let found = match inner.setup.dialect {
            None => inner.find_out().await?,
            Some(dialect) => inner.greet_in(dialect).await?,
        };
        match found {
            Found::Present(server) => {
                inner.link.is_modern();
                inner.server = server;
            }
            Found::Older(greeting) => {
                inner.server = greeting.server.clone();
                let older = Older::new(greeting, &inner);
                older.is_heard().await;
                inner.older = Some(older);
                inner.choose_log_level().await;
            }
        }
        Ok(Self {
            inner: Arc::new(inner),
        })
    }
}

impl Inner {
    /// Greets a server in a dialect that it has to speak.
    async fn greet_in(&self, dialect: Dialect) -> Result<Found, ErrorKind> {
        let Some(revision) = dialect.revision() else {
            return self.discover_in(dialect).await.map(Found::Present);
        };
        let greeting = self.greet(revision.as_str()).await;
        let greeting = greeting.map_err(LinkError::into_kind)?;
        if greeting.server.version != revision.as_str() {
            return Err(ErrorKind::NoCommonVersion {
                supported: vec![greeting.server.version.clone()],
            });
        }
        Ok(Found::Older(greeting))
    }

    /// Greets a server in a dialect that the link translates.
    async fn discover_in(&self, dialect: Dialect) -> Result<ServerInfo, ErrorKind> {
        let not_mcp = |why: String| ErrorKind::NotMcp {
            address: self.link.address().to_owned(),
            why: format!("it does not speak {dialect}: {why}"),
        };
        let raw = match self.request(Request::discover()).await {
            Err(ErrorKind::Refused(refusal)) => return Err(not_mcp(refusal.to_string())),
            raw => raw?,
        };
        let server = ServerInfo::discovered(&raw).map_err(|error| not_mcp(error.to_string()))?;
        Ok(ServerInfo {
            version: dialect.name().to_owned(),
            // Its greeting says nothing of revisions.
            versions: Vec::new(),
            ..server
        })
    }

    async fn find_out(&self) -> Result<Found, ErrorKind> {
        let request = Request::discover().into();
        let mut asking = pin!(self.exchange(&request));
        let asked = if self.link.pipe().is_none() {
            asking.await
        } else {
            match timeout(self.setup.limits.probe, asking.as_mut()).await {
                Ok(asked) => asked,
                Err(_) => return self.greet_while(asking).await,
            }
        };
        match self.judge(asked)? {
            Verdict::Present(server) => Ok(Found::Present(server)),
            Verdict::Older(version) => self.greet_older(&version).await,
            Verdict::Perhaps(error) => self.try_older(error).await,
        }
    }

    /// The server has not answered for a while. It may be an older one, or one that takes its time to start: it is
    /// greeted too, and what it answers first decides.
    async fn greet_while(
        &self,
        asking: impl Future<Output = Result<Response, LinkError>>,
    ) -> Result<Found, ErrorKind> {
        let asking = pin!(asking);
        let greeting = pin!(self.greet(Revision::LATEST.as_str()));
        let greeted = match select(asking, greeting).await {
            Either::Left((asked, greeting)) => match self.judge(asked)? {
                Verdict::Present(server) => return Ok(Found::Present(server)),
                Verdict::Older(_) | Verdict::Perhaps(_) => greeting.await,
            },
            Either::Right((Err(error), asking)) => {
                let asked = timeout(self.setup.limits.probe, asking).await;
                match asked.ok().map(|asked| self.judge(asked)) {
                    Some(Ok(Verdict::Present(server))) => return Ok(Found::Present(server)),
                    _ => Err(error),
                }
            }
            Either::Right((greeted, _)) => greeted,
        };
        match greeted.map_err(LinkError::into_kind) {
            Ok(greeting) => Ok(Found::Older(greeting)),
            // It has heard the question first.
            Err(error @ ErrorKind::Exited { .. }) => self.try_older(error).await,
            Err(error) => Err(error),
        }
    }

    async fn greet_older(&self, version: &str) -> Result<Found, ErrorKind> {
        let greeting = self.greet(version).await;
        greeting.map(Found::Older).map_err(LinkError::into_kind)
    }

    /// Greets a server that may be an older one, but has answered with an error so far.
    async fn try_older(&self, error: ErrorKind) -> Result<Found, ErrorKind> {
        self.revive().await.map_err(LinkError::into_kind)?;
        let refused = match self.greet(Revision::LATEST.as_str()).await {
            Ok(greeting) => return Ok(Found::Older(greeting)),
            Err(refused) => refused.into_kind(),
        };
        if !is_refusal(&refused) {
            return Err(refused);
        }
        if is_unknown_method(&error) {
            return Ok(Found::Present(ServerInfo {
                version: PROTOCOL_VERSION.to_owned(),
                ..ServerInfo::default()
            }));
        }
        if let Some(link) = self.link.http()
            && link.is_of_the_first_transport().await
        {
            return Err(ErrorKind::FirstTransport);
        }
        Err(match error {
            ErrorKind::Status { status, .. } => ErrorKind::NotMcp {
                address: self.link.address().to_owned(),
                why: format!("it answered with HTTP status {status}"),
            },
            error => error,
        })
    }

    fn judge(&self, asked: Result<Response, LinkError>) -> Result<Verdict, ErrorKind> {
        match asked.map_err(LinkError::into_kind) {
            Ok(response) => match response.outcome {
                Ok(raw) => match ServerInfo::discovered(&raw) {
                    Ok(server) => {
                        check_complete(&raw)?;
                        choose(server)
                    }
                    Err(error) => Ok(Verdict::Perhaps(ErrorKind::NotMcp {
                        address: self.link.address().to_owned(),
                        why: error.to_string(),
                    })),
                },
                Err(refusal) => judge_refusal(refusal),
            },
            Err(ErrorKind::BadAnswer(error)) => {
                let error = ErrorKind::NotMcp {
                    address: self.link.address().to_owned(),
                    why: error.to_string(),
                };
                match self.link.pipe() {
                    None => Err(error),
                    // It may only not know how to refuse what it does not know.
                    Some(_) => Ok(Verdict::Perhaps(error)),
                }
            }
            // Some end when they hear anything else before a greeting.
            Err(error @ ErrorKind::Exited { .. }) => Ok(Verdict::Perhaps(error)),
            Err(error) if is_refusal(&error) => Ok(Verdict::Perhaps(error)),
            Err(error) => Err(error),
        }
    }
}

/// Chooses among the revisions that a server says it speaks.
fn choose(server: ServerInfo) -> Result<Verdict, ErrorKind> {
    if server
        .versions
        .iter()
        .any(|known| known == PROTOCOL_VERSION)
    {
        return Ok(Verdict::Present(server));
    }
    choose_older(server.versions)
}

fn choose_older(supported: Vec<String>) -> Result<Verdict, ErrorKind> {
    let newest = Revision::CLIENT
        .into_iter()
        .find(|known| supported.iter().any(|version| version == known));
    match newest {
        Some(version) => Ok(Verdict::Older(version.to_owned())),
        None => Err(ErrorKind::NoCommonVersion { supported }),
    }
}

fn judge_refusal(refusal: RpcFailure) -> Result<Verdict, ErrorKind> {
    if refusal.is(ErrorCode::UnsupportedVersion) {
        let supported = refusal.data["supported"].as_array();
        let names = supported
            .into_iter()
            .flatten()
            .filter_map(|name| name.as_str());
        return choose_older(names.map(str::to_owned).collect());
    }
    if refusal.is(ErrorCode::HeaderMismatch) || refusal.is(ErrorCode::MissingCapability) {
        return Err(ErrorKind::Refused(refusal));
    }
    Ok(Verdict::Perhaps(ErrorKind::Refused(refusal)))
}

/// Whether the server has answered, if only to say no.
fn is_refusal(error: &ErrorKind) -> bool {
    match error {
        ErrorKind::Refused(_) => true,
        // Who is not let in, or comes too often, is not refused for what he said.
        ErrorKind::Status { status, .. } => {
            (400..500).contains(status) && !matches!(status, 401 | 403 | 407 | 408 | 429)
        }
        _ => false,
    }
}

fn is_unknown_method(error: &ErrorKind) -> bool {
    matches!(error, ErrorKind::Refused(refusal) if refusal.is(ErrorCode::MethodNotFound))
}
