//! A request handed to the instance that holds its call.
//!
//! The whole request is sent to the peer, with a sealed header that says who is calling: all instances of a fleet share the
//! keys, so that the peer need not authenticate the caller again. The header is good for one peer, one body and a few
//! seconds. A request that carries one is never handed on once more.

use crate::auth::{Caller, Scopes};
use crate::limits::Permit;
use crate::remote::{Remote, Stream};
use crate::server::Server;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use refrain_core::Principal;
use refrain_wire::{Id, RpcError, write_error};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};

/// The header that says who is calling.
const RELAY: HeaderName = HeaderName::from_static("refrain-relay");
/// How long the header is good, in seconds.
const GOOD_FOR: u64 = 30;
/// The longest time that is reckoned with.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Time to connect to a peer.
const CONNECT: Duration = Duration::from_secs(5);
/// How much longer than a round may take, or a stream be silent, a peer may say nothing.
const SILENCE: Duration = Duration::from_secs(30);
/// The largest answer that is handed on in one piece.
const LARGEST: usize = 64 * 1024 * 1024;
/// What of a request's headers the peer needs, beside those that repeat arguments. Who is calling is said by the sealed
/// header, and by nothing else: any other may hold a secret.
const SENT_ON: [HeaderName; 8] = [
    CONTENT_TYPE,
    ACCEPT,
    HeaderName::from_static("mcp-protocol-version"),
    HeaderName::from_static("mcp-method"),
    HeaderName::from_static("mcp-name"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("baggage"),
];

fn is_sent_on(name: &HeaderName) -> bool {
    SENT_ON.contains(name) || refrain_wire::ParamHeaders::is_name(name.as_str())
}

/// What the header says.
#[derive(Serialize, Deserialize)]
struct Said {
    /// The peer that it is for.
    to: String,
    /// When it was made, in seconds since 1970.
    at: u64,
    /// The digest of the body that it comes with.
    body: String,
    principal: Option<String>,
    /// `None` for all there are.
    scopes: Option<Vec<String>>,
    /// When what the caller was granted ends, in seconds since 1970.
    expires: Option<u64>,
}

/// A request that is to be handed on, and to whom.
pub(crate) struct Relay {
    pub(crate) _permit: Permit,
    pub(crate) holder: String,
    pub(crate) peer: Arc<Remote>,
    pub(crate) caller: Caller,
}

/// A request that was handed on by a peer.
pub(crate) struct Relayed {
    caller: Caller,
    body: String,
}

impl Relayed {
    /// The caller, if this is the body that the peer spoke of.
    pub(crate) fn caller_of(self, body: &[u8]) -> Option<Caller> {
        (self.body == digest_of(body)).then_some(self.caller)
    }
}

fn digest_of(body: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, body))
}

impl Server {
    /// Reads the header of a request that a peer has handed on. `None` if it is not one that a peer made for this instance just
    /// now; why is in the log.
    pub(crate) fn read_relay(&self, header: &HeaderValue) -> Option<Relayed> {
        let said = self.open_relay(header);
        said.map_err(|reason| tracing::warn!(reason, "a Refrain-Relay header was refused"))
            .ok()
    }

