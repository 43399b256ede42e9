//! One message and its answer over HTTP, on a connection of its own.
//!
//! The answer is a body of JSON, or the message of that id on an event stream. Other messages of the stream are
//! passed over: this client asked for none of them.

use super::events::Events;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue, InvalidHeaderValue};
use hyper::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::error::Error;
use std::io;
use std::pin::pin;
use std::time::Duration;
use tokio::net::TcpStream;

/// The largest answer that is read.
const ANSWER_MAX: usize = 4 * 1024 * 1024;
/// Time for one exchange. The suite gives a client half a minute in all.
const EXCHANGE_TIME: Duration = Duration::from_secs(15);

/// Where a server is.
#[derive(Debug)]
pub(super) struct Endpoint {
    host: String,
    port: u16,
    authority: HeaderValue,
    target: Uri,
}

/// Why a URL names no server that can be reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UrlError {
    #[error("{0}: only http:// URLs with a host can be reached")]
    NotHttp(Uri),
    #[error("{0}: {1}")]
    Host(Uri, #[source] InvalidHeaderValue),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("cannot be reached: {0}")]
    Connect(#[source] io::Error),
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the answer could not be read: {0}")]
    Body(#[source] Box<dyn Error + Send + Sync>),
    #[error("no answer within {EXCHANGE_TIME:?}")]
    Late,
    #[error("the stream ended without an answer")]
    Ended,
    #[error("answer {0} is not JSON: {1:?}")]
    NotJson(StatusCode, String),
}

impl Endpoint {
    pub(super) fn new(url: &Uri) -> Result<Self, UrlError> {
        let not_http = || UrlError::NotHttp(url.clone());
        let authority = url.authority().ok_or_else(not_http)?;
        if url.scheme_str() != Some("http") || authority.as_str().contains('@') {
            return Err(not_http());
        }
        let host = authority.host();
        let unbracketed = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let target = url.path_and_query().ok_or_else(not_http)?;
        Ok(Self {
            host: unbracketed.unwrap_or(host).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: HeaderValue::from_str(authority.as_str())
                .map_err(|error| UrlError::Host(url.clone(), error))?,
            target: Uri::from(target.clone()),
        })
    }

    /// Posts a message and gives the answer to the request of that id.
    pub(super) async fn post(
        &self,
        headers: HeaderMap,
        message: &Value,
        id: u64,
    ) -> Result<Value, ExchangeError> {
        let mut request = Request::new(Full::from(message.to_string()));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = self.target.clone();
        *request.headers_mut() = headers;
        let headers = request.headers_mut();
        headers.insert(HOST, self.authority.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        tokio::time::timeout(EXCHANGE_TIME, self.talk(request, id))
            .await
            .unwrap_or(Err(ExchangeError::Late))
    }

    async fn talk(&self, request: Request<Full<Bytes>>, id: u64) -> Result<Value, ExchangeError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(ExchangeError::Connect)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut talk = pin!(async { read(sender.send_request(request).await?, id).await });
        // The connection is driven beside the talk. Where it ends first, the talk finds out by itself.
        tokio::select! {
            answer = talk.as_mut() => answer,
            _ = connection => talk.await,
        }
    }
}

async fn read(response: Response<Incoming>, id: u64) -> Result<Value, ExchangeError> {
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, ANSWER_MAX);
    let kind = parts.headers.get(CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
        return read_stream(pin!(body), parts.status, id).await;
    }
    let body = body.collect().await.map_err(ExchangeError::Body)?;
    parse(parts.status, &body.to_bytes())
}

async fn read_stream<B>(
    mut body: std::pin::Pin<&mut B>,
    status: StatusCode,
    id: u64,
) -> Result<Value, ExchangeError>
where
    B: Body<Data = Bytes, Error = Box<dyn Error + Send + Sync>>,
{
    let mut events = Events::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(ExchangeError::Body)?;
        for data in events.push(frame.data_ref().map_or(&[], |data| data)) {
            let message = parse(status, &data)?;
            // A request of the server has an id too, but it also has a method.
            if message["id"] == id && message.get("method").is_none() {
                return Ok(message);
            }
        }
    }
    Err(ExchangeError::Ended)
}

fn parse(status: StatusCode, json: &[u8]) -> Result<Value, ExchangeError> {
    serde_json::from_slice(json).map_err(|_| {
        let start = String::from_utf8_lossy(json).chars().take(300).collect();
        ExchangeError::NotJson(status, start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &'static str) -> Result<Endpoint, UrlError> {
        Endpoint::new(&Uri::from_static(url))
    }

    #[test]
    fn a_url_is_taken_apart() {
        let bare = endpoint("http://localhost:8080").unwrap();
        assert_eq!((bare.host.as_str(), bare.port), ("localhost", 8080));
        assert_eq!(bare.target, "/");
        let full = endpoint("http://[::1]/mcp?x=1").unwrap();
        assert_eq!((full.host.as_str(), full.port), ("::1", 80));
        assert_eq!(full.target, "/mcp?x=1");
        assert_eq!(full.authority, "[::1]");
    }

    #[test]
    fn other_urls_are_refused() {
        for url in [
            "https://localhost/mcp",
            "/mcp",
            "localhost:80",
            "http://a@b/",
        ] {
            assert!(endpoint(url).is_err(), "{url}");
        }
    }
}
