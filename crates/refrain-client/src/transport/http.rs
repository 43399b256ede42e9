//! Streamable HTTP: each message is a POST, and the response is one message or an event stream.
//!
//! Legacy servers may also offer a session stream (GET), and resume interrupted streams.

mod exchange;
mod resume;

pub(crate) use exchange::HttpExchange;

use super::{LinkError, LinkResult, OutgoingMessage, WireMessage, WireObserver};
use crate::auth::{AuthError, Authorize, RejectedRequest};
use crate::builder::ClientBuilder;
use crate::error::ErrorKind;
use crate::limits::ClientLimits;
use crate::retry::before_timeout;
use bytes::Bytes;
use http::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST,
    LOCATION, RETRY_AFTER, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::InvalidUri;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use refrain_http::{HttpClient, HttpError, ResponseBody, has_root_certificates};
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls;
use url::Url;

const EVENT_STREAM: &str = "text/event-stream";
/// Headers that the application cannot set.
const RESERVED_HEADERS: [HeaderName; 9] = [
    ACCEPT,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    HOST,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REDIRECTS_MAX: usize = 4;

pub(crate) struct HttpLink {
    http: HttpClient,
    url: Url,
    authorize: Option<Arc<dyn Authorize>>,
    /// The headers that the application set. Their values are secrets.
    headers: HeaderMap,
    watch: WireObserver,
    limits: ClientLimits,
    /// The last authorization header sent, and how often it has changed.
    authorization: Mutex<(Option<HeaderValue>, u64)>,
}

impl HttpLink {
    pub(crate) fn new(url: Url, setup: &ClientBuilder) -> Result<Self, ErrorKind> {
        if url.scheme() == "https" && !has_root_certificates() {
            return Err(ErrorKind::InvalidAddress {
                address: url.to_string(),
                why: "this machine has no certificate authorities; install them, or set SSL_CERT_FILE".to_owned(),
            });
        }
        Ok(Self {
            http: HttpClient::for_internet(CONNECT_TIMEOUT),
            url,
            authorize: setup.authorize.clone(),
            headers: host_headers(&setup.headers)?,
            watch: Arc::clone(&setup.watch),
            limits: setup.limits.clone(),
            authorization: Mutex::default(),
        })
    }

    pub(super) fn authorization_changes(&self) -> u64 {
        self.authorization.lock().1
    }

    pub(super) fn address(&self) -> &str {
        self.url.as_str()
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    pub(super) async fn open(
        self: &Arc<Self>,
        message: &OutgoingMessage,
    ) -> LinkResult<HttpExchange> {
        let response = self.post(message, Some(message.silence)).await?;
        let exchange = HttpExchange::begin(self, message, response);
        before_timeout(message.silence, exchange).await
    }

    pub(crate) async fn send_message(&self, message: &OutgoingMessage) -> LinkResult<()> {
        check_accepted(&self.post(message, None).await?)
    }

    /// Opens the session stream of a legacy server, if it offers one.
    pub(crate) async fn listen(
        self: &Arc<Self>,
        headers: &HeaderMap,
    ) -> LinkResult<Option<HttpExchange>> {
        let response = self.get(headers.clone(), None).await?;
        let opening = OutgoingMessage {
            headers: headers.clone(),
            is_resumable: true,
            ..OutgoingMessage::default()
        };
        Ok(response.map(|response| HttpExchange::new(self, &opening, response)))
    }

    pub(crate) async fn delete(&self, headers: HeaderMap) -> LinkResult<()> {
        let sent = self.send(Method::DELETE, &self.url, headers, Bytes::new(), None);
        sent.await.map(|_| ())
    }

    /// Posts a message of the HTTP+SSE transport, whose reply arrives on the event stream. The authorization headers
    /// are made for the server's URL, not for `endpoint`.
    pub(super) async fn post_to(
        &self,
        endpoint: &Url,
        body: String,
        silence: Duration,
    ) -> LinkResult<()> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let sent = self.send(Method::POST, endpoint, headers, body.into(), Some(silence));
        check_accepted(&sent.await?)
    }

    async fn post(
        &self,
        message: &OutgoingMessage,
        silence: Option<Duration>,
    ) -> LinkResult<Response<ResponseBody>> {
        (self.watch)(WireMessage::Sent {
            message: &message.body,
        });
        let mut headers = message.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let accept = "application/json, text/event-stream";
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let body = Bytes::from(message.body.clone());
        let sent = self.send(Method::POST, &self.url, headers, body, silence);
        sent.await
    }

    /// Opens an event stream, if the server offers one. Server errors other than 501, and 429, are temporary.
    pub(super) async fn get(
        &self,
        mut headers: HeaderMap,
        silence: Option<Duration>,
    ) -> LinkResult<Option<Response<ResponseBody>>> {
        headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
        let sent = self.send(Method::GET, &self.url, headers, Bytes::new(), silence);
        let response = sent.await?;
        let status = response.status();
        let has_failed = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
        if has_failed || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(LinkError::Busy {
                kind: status_error(status, String::new()),
                retry_after: retry_after(&response),
            });
        }
        let is_usable = status.is_success() && is_stream(&response);
        Ok(is_usable.then_some(response))
    }

    /// Sends a request. If it is rejected with 401 or 403, authorizes the client and sends it again. The silence
    /// timeout does not include the time for authorization.
    async fn send(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        body: Bytes,
        silence: Option<Duration>,
    ) -> LinkResult<Response<ResponseBody>> {
        let mut rejections = 0;
        loop {
            let auth_headers = match &self.authorize {
                Some(authorize) => authorize.headers(&method, &self.url).await?,
                None => HeaderMap::new(),
            };
            self.record_authorization(auth_headers.get(AUTHORIZATION));
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = method.clone();
            *request.headers_mut() = self.headers.clone();
            for more in [&headers, &auth_headers] {
                replace_headers(request.headers_mut(), more);
            }
            // Boxed because the future is large.
            let sending = Box::pin(self.send_once(url, request));
            let response = match silence {
                Some(silence) => before_timeout(silence, sending).await?,
                None => sending.await?,
            };
            let status = response.status();
            if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                return Ok(response);
            }
            let Some(authorize) = &self.authorize else {
                if status == StatusCode::UNAUTHORIZED {
                    return Err(AuthError::Unauthorized.into());
                }
                return Ok(response);
            };
            let rejection = RejectedRequest {
                url: &self.url,
                sent: &auth_headers,
                status,
                headers: response.headers(),
                previous: rejections,
            };
            if !authorize.handle_rejection(rejection).await? {
                return Ok(response);
            }
            rejections += 1;
        }
    }

    fn record_authorization(&self, authorization: Option<&HeaderValue>) {
        let mut last = self.authorization.lock();
        if last.0.as_ref() != authorization {
            *last = (authorization.cloned(), last.1 + 1);
        }
    }

    /// Sends a request, and again if it is redirected within the origin: tokens and answers must not be sent to another
    /// server.
    async fn send_once(
        &self,
        url: &Url,
        mut request: Request<Full<Bytes>>,
    ) -> LinkResult<Response<ResponseBody>> {
        let mut url = url.clone();
        request
            .headers_mut()
            .entry(ACCEPT)
            .or_insert(HeaderValue::from_static("*/*"));
        for _ in 0..REDIRECTS_MAX {
            let sent = self.http.send(with_url(&url, request.clone())?).await;
            let response = sent.map_err(|error| self.send_error(error))?;
            match redirect(&url, &response) {
                Some(to) => url = to,
                None => return Ok(response),
            }
        }
        let sent = self.http.send(with_url(&url, request)?).await;
        sent.map_err(|error| self.send_error(error))
    }

    fn send_error(&self, error: HttpError) -> LinkError {
        let address = self.url.to_string();
        match error {
            HttpError::Connect(_) if is_not_tls(&error) => {
                LinkError::NotSent(ErrorKind::NotTls { address })
            }
            HttpError::Connect(_) => {
                let source = error.into();
                LinkError::NotSent(ErrorKind::Unreachable { address, source })
            }
            HttpError::NotProcessed(_) => {
                LinkError::NotSent(ErrorKind::ConnectionLost(error.into()))
            }
            error if self.url.scheme() == "http" && is_not_http(&error) => {
                LinkError::Lost(ErrorKind::NotHttp { address })
            }
            error => connection_lost(error),
        }
    }
}

