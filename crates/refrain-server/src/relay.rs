//! The relay: forwards requests to the instance that holds their call or session, or that their call is pinned to.
//!
//! Every process has a random instance id. The tokens of live calls, the ids of legacy sessions and the ids of their asks
//! contain the [`Holder`]: the instance id and the advertised URL. Only URLs from sealed data and configured peers are
//! used. A relayed request is never relayed again.
//!
//! | module | contents |
//! | --- | --- |
//! | `holder` | an instance id and its advertised URL; the receiver of a relayed request |
//! | `peers` | the configured instances, ordered by caller |
//! | `auth` | the sealed header that authenticates a relayed request |
//! | `stream` | the holder's response, with timeouts |

mod auth;
mod holder;
mod peers;
mod stream;

pub(crate) use auth::{RelayAuthError, RelayClaims};
pub(crate) use holder::{Holder, RelayDestination};
pub(crate) use stream::{LastEvent, RelayBody, RelayStream, is_stream};

use crate::auth::Caller;
use crate::backoff::Backoff;
use crate::builder::BuildError;
use crate::dispatch::Dispatch;
use crate::http::{LAST_EVENT_ID, SESSION_ID};
use crate::limits::{LimitReached, Limiter, Permit, file_limit, relay_limits};
use crate::services::{Services, open_text, seal_text};
use crate::timer::within;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use peers::Peers;
use refrain_core::{OpenError, Principal};
use refrain_http::{HttpClient, HttpError};
use refrain_wire::ParamHeaders;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;
use tracing::Span;

/// The request header with the sealed [`RelayClaims`].
const RELAY: HeaderName = HeaderName::from_static("refrain-relay");
/// The response header that names the instance that handled a relayed request.
const INSTANCE: HeaderName = HeaderName::from_static("refrain-instance");
/// Maximum number of probes of a receiver that accepts connections and closes them.
const MAX_PROBES: usize = 6;
/// The wait after the first failed probe.
const FIRST_PROBE_WAIT: Duration = Duration::from_millis(10);
/// Time limit for connecting to the receiver.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The response timeout is the round time or the keep-alive interval, whichever is longer, but at
/// most [`MAX_TIMEOUT`], plus this margin.
const RESPONSE_MARGIN: Duration = Duration::from_secs(30);
/// The longest response timeout, without the margin.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// After a failed connection attempt that took longer than this, the instance counts as unreachable.
const SLOW_FAILURE: Duration = Duration::from_millis(200);
/// How long an unreachable instance is not tried again.
const UNREACHABLE_TIME: Duration = Duration::from_secs(5);
/// Maximum number of remembered unreachable instances.
const MAX_UNREACHABLE: usize = 1024;
/// The headers that are forwarded, besides those that start with `Mcp-Param-`. Other headers may contain secrets. Credentials
/// are not needed, because the sealed header names the caller.
const FORWARDED_HEADERS: [HeaderName; 8] = [
    CONTENT_TYPE,
    ACCEPT,
    HeaderName::from_static("mcp-protocol-version"),
    HeaderName::from_static("mcp-method"),
    HeaderName::from_static("mcp-name"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("baggage"),
];

/// Sends and authenticates relayed requests.
pub(crate) struct Relay {
    /// This instance.
    pub(crate) own: Holder,
    services: Services,
    client: OnceLock<HttpClient>,
    /// The maximum time without data from a receiver.
    response_timeout: Duration,
    /// Limits the requests that are relayed at the same time.
    limiter: Arc<Limiter>,
    /// Unreachable instances by name, and when to try them again.
    unreachable: Mutex<HashMap<String, Instant>>,
    peers: Peers,
}

/// A request that must be relayed.
pub(crate) struct PendingRelay {
    /// The permit for calls in flight, if the request is a call.
    pub(crate) permit: Option<Permit>,
    pub(crate) to: RelayDestination,
    pub(crate) purpose: RelayPurpose,
    pub(crate) caller: Caller,
    /// The span of the request, until its response is relayed.
    pub(crate) span: Span,
}

/// Why a request is relayed. Decides what happens if the receiver is gone.
pub(crate) enum RelayPurpose {
    /// The request belongs to a live call or a legacy session.
    Held,
    /// The call is pinned by a handle. If the receiver is gone, the state behind the handle is lost.
    Handle,
    /// The call is pinned by its caller. If the receiver is gone, these peers are tried, and then this instance.
    Caller(Vec<Arc<str>>),
}

impl PendingRelay {
    /// Dispatches a request of a legacy session to its holder.
    pub(crate) fn dispatch(holder: Holder, caller: Caller) -> Dispatch {
        Dispatch::Relay(Box::new(Self {
            permit: None,
            to: holder.into(),
            purpose: RelayPurpose::Held,
            caller,
            span: Span::none(),
        }))
    }
}

/// The parts of a request that the relay needs.
#[derive(Clone, Copy)]
pub(crate) struct RelayRequest<'a> {
    pub(crate) method: &'a Method,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a [u8],
    pub(crate) caller: &'a Caller,
    /// Whether the request belongs to a legacy session. If so, the headers of the session are forwarded, too.
    pub(crate) legacy: bool,
}

