//! The relay: sends a request to the instance that holds its call or session, and passes the response on.
//!
//! Every process draws a random instance id when it starts. The tokens of live calls, the ids of legacy sessions and the
//! ids of their asks contain the [`Holder`]: that instance id and the URL that the process advertises. A URL is used only
//! if it came out of a seal. A relayed request is never relayed again.
//!
//! | module | contents |
//! | --- | --- |
//! | `holder` | an instance and its advertised URL |
//! | `auth` | the sealed header that authenticates a relayed request |
//! | `stream` | the response of the holder, with its timeouts |

mod auth;
mod holder;
mod stream;

pub(crate) use auth::{RelayClaims, RelayRefusal};
pub(crate) use holder::Holder;
pub(crate) use stream::{LastEvent, RelayBody, RelayStream, is_stream};

use crate::auth::Caller;
use crate::builder::BuildError;
use crate::dispatch::Begin;
use crate::http::{LAST_EVENT, SESSION};
use crate::http_client::HttpClient;
use crate::limits::Permit;
use crate::retry::Backoff;
use crate::services::Services;
use crate::timer::within;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use refrain_core::Principal;
use refrain_wire::ParamHeaders;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::time::Instant;

/// The header that authenticates a relayed request.
const RELAY: HeaderName = HeaderName::from_static("refrain-relay");
/// The header of a response to a relayed request: the instance that made it.
const INSTANCE: HeaderName = HeaderName::from_static("refrain-instance");
/// How often a holder is probed while its connections break off, and the wait after the first time.
const PROBES: usize = 6;
const PROBE_WAIT: Duration = Duration::from_millis(10);
/// Time to connect to an instance.
const CONNECT: Duration = Duration::from_secs(1);
/// How long a holder may be silent beyond the time of a round or the keep-alive interval of a stream.
const SILENCE: Duration = Duration::from_secs(30);
/// The longest timeout.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// A failed connection attempt that took longer is remembered.
const SLOW: Duration = Duration::from_millis(200);
/// How long the instance is not tried again then.
const LOST_FOR: Duration = Duration::from_secs(5);
/// Unreachable instances that are remembered.
const LOST: usize = 1024;
/// The headers that are passed to the holder, with those that repeat arguments. The caller is named by the sealed header and
/// by nothing else: other headers may contain secrets.
const PASSED_ON: [HeaderName; 8] = [
    CONTENT_TYPE,
    ACCEPT,
    HeaderName::from_static("mcp-protocol-version"),
    HeaderName::from_static("mcp-method"),
    HeaderName::from_static("mcp-name"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("baggage"),
];

/// Sends requests to their holders, and authenticates those that other instances relay here.
pub(crate) struct Relay {
    /// This instance.
    pub(crate) own: Holder,
    services: Services,
    /// Made for the first request.
    client: OnceLock<HttpClient>,
    silence: Duration,
    /// Instances that could not be reached, and until when they are not tried again.
    lost: Mutex<HashMap<u64, Instant>>,
}

/// A request that has to be relayed.
pub(crate) struct RelayTo {
    /// That of a live call.
    pub(crate) _permit: Option<Permit>,
    pub(crate) holder: Holder,
    pub(crate) caller: Caller,
}

impl RelayTo {
    /// A request of a legacy session.
    pub(crate) fn begin(holder: Holder, caller: Caller) -> Begin {
        Begin::Relay(Box::new(Self {
            _permit: None,
            holder,
            caller,
        }))
    }
}

/// A request as it is relayed.
pub(crate) struct RelayRequest<'a> {
    pub(crate) method: &'a Method,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a [u8],
    pub(crate) caller: &'a Caller,
    /// Does it belong to a legacy session? Then the headers that name the session and the event are passed on, too.
    pub(crate) legacy: bool,
}

