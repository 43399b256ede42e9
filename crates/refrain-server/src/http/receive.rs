//! Receiving a request: authentication by its headers, then the body.
//!
//! Invariants: a request that is rejected because of its headers needs no body buffer. An uncompressed body
//! that ends with its first chunk is neither copied nor counted. All other bodies have a permit for their bytes while they
//! are in memory.

use super::idle::{ActiveRequest, Activity};
use super::{BoxedResponse, ContentEncoding, Headers, HttpService};
use crate::auth::Caller;
use crate::limits::{InstanceLimits, LARGE_WORK, LimitReached, Permit, QueuePermit};
use crate::metrics::Refusal;
use crate::relay::RelayClaims;
use crate::timer::within;
use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, EXPECT};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use http_body::Body;
use http_body_util::BodyExt;
use refrain_wire::{RpcError, find_request_id};
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};

/// The permit of a body grows in steps of this many bytes.
const PERMIT_STEP: usize = 16 << 10;

/// A request body in memory.
#[derive(Default)]
pub(super) struct ReceivedBody {
    pub(super) bytes: Bytes,
    _permit: Option<Permit>,
    /// The permit to parse a large body.
    pub(super) parse_permit: Option<QueuePermit>,
}

enum BodyError<E> {
    TooLarge,
    Unreadable(E),
    #[cfg(feature = "gzip")]
    Malformed(std::io::Error),
    TimedOut,
    LimitReached(LimitReached),
}

impl<E> From<LimitReached> for BodyError<E> {
    fn from(reached: LimitReached) -> Self {
        Self::LimitReached(reached)
    }
}