/// Checks the headers that the application set, and marks their values as secrets.
fn host_headers(headers: &[(String, String)]) -> Result<HeaderMap, ErrorKind> {
    let read = |(name, value): &(String, String)| {
        let invalid =
            |why: &str| ErrorKind::InvalidArgument(format!("invalid header {name:?}: {why}"));
        let name =
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid("not a header name"))?;
        let is_reserved = RESERVED_HEADERS.contains(&name) || name.as_str().starts_with("mcp-");
        if is_reserved {
            return Err(invalid("the client sets it itself"));
        }
        let value = HeaderValue::from_str(value);
        // The error must not repeat the value.
        let mut value =
            value.map_err(|_| invalid("the value has characters that headers cannot have"))?;
        value.set_sensitive(true);
        Ok((name, value))
    };
    headers.iter().map(read).collect()
}

/// Whether the response to the TLS handshake is not a TLS message.
fn is_not_tls(error: &(dyn Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return matches!(error, rustls::Error::InvalidMessage(_));
    }
    // `io::Error::source` returns the source of the inner error, not the inner error itself.
    let inner = error.downcast_ref().and_then(io::Error::get_ref);
    match inner {
        Some(inner) => is_not_tls(inner),
        None => error.source().is_some_and(is_not_tls),
    }
}