/// Why relaying a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// This process or machine has no files, ports or memory left for a connection.
    #[error("this instance could not open a connection: {0}")]
    Exhausted(HttpError),
    #[error("could not connect: {0}")]
    Connect(HttpError),
    #[error("unreachable a moment ago")]
    RecentlyUnreachable,
    #[error("another server responded at the receiver's URL (HTTP {0})")]
    OtherInstance(StatusCode),
    #[error("request failed: {0}")]
    Exchange(HttpError),
    #[error("response interrupted: {0}")]
    Body(HttpError),
    #[error("response timed out")]
    Timeout,
    #[error("response exceeds {} bytes", stream::MAX_BYTES)]
    TooLarge,
    #[error("unexpected HTTP {0} without the receiver's Refrain-Instance header")]
    Unexpected(StatusCode),
    #[error("invalid URL: {0}")]
    Url(#[from] http::Error),
}

impl RelayError {
    fn from_http(error: HttpError) -> Self {
        match error {
            HttpError::Connect(_) if error.is_exhaustion() => Self::Exhausted(error),
            HttpError::Connect(_) => Self::Connect(error),
            _ => Self::Exchange(error),
        }
    }

    /// Whether this instance has no resources for the request. If so, it was not sent.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Limit(_) | Self::Exhausted(_))
    }

    /// Whether the receiver is gone. If so, it did not process the request.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(
            self,
            Self::Connect(_) | Self::RecentlyUnreachable | Self::OtherInstance(_) | Self::Url(_)
        )
    }
}

impl Relay {
    pub(crate) fn new(
        advertise: Option<String>,
        peers: Vec<String>,
        services: &Services,
    ) -> Result<Self, BuildError> {
        let own = Holder::new(u64::from_be_bytes(services.random()), advertise)?;
        let peers = Peers::new(peers, own.url.as_ref())?;
        let limits = &services.limits;
        let response_timeout =
            limits.round_time.max(limits.keep_alive).min(MAX_TIMEOUT) + RESPONSE_MARGIN;
        let (relays, relays_each) = relay_limits(limits, file_limit());
        // A legacy client needs several at once, so a caller with one must get more of the last ones.
        let limiter = Limiter::leaving_room("relayed requests", relays, relays_each);
        Ok(Self {
            own,
            limiter: limiter.reserve_for_principals(limits.has_authenticator),
            client: OnceLock::new(),
            response_timeout,
            unreachable: Mutex::default(),
            peers,
            services: services.clone(),
        })
    }

    /// Whether this instance has an advertised URL. Without one it relays no requests.
    pub(crate) fn is_advertised(&self) -> bool {
        self.own.url.is_some()
    }

    pub(crate) fn is_own(&self, holder: &Holder) -> bool {
        holder.instance == self.own.instance
    }

    /// Whether requests can be relayed to this holder: not to this process, nor to an earlier process at the same URL.
    pub(crate) fn can_reach(&self, holder: &Holder) -> bool {
        holder.url.is_some() && holder.url != self.own.url && !self.is_own(holder)
    }

    /// The peers that come before this instance in the order for the caller.
    pub(crate) fn peers_before_own(&self, caller: &Principal) -> Vec<Arc<str>> {
        self.peers.before(self.own.url.as_ref(), caller)
    }

    /// Relays a request. Returns the head and body of the response.
    pub(crate) async fn send(
        &self,
        to: &RelayDestination,
        request: &RelayRequest<'_>,
    ) -> Result<(Response<()>, RelayBody), RelayError> {
        if self.is_unreachable(to) {
            return Err(RelayError::RecentlyUnreachable);
        }
        let permit = self.limiter.acquire(request.caller.limit_key())?;
        let started = Instant::now();
        let result = self.try_send(self.client(), to, request).await;
        // A refused connection fails fast, so the instance may be tried again at once.
        if let Err(RelayError::Connect(_)) = &result
            && started.elapsed() >= SLOW_FAILURE
        {
            self.mark_unreachable(to);
        }
        result.map(|(head, body)| (head, body.with_permit(permit)))
    }

    async fn try_send(
        &self,
        client: &HttpClient,
        to: &RelayDestination,
        request: &RelayRequest<'_>,
    ) -> Result<(Response<()>, RelayBody), RelayError> {
        let response = client.send(self.build_request(to, request)?);
        let response = within(self.response_timeout, response).await;
        let response = response.ok_or(RelayError::Timeout)?;
        let (head, body) = response.map_err(RelayError::from_http)?.into_parts();
        if !to.is_sender(head.headers.get(INSTANCE)) {
            return Err(match head.status {
                // From a proxy that cannot reach the instance.
                StatusCode::BAD_GATEWAY => RelayError::OtherInstance(head.status),
                status if status.is_client_error() => RelayError::OtherInstance(status),
                status => RelayError::Unexpected(status),
            });
        }
        let head = Response::from_parts(head, ());
        Ok((head, RelayBody::new(body, self.response_timeout)))
    }