    fn open_relay(&self, header: &HeaderValue) -> Result<Relayed, &'static str> {
        let name = self.0.remotes.name.as_deref();
        let name = name.ok_or("this instance has no peers")?;
        let sealed = URL_SAFE_NO_PAD.decode(header.as_bytes());
        let sealed = sealed.map_err(|_| "it is not base64url")?;
        let sealer = &self.0.sealer;
        let opened = sealer.open_bytes(&self.relay_place(), sealed);
        let opened = opened.map_err(|_| "it does not open with the keys of this instance")?;
        let said: Said = serde_json::from_slice(&opened).map_err(|_| "it cannot be read")?;
        if said.to != name {
            return Err("it is for another instance");
        }
        let good_for = GOOD_FOR + sealer.options().skew.as_secs();
        if self.0.source.unix_seconds().abs_diff(said.at) > good_for {
            return Err("it is too old");
        }
        let expires = said.expires.map(Duration::from_secs);
        Ok(Relayed {
            caller: Caller {
                principal: said
                    .principal
                    .map_or_else(Principal::anonymous, Principal::new),
                scopes: said
                    .scopes
                    .map_or_else(Scopes::everything, Scopes::from_iter),
                expires: expires.and_then(|since| UNIX_EPOCH.checked_add(since)),
            },
            body: said.body,
        })
    }

    /// What the header is sealed for: servers that share keys and are not the same do not take each other's.
    fn relay_place(&self) -> Vec<u8> {
        [b"relay ", self.0.sealer.options().audience.as_bytes()].concat()
    }

    fn relay_header(&self, relay: &Relay, body: &[u8]) -> HeaderValue {
        let caller = &relay.caller;
        let since = |at: SystemTime| at.duration_since(UNIX_EPOCH).ok();
        let said = Said {
            to: relay.holder.clone(),
            at: self.0.source.unix_seconds(),
            body: digest_of(body),
            principal: caller.principal.id().map(ToOwned::to_owned),
            scopes: caller.scopes.names(),
            expires: caller
                .expires
                .and_then(since)
                .map(|expires| expires.as_secs()),
        };
        let said = serde_json::to_vec(&said).expect("names and numbers are JSON");
        let sealed = URL_SAFE_NO_PAD.encode(self.0.sealer.seal_bytes(&self.relay_place(), &said));
        HeaderValue::try_from(sealed).expect("base64 has only letters, digits and two signs")
    }

    /// Hands a request to the peer that holds its call, and gives the head of the response and what follows.
    pub(crate) async fn relay(
        &self,
        relay: &Relay,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(Response<()>, RelayBody), RelayError> {
        let limits = &self.0.limits;
        let mut patience = Patience {
            ends: Instant::now() + limits.live_time.min(LONGEST),
            silence: limits.round_time.max(limits.keep_alive).min(LONGEST) + SILENCE,
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
        };
        patience.renew();
        let mut request = Request::post(relay.peer.path()).body(Full::new(body.to_vec().into()))?;
        let to = request.headers_mut();
        for (name, value) in headers {
            if is_sent_on(name) {
                to.append(name.clone(), value.clone());
            }
        }
        to.insert(HOST, HeaderValue::from_str(relay.peer.authority())?);
        to.insert(RELAY, self.relay_header(relay, body));
        let connecting = async {
            let stream = relay.peer.connect().await.map_err(RelayError::Connect)?;
            let handshake = http1::handshake::<TokioIo<Box<dyn Stream>>, Full<Bytes>>;
            handshake(TokioIo::new(stream))
                .await
                .map_err(RelayError::Exchange)
        };
        let (mut sender, connection) = tokio::time::timeout(CONNECT, connecting)
            .await
            .unwrap_or_else(|_| Err(RelayError::Connect(ErrorKind::TimedOut.into())))?;
        // Ended with what follows, whatever comes of it.
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a peer ended");
            }
        });
        let response = tokio::select! {
            biased;
            response = sender.send_request(request) => response.map_err(RelayError::Exchange)?,
            () = patience.sleep.as_mut() => return Err(RelayError::TooLate),
        };
        let (head, body) = response.into_parts();
        let body = RelayBody {
            body,
            patience,
            _connection: tasks,
        };
        Ok((Response::from_parts(head, ()), body))
    }
}