/// Whether the response is not an HTTP message.
fn is_not_http(error: &(dyn Error + 'static)) -> bool {
    let is_parse_error = error
        .downcast_ref::<hyper::Error>()
        // A response with too large a head is HTTP. In hyper, only the text of the error tells.
        .is_some_and(|error| error.is_parse() && !error.to_string().contains("too large"));
    is_parse_error || error.source().is_some_and(is_not_http)
}

fn with_url(url: &Url, mut request: Request<Full<Bytes>>) -> LinkResult<Request<Full<Bytes>>> {
    let invalid = |error: InvalidUri| ErrorKind::InvalidAddress {
        address: url.to_string(),
        why: error.to_string(),
    };
    *request.uri_mut() = url
        .as_str()
        .parse()
        .map_err(invalid)
        .map_err(LinkError::Final)?;
    Ok(request)
}

/// The URL that a response redirects to, if the request may be sent there. Statuses other than these two turn a POST into
/// a GET.
fn redirect(from: &Url, response: &Response<ResponseBody>) -> Option<Url> {
    if !matches!(response.status().as_u16(), 307 | 308) {
        return None;
    }
    let to = response.headers().get(LOCATION)?.to_str().ok()?;
    let to = from.join(to).ok()?;
    (to.origin() == from.origin()).then_some(to)
}

/// Adds headers, which replace existing headers of the same name.
fn replace_headers(headers: &mut HeaderMap, more: &HeaderMap) {
    for name in more.keys() {
        headers.remove(name);
    }
    headers.extend(
        more.iter()
            .map(|(name, value)| (name.clone(), value.clone())),
    );
}

/// The error of a request that may have reached the server. A server that exceeds a limit would do so again.
fn connection_lost(error: HttpError) -> LinkError {
    match error {
        HttpError::Excess => LinkError::Final(ErrorKind::ConnectionLost(error.into())),
        error => LinkError::Lost(ErrorKind::ConnectionLost(error.into())),
    }
}

fn is_stream(response: &Response<ResponseBody>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    let start = kind.and_then(|kind| kind.as_bytes().get(..EVENT_STREAM.len()));
    start.is_some_and(|start| start.eq_ignore_ascii_case(EVENT_STREAM.as_bytes()))
}

/// Checks the status of the response to a message whose reply, if any, is sent elsewhere.
fn check_accepted(response: &Response<ResponseBody>) -> LinkResult<()> {
    let retry_after = retry_after(response);
    match response.status() {
        status if status.is_success() => Ok(()),
        // Without `Retry-After` the server may have processed it.
        status if status == StatusCode::SERVICE_UNAVAILABLE && retry_after.is_some() => {
            let kind = status_error(status, String::new());
            Err(LinkError::Busy { kind, retry_after })
        }
        status => Err(LinkError::Final(status_error(status, String::new()))),
    }
}

fn retry_after(response: &Response<ResponseBody>) -> Option<Duration> {
    let wait = response.headers().get(RETRY_AFTER)?;
    wait.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

/// The error for a status. The text of an HTML page says less than the status, and is left out.
fn status_error(status: StatusCode, mut body: String) -> ErrorKind {
    let status = status.as_u16();
    if body.trim_start().starts_with('<') {
        body.clear();
    }
    ErrorKind::HttpStatus { status, body }
}