    fn client(&self) -> &HttpClient {
        self.client.get_or_init(|| self.new_client())
    }

    fn new_client(&self) -> HttpClient {
        // Holders close connections that were idle for `idle_time`.
        HttpClient::new(CONNECT_TIMEOUT, self.services.limits.idle_time / 2)
    }

    /// Probes whether the process of this receiver is gone.
    pub(crate) async fn is_gone(&self, receiver: &RelayDestination) -> bool {
        // A new client, because pooled connections may seem open although the process ended.
        let client = self.new_client();
        let mut backoff = Backoff::new(FIRST_PROBE_WAIT, FIRST_PROBE_WAIT * 8);
        for _ in 0..MAX_PROBES {
            match self.probe(&client, receiver).await {
                // An ending process may accept a connection and then close it.
                Err(RelayError::Exchange(_)) => backoff.wait().await,
                result => return result.is_err_and(|error| error.is_gone()),
            }
        }
        false
    }

    async fn probe(&self, client: &HttpClient, to: &RelayDestination) -> Result<(), RelayError> {
        let caller = Caller::from(Principal::anonymous());
        let probe = RelayRequest {
            method: &Method::POST,
            headers: &HeaderMap::new(),
            body: b"",
            caller: &caller,
            legacy: false,
        };
        self.try_send(client, to, &probe).await.map(drop)
    }

    fn build_request(
        &self,
        receiver: &RelayDestination,
        request: &RelayRequest<'_>,
    ) -> Result<Request<Full<Bytes>>, RelayError> {
        let RelayRequest {
            method,
            headers,
            body,
            ..
        } = request;
        let mut relayed = Request::builder()
            .method(Method::clone(method))
            .uri(receiver.url())
            .body(Full::new(body.to_vec().into()))?;
        let forwarded = relayed.headers_mut();
        for (name, value) in *headers {
            let is_of_session = name == SESSION_ID || name == LAST_EVENT_ID;
            if FORWARDED_HEADERS.contains(name)
                || ParamHeaders::is_name(name.as_str())
                || (is_of_session && request.legacy)
            {
                forwarded.append(name.clone(), value.clone());
            }
        }
        let claims = RelayClaims::new(receiver, request, forwarded, &*self.services.source);
        forwarded.insert(RELAY, self.seal(&claims));
        Ok(relayed)
    }

    fn seal(&self, claims: &RelayClaims) -> HeaderValue {
        let claims = serde_json::to_vec(claims).expect("the claims serialize to JSON");
        let sealed = seal_text(&self.services.sealer, &self.binding(), &claims);
        HeaderValue::try_from(sealed).expect("base64url is a valid header value")
    }

    /// The binding of the header. It includes the audience, because servers with different audiences may share keys.
    fn binding(&self) -> Vec<u8> {
        let audience = &self.services.sealer.options().audience;
        [b"relay ", audience.as_bytes()].concat()
    }

    /// Opens the sealed header of a relayed request, which must be for this instance.
    pub(crate) fn accept(&self, header: &HeaderValue) -> Result<RelayClaims, RelayAuthError> {
        let opened = open_text(&self.services.sealer, &self.binding(), header)?;
        let claims: RelayClaims =
            serde_json::from_slice(&opened).map_err(|_| OpenError::Content)?;
        let own_url = self.own.url.clone();
        let is_own_url = own_url.is_some_and(|url| claims.to == RelayDestination::Peer(url).name());
        if claims.to != self.own.id() && !is_own_url {
            return Err(RelayAuthError::OtherInstance);
        }
        let skew = self.services.sealer.options().skew;
        match claims.is_expired(self.services.source.unix_seconds(), skew) {
            true => Err(OpenError::Expired.into()),
            false => Ok(claims),
        }
    }

    /// Adds this instance's id to the response to a relayed request.
    pub(crate) fn add_instance_header<B>(&self, response: &mut Response<B>) {
        let id = HeaderValue::try_from(self.own.id()).expect("hex is a valid header value");
        response.headers_mut().insert(INSTANCE, id);
    }

    fn is_unreachable(&self, receiver: &RelayDestination) -> bool {
        let name = receiver.name();
        let unreachable = self.unreachable.lock();
        let until = unreachable.get(&name);
        until.is_some_and(|until| Instant::now() < *until)
    }

    fn mark_unreachable(&self, receiver: &RelayDestination) {
        let now = Instant::now();
        let mut unreachable = self.unreachable.lock();
        if unreachable.len() >= MAX_UNREACHABLE {
            unreachable.retain(|_, until| now < *until);
        }
        if unreachable.len() < MAX_UNREACHABLE {
            unreachable.insert(receiver.name(), now + UNREACHABLE_TIME);
        }
    }
}