impl HttpService {
    /// Authenticates the caller, then reads the body.
    pub(super) async fn receive<B>(
        &self,
        parts: &Parts,
        headers: &Headers<'_>,
        body: B,
        claims: Option<RelayClaims>,
        active: &ActiveRequest,
    ) -> Result<(ReceivedBody, Caller), BoxedResponse>
    where
        B: Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        let encoding = self.check_head(parts, headers, claims.is_some())?;
        let mut body = pin!(body);
        let caller = match &claims {
            Some(claims) => claims.caller(),
            None => self.authenticate(parts, body.as_mut(), active).await?,
        };
        if parts.method != Method::POST {
            return match claims {
                Some(claims) if !claims.is_for(&parts.method, &parts.headers, b"") => {
                    Err(self.reject_relay())
                }
                _ => Ok((ReceivedBody::default(), caller)),
            };
        }
        let limits = &self.server().0.services.limits;
        // On HTTP/1.1 the periodic idle check closes a connection that sends no body, so the first chunk needs no timer. On
        // HTTP/2 other streams keep the connection active.
        let idle_check_covers_body =
            active.activity().is_some() && parts.version != Version::HTTP_2;
        let received = receive_body(body.as_mut(), limits, &caller, idle_check_covers_body);
        let received = active.wait_for_client(received).await;
        let is_large = encoding != ContentEncoding::Identity
            || matches!(&received, Ok(received) if received.bytes.len() > LARGE_WORK);
        let parse_permit = match is_large {
            true => Some(limits.large_work.acquire(caller.limit_key()).await),
            false => None,
        };
        let received = match (encoding, received) {
            (ContentEncoding::Identity, received) => received,
            #[cfg(feature = "gzip")]
            (ContentEncoding::Gzip, Ok(compressed)) => {
                Box::pin(decompress(&compressed, limits, &caller)).await
            }
            #[cfg(feature = "gzip")]
            (ContentEncoding::Gzip, Err(error)) => Err(error),
        };
        let received = match received {
            Ok(received) => ReceivedBody {
                parse_permit,
                ..received
            },
            Err(error) => return Err(self.reject_body(parts, body, error, active).await),
        };
        let bytes = &received.bytes;
        if let Some(claims) = claims
            && !claims.is_for(&parts.method, &parts.headers, bytes)
        {
            return Err(self.reject_relay());
        }
        self.server().check_values(bytes).map_err(|error| {
            let (status, id) = (StatusCode::PAYLOAD_TOO_LARGE, find_request_id(bytes));
            Box::new(self.error(status, id, &error))
        })?;
        Ok((received, caller))
    }

    async fn authenticate<B: Body<Data = Bytes>>(
        &self,
        parts: &Parts,
        body: Pin<&mut B>,
        active: &ActiveRequest,
    ) -> Result<Caller, BoxedResponse> {
        let auth = &self.server().0.auth;
        match auth.authenticate(&parts.method, &parts.headers).await {
            Ok(caller) => Ok(Caller {
                address: self
                    .client_address(parts, active.activity())
                    .or(caller.address),
                ..caller
            }),
            Err(rejection) => {
                let limits = &self.server().0.services.limits;
                let limit = limits.discard.min(limits.body);
                let first = self.discard(parts, body, limit, active).await;
                let id = find_request_id(&first);
                Err(Box::new(self.reject_unauthenticated(&rejection, id)))
            }
        }
    }

    /// The client's address: from the proxy's header if there is one, otherwise from the connection.
    fn client_address(&self, parts: &Parts, activity: Option<&Activity>) -> Option<IpAddr> {
        let header = self.server().0.client_address_header.as_ref();
        let forwarded = header.and_then(|name| forwarded_address(&parts.headers, name));
        forwarded.or_else(|| match activity {
            Some(activity) => activity.address,
            None => parts.extensions.get().map(SocketAddr::ip),
        })
    }

    /// The response to a request whose body could not be received.
    async fn reject_body<B>(
        &self,
        parts: &Parts,
        body: Pin<&mut B>,
        error: BodyError<B::Error>,
        active: &ActiveRequest,
    ) -> BoxedResponse
    where
        B: Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        let limits = &self.server().0.services.limits;
        let unreadable = |reason: String| {
            let (status, error) = (StatusCode::BAD_REQUEST, RpcError::parse(reason));
            Box::new(self.reject_with(Refusal::Unreadable, status, None, &error))
        };
        match error {
            BodyError::Unreadable(error) => {
                unreadable(format!("failed to read the request body: {error}"))
            }
            #[cfg(feature = "gzip")]
            BodyError::Malformed(error) => {
                unreadable(format!("invalid gzip in the request body: {error}"))
            }
            BodyError::TimedOut => {
                let seconds = limits.body_time.as_secs_f64();
                let reason =
                    format!("request body took longer than {seconds} seconds (`body_seconds`)");
                let status = StatusCode::REQUEST_TIMEOUT;
                let mut response = self.reject(Refusal::Timeout, status, reason);
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
                response
            }
            BodyError::TooLarge => {
                self.discard(parts, body, limits.discard, active).await;
                let limit = limits.body;
                let reason =
                    format!("request body exceeds the limit of {limit} bytes (`body_bytes`)");
                self.reject(Refusal::TooLarge, StatusCode::PAYLOAD_TOO_LARGE, reason)
            }
            BodyError::LimitReached(reached) => {
                self.discard(parts, body, limits.discard, active).await;
                let metrics = &self.server().0.services.metrics;
                metrics.request_refused(Refusal::Busy);
                Box::new(self.busy(None, &reached.into()))
            }
        }
    }

    /// Discards the rest of a body, because most clients read the response only after sending all of it. A connection
    /// that sends more than `limit` bytes, or sends them slowly, is closed. Returns the first chunk, which contains all of a
    /// small body.
    async fn discard<B: Body<Data = Bytes>>(
        &self,
        parts: &Parts,
        mut body: Pin<&mut B>,
        limit: usize,
        active: &ActiveRequest,
    ) -> Bytes {
        let mut first = Bytes::new();
        let mut remaining = limit as u64;
        // A client that sent `Expect` reads the response without sending the body.
        if parts.headers.contains_key(EXPECT) || body.size_hint().lower() > remaining {
            return first;
        }
        let read_rest = async {
            while let Some(Ok(frame)) = body.frame().await {
                let data = frame.into_data().unwrap_or_default();
                let Some(rest) = remaining.checked_sub(data.len() as u64) else {
                    return;
                };
                remaining = rest;
                if first.is_empty() {
                    first = data;
                }
            }
        };
        let time = self.server().0.services.limits.body_time;
        active.wait_for_client(within(time, read_rest)).await;
        first
    }
}

/// Reads a body.
async fn receive_body<B: Body<Data = Bytes>>(
    mut body: Pin<&mut B>,
    limits: &InstanceLimits,
    caller: &Caller,
    idle_check_covers_body: bool,
) -> Result<ReceivedBody, BodyError<B::Error>> {
    if body.size_hint().lower() > limits.body as u64 {
        return Err(BodyError::TooLarge);
    }
    let first = match idle_check_covers_body {
        true => next_data(body.as_mut()).await,
        false => within(limits.body_time, next_data(body.as_mut()))
            .await
            .unwrap_or(Err(BodyError::TimedOut)),
    };
    let Some(first) = first? else {
        return Ok(ReceivedBody::default());
    };
    if first.len() > limits.body {
        return Err(BodyError::TooLarge);
    }
    if body.is_end_stream() {
        return Ok(ReceivedBody {
            bytes: first,
            ..ReceivedBody::default()
        });
    }
    let received = receive_rest(first, body, limits, caller);
    let received = within(limits.body_time, received).await;
    received.unwrap_or(Err(BodyError::TimedOut))
}