/// Why a request could not be relayed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error("could not connect: {0}")]
    Connect(hyper_util::client::legacy::Error),
    #[error("it could not be reached a moment ago")]
    Lost,
    #[error("another instance answers at its URL (HTTP {0})")]
    OtherInstance(StatusCode),
    #[error("the exchange failed: {0}")]
    Exchange(hyper_util::client::legacy::Error),
    #[error("the response broke off: {0}")]
    Body(hyper::Error),
    #[error("it did not answer in time")]
    Timeout,
    #[error("its answer is larger than {} bytes", stream::LARGEST)]
    TooLarge,
    #[error("unexpected HTTP {0} without a Refrain-Instance header")]
    Unexpected(StatusCode),
    #[error("invalid URL: {0}")]
    Url(#[from] http::Error),
}

impl RelayError {
    fn of(error: hyper_util::client::legacy::Error) -> Self {
        match error.is_connect() {
            true => Self::Connect(error),
            false => Self::Exchange(error),
        }
    }

    /// Is the holder gone? The request was not processed then.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(
            self,
            Self::Connect(_) | Self::Lost | Self::OtherInstance(_) | Self::Url(_)
        )
    }
}

impl Relay {
    pub(crate) fn new(advertise: Option<String>, services: &Services) -> Result<Self, BuildError> {
        let own = Holder::new(u64::from_be_bytes(services.random()), advertise)?;
        let limits = &services.limits;
        let silence = limits.round_time.max(limits.keep_alive).min(LONGEST) + SILENCE;
        Ok(Self {
            own,
            client: OnceLock::new(),
            silence,
            lost: Mutex::default(),
            services: services.clone(),
        })
    }

    pub(crate) fn is_own(&self, holder: &Holder) -> bool {
        holder.instance == self.own.instance
    }

    /// Can a request be relayed to this holder? Not if it is this process, or was a process at the same URL.
    pub(crate) fn reaches(&self, holder: &Holder) -> bool {
        holder.url.is_some() && holder.url != self.own.url && !self.is_own(holder)
    }

    /// Relays a request to its holder. Gives the head of the response, and its body.
    pub(crate) async fn send(
        &self,
        holder: &Holder,
        request: RelayRequest<'_>,
    ) -> Result<(Response<()>, RelayBody), RelayError> {
        if self.is_lost(holder) {
            return Err(RelayError::Lost);
        }
        let began = Instant::now();
        let sent = self.try_send(self.client(), holder, request).await;
        // A refused connection costs nothing, and the instance may be back at once.
        if let Err(RelayError::Connect(_)) = &sent
            && began.elapsed() >= SLOW
        {
            self.lose(holder);
        }
        sent
    }

    async fn try_send(
        &self,
        client: &HttpClient,
        holder: &Holder,
        request: RelayRequest<'_>,
    ) -> Result<(Response<()>, RelayBody), RelayError> {
        let sent = client.send(self.write(holder, &request)?);
        let sent = within(self.silence, sent).await;
        let response = sent.ok_or(RelayError::Timeout)?.map_err(RelayError::of)?;
        let (head, body) = response.into_parts();
        let id = holder.id();
        let instance = head.headers.get(INSTANCE);
        if instance.is_none_or(|value| value.as_bytes() != id.as_bytes()) {
            return Err(match head.status {
                // A proxy that cannot reach the instance.
                StatusCode::BAD_GATEWAY => RelayError::OtherInstance(head.status),
                status if status.is_client_error() => RelayError::OtherInstance(status),
                status => RelayError::Unexpected(status),
            });
        }
        let head = Response::from_parts(head, ());
        Ok((head, RelayBody::new(body, self.silence)))
    }

    fn client(&self) -> &HttpClient {
        self.client.get_or_init(|| self.new_client())
    }

    fn new_client(&self) -> HttpClient {
        // Holders close a connection that was idle for `idle_time` or longer.
        HttpClient::new(CONNECT, self.services.limits.idle_time / 2)
    }