/// Why a request could not be handed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error("no connection: {0}")]
    Connect(std::io::Error),
    #[error("the exchange failed: {0}")]
    Exchange(hyper::Error),
    #[error("it did not answer in time")]
    TooLate,
    #[error("its answer is larger than {LARGEST} bytes")]
    TooLarge,
    #[error("it answered with HTTP {0}, and not as an instance does")]
    Odd(StatusCode),
    #[error("its URL cannot be spoken to: {0}")]
    Url(#[from] http::Error),
    #[error("its URL cannot be spoken to: {0}")]
    Host(#[from] http::header::InvalidHeaderValue),
}

/// How long a peer is waited for.
#[derive(Debug)]
struct Patience {
    ends: Instant,
    /// How long it may say nothing.
    silence: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl Patience {
    /// It said something.
    fn renew(&mut self) {
        let until = self.ends.min(Instant::now() + self.silence);
        self.sleep.as_mut().reset(until);
    }
}

/// What a peer sends, until it is time to stop.
#[derive(Debug)]
pub(crate) struct RelayBody {
    body: Incoming,
    patience: Patience,
    _connection: JoinSet<()>,
}

impl RelayBody {
    /// The next piece, or why there is none.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, RelayError>>> {
        if self.patience.sleep.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(RelayError::TooLate)));
        }
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                return Poll::Ready(None);
            };
            self.patience.renew();
            match frame.map(|frame| frame.into_data()) {
                Ok(Ok(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(Err(_trailers)) => {}
                Err(error) => return Poll::Ready(Some(Err(RelayError::Exchange(error)))),
            }
        }
    }

    /// All of it, if it comes whole and is not too large.
    pub(crate) async fn whole(mut self) -> Result<Bytes, RelayError> {
        let mut whole = Vec::new();
        while let Some(piece) = std::future::poll_fn(|cx| self.poll_next(cx)).await {
            let piece = piece?;
            if whole.len() + piece.len() > LARGEST {
                return Err(RelayError::TooLarge);
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.into())
    }
}

/// A stream of events that is handed on as it comes. Where it breaks off, its last event says so.
#[derive(Debug)]
pub(crate) struct RelayStream {
    body: RelayBody,
    holder: String,
    id: Box<RawValue>,
    over: bool,
}

impl RelayStream {
    pub(crate) fn new(body: RelayBody, holder: String, id: Id<'_>) -> Self {
        Self {
            body,
            holder,
            id: RawValue::from_string(id.as_json().to_owned())
                .expect("an id that was parsed from JSON is JSON"),
            over: false,
        }
    }

    /// The next piece of the stream.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.over {
            return Poll::Ready(None);
        }
        match ready!(self.body.poll_next(cx)) {
            None => Poll::Ready(None),
            Some(Ok(piece)) => Poll::Ready(Some(piece)),
            Some(Err(error)) => {
                self.over = true;
                let mut out = b"\n\nevent: message\ndata: ".to_vec();
                let error = unreachable(&self.holder, &error);
                write_error(&mut out, Some(self.id.get()), &error);
                out.extend_from_slice(b"\n\n");
                Poll::Ready(Some(out.into()))
            }
        }
    }
}

/// Is this the head of a stream of events?
pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}

/// What a client is told whose call is held by an instance that does not answer.
pub(crate) fn unreachable(holder: &str, error: &RelayError) -> RpcError {
    tracing::warn!(holder, %error, "a live call could not be reached");
    let known = match error {
        RelayError::Connect(_) | RelayError::Url(_) | RelayError::Host(_) => {
            "nothing was done by this request"
        }
        RelayError::Odd(status) if status.is_client_error() => "nothing was done by this request",
        _ => "whether it took this request in is not known",
    };
    let what = match error {
        RelayError::Odd(_) => "does not take it",
        _ => "does not answer: it may have stopped",
    };
    RpcError::internal(format!(
        "this call is held by another instance, which {what}. What the call did before it \
         asked is done; {known}. Send the request again in a moment, or call anew. Tools whose work is wrapped in steps do \
         not depend on one instance"
    ))
}

/// What a client is told whose call is held by an instance that is no peer.
pub(crate) fn elsewhere() -> RpcError {
    RpcError::internal(
        "this call is held by another instance, or by this one before it was restarted, and cannot be handed to it: no peer of \
         that name is configured, or requests of this kind are not handed on. Nothing was done by this request. Send it to the instance where the call began, or call anew. Whoever \
         runs the server: name the peers of each instance, or wrap the tool's work in steps and drop `live`",
    )
}

/// What a client is told whose call was held here.
pub(crate) fn gone() -> RpcError {
    RpcError::call_over(
        "this call is not held here any more: it may have been finished, it was given up after its time, or the instance was \
         restarted. Nothing was done by this request, but what the call did so far is done, and that may be all of it: look \
         before you call anew. Tools whose work is wrapped in steps do not depend on one instance",
    )
}