/// Reads the rest of a body that arrives in several chunks.
async fn receive_rest<B: Body<Data = Bytes>>(
    first: Bytes,
    mut body: Pin<&mut B>,
    limits: &InstanceLimits,
    caller: &Caller,
) -> Result<ReceivedBody, BodyError<B::Error>> {
    let mut permit = BodyPermit::acquire(first.len(), limits, caller)?;
    let (mut bytes, mut joined) = (first, BytesMut::new());
    while let Some(data) = next_data(body.as_mut()).await? {
        permit.grow(bytes.len() + joined.len() + data.len())?;
        joined.extend_from_slice(&std::mem::take(&mut bytes));
        joined.extend_from_slice(&data);
    }
    if !joined.is_empty() {
        bytes = joined.freeze();
    }
    Ok(ReceivedBody {
        bytes,
        _permit: Some(permit.permit),
        parse_permit: None,
    })
}

/// Decompresses a body, up to the limit for uncompressed bodies.
#[cfg(feature = "gzip")]
async fn decompress<E>(
    compressed: &ReceivedBody,
    limits: &InstanceLimits,
    caller: &Caller,
) -> Result<ReceivedBody, BodyError<E>> {
    use std::io::Read;

    let mut decoder = flate2::bufread::GzDecoder::new(&compressed.bytes[..]);
    let mut permit = BodyPermit::acquire(PERMIT_STEP, limits, caller)?;
    let mut bytes = Vec::new();
    let mut chunk = [0; PERMIT_STEP];
    loop {
        let read = decoder.read(&mut chunk).map_err(BodyError::Malformed)?;
        if read == 0 {
            break;
        }
        permit.grow(bytes.len() + read)?;
        bytes.extend_from_slice(&chunk[..read]);
        // A large body takes several milliseconds, which would delay other requests.
        tokio::task::yield_now().await;
    }
    if !decoder.into_inner().is_empty() {
        let trailing = std::io::Error::other("data after its end");
        return Err(BodyError::Malformed(trailing));
    }
    Ok(ReceivedBody {
        bytes: bytes.into(),
        _permit: Some(permit.permit),
        parse_permit: None,
    })
}

/// The permit of a body that arrives in several chunks or is compressed; it grows with the bytes received.
struct BodyPermit<'a> {
    limits: &'a InstanceLimits,
    permit: Permit,
    reserved: usize,
}

impl<'a> BodyPermit<'a> {
    fn acquire(
        length: usize,
        limits: &'a InstanceLimits,
        caller: &Caller,
    ) -> Result<Self, LimitReached> {
        let reserved = Self::round_up(length, limits);
        let permit = limits.bodies.acquire_bytes(caller.limit_key(), reserved)?;
        Ok(Self {
            limits,
            permit,
            reserved,
        })
    }

    /// Grows the permit to a body of this length.
    fn grow<E>(&mut self, length: usize) -> Result<(), BodyError<E>> {
        if length > self.limits.body {
            return Err(BodyError::TooLarge);
        }
        if length > self.reserved {
            let reserved = Self::round_up(length, self.limits);
            self.permit.grow_bytes(reserved - self.reserved)?;
            self.reserved = reserved;
        }
        Ok(())
    }

    fn round_up(length: usize, limits: &InstanceLimits) -> usize {
        length.next_multiple_of(PERMIT_STEP).min(limits.body)
    }
}

async fn next_data<B: Body<Data = Bytes>>(
    mut body: Pin<&mut B>,
) -> Result<Option<Bytes>, BodyError<B::Error>> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(BodyError::Unreadable)?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// The last address in this header, which the nearest proxy added.
fn forwarded_address(headers: &HeaderMap, name: &HeaderName) -> Option<IpAddr> {
    let last = headers.get_all(name).iter().next_back()?.to_str().ok()?;
    let last = last.rsplit(',').next()?.trim();
    let with_port = || last.parse().map(|address: SocketAddr| address.ip());
    let bracketed = || last.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    last.parse()
        .or_else(|_| with_port())
        .ok()
        .or_else(bracketed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_address_is_the_last_one_of_the_header() {
        let name = HeaderName::from_static("x-forwarded-for");
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(&name, value.parse().unwrap());
            }
            forwarded_address(&headers, &name).map(|address| address.to_string())
        };
        for (values, expected) in [
            (&["192.0.2.1"][..], Some("192.0.2.1")),
            (&["192.0.2.1, 192.0.2.2"], Some("192.0.2.2")),
            (&["192.0.2.1", "192.0.2.2,192.0.2.3 "], Some("192.0.2.3")),
            (&["192.0.2.1:4711"], Some("192.0.2.1")),
            (&["2001:db8::1"], Some("2001:db8::1")),
            (&["[2001:db8::1]:4711"], Some("2001:db8::1")),
            (&["[2001:db8::1]"], Some("2001:db8::1")),
            (&["192.0.2.1, unknown"], None),
            (&[""], None),
            (&[], None),
        ] {
            assert_eq!(read(values).as_deref(), expected, "{values:?}");
        }
    }
}