    /// Is the process that was this holder gone?
    pub(crate) async fn is_gone(&self, holder: &Holder) -> bool {
        // Not the pool: its connections may have ended with the process and still seem open.
        let client = self.new_client();
        let mut backoff = Backoff::new(PROBE_WAIT, PROBE_WAIT * 8);
        for _ in 0..PROBES {
            match self.probe(&client, holder).await {
                // A process that is ending may still accept a connection, and then closes it.
                Err(RelayError::Exchange(_)) => backoff.wait().await,
                probed => return probed.is_err_and(|error| error.is_gone()),
            }
        }
        false
    }

    async fn probe(&self, client: &HttpClient, holder: &Holder) -> Result<(), RelayError> {
        let caller = Caller::from(Principal::anonymous());
        let probe = RelayRequest {
            method: &Method::POST,
            headers: &HeaderMap::new(),
            body: b"",
            caller: &caller,
            legacy: false,
        };
        self.try_send(client, holder, probe).await.map(drop)
    }

    fn write(
        &self,
        holder: &Holder,
        request: &RelayRequest<'_>,
    ) -> Result<Request<Full<Bytes>>, RelayError> {
        let RelayRequest {
            method,
            headers,
            body,
            ..
        } = request;
        let url = holder.url.as_deref().unwrap_or_default();
        let mut relayed = Request::builder()
            .method(Method::clone(method))
            .uri(url)
            .body(Full::new(body.to_vec().into()))?;
        let to = relayed.headers_mut();
        for (name, value) in *headers {
            let of_session = name == SESSION || name == LAST_EVENT;
            if PASSED_ON.contains(name)
                || ParamHeaders::is_name(name.as_str())
                || (of_session && request.legacy)
            {
                to.append(name.clone(), value.clone());
            }
        }
        let claims = RelayClaims::new(holder, request, to, &*self.services.source);
        to.insert(RELAY, self.seal(&claims));
        Ok(relayed)
    }

    fn seal(&self, claims: &RelayClaims) -> HeaderValue {
        let claims = serde_json::to_vec(claims).expect("names and numbers are JSON");
        let sealed = self.services.sealer.seal_bytes(&self.binding(), &claims);
        let sealed = URL_SAFE_NO_PAD.encode(sealed);
        HeaderValue::try_from(sealed).expect("base64url is a valid header value")
    }

    /// The binding of the header. Servers of different audiences that share keys do not accept each other's.
    fn binding(&self) -> Vec<u8> {
        let audience = &self.services.sealer.options().audience;
        [b"relay ", audience.as_bytes()].concat()
    }

    /// Authenticates a request that was relayed here.
    pub(crate) fn accept(&self, header: &HeaderValue) -> Result<RelayClaims, RelayRefusal> {
        let sealed = URL_SAFE_NO_PAD.decode(header.as_bytes());
        let sealed = sealed.map_err(|_| RelayRefusal::Encoding)?;
        let opened = self.services.sealer.open_bytes(&self.binding(), sealed)?;
        let claims: RelayClaims =
            serde_json::from_slice(&opened).map_err(|_| RelayRefusal::Content)?;
        if claims.to != self.own.id() {
            return Err(RelayRefusal::OtherInstance);
        }
        let skew = self.services.sealer.options().skew;
        match claims.is_expired(self.services.source.unix_seconds(), skew) {
            true => Err(RelayRefusal::Expired),
            false => Ok(claims),
        }
    }

    /// Marks the response to a relayed request as this instance's.
    pub(crate) fn sign<B>(&self, response: &mut Response<B>) {
        let id = HeaderValue::try_from(self.own.id()).expect("hex is a valid header value");
        response.headers_mut().insert(INSTANCE, id);
    }

    fn is_lost(&self, holder: &Holder) -> bool {
        let lost = self.lost.lock();
        let until = lost.get(&holder.instance);
        until.is_some_and(|until| Instant::now() < *until)
    }

    fn lose(&self, holder: &Holder) {
        let now = Instant::now();
        let mut lost = self.lost.lock();
        if lost.len() >= LOST {
            lost.retain(|_, until| now < *until);
        }
        if lost.len() < LOST {
            lost.insert(holder.instance, now + LOST_FOR);
        }
    }
}
