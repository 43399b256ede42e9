//! The floor: the minimal server for a dialogue with sealed tokens, as the baseline of the
//! benchmark.
//!
//! Each request costs one parse, one AES-256-GCM seal or open and one fixed reply, on plain hyper. There are no checks of
//! headers, arguments, capabilities or expiry. Refrain's cost above the floor is the cost of its checks and its replay.

use std::convert::Infallible;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::TcpListener;

use crate::error::{Error, failed};
use crate::interrupted;

/// The number of sealed bytes in a token, about the size of a journal after one ask.
const PAYLOAD: usize = 200;

const ASK: &str = r#","result":{"resultType":"input_required","inputRequests":{"github_login":{"method":"elicitation/create","params":{"mode":"form","message":"Please provide your GitHub username","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}}},"requestState":""#;
const WEATHER: &str = r#","result":{"resultType":"complete","content":[{"type":"text","text":"Current weather in New York:\nTemperature: 72°F\nConditions: Partly cloudy"}],"isError":false}}"#;
const ECHO: &str = r#","result":{"resultType":"complete","content":[{"type":"text","text":"#;

#[derive(Deserialize)]
struct RequestEnvelope<'a> {
    #[serde(rename = "jsonrpc")]
    _jsonrpc: &'a str,
    #[serde(borrow)]
    id: &'a RawValue,
    method: &'a str,
    #[serde(borrow)]
    params: RequestParams<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequestParams<'a> {
    name: &'a str,
    #[serde(borrow)]
    arguments: &'a RawValue,
    request_state: Option<&'a str>,
    #[serde(borrow, rename = "inputResponses")]
    _input_responses: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    _meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct EchoArguments<'a> {
    text: &'a str,
}

/// A request that the floor does not support.
#[derive(Debug)]
struct UnsupportedRequest;

/// The key and the nonce counter.
struct Floor {
    key: LessSafeKey,
    nonce_counter: AtomicU64,
}

impl Floor {
    fn new() -> Result<Self, aws_lc_rs::error::Unspecified> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes)?;
        Ok(Self {
            key: LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes)?),
            nonce_counter: AtomicU64::new(0),
        })
    }

    /// Appends `base64url(nonce ‖ ciphertext ‖ tag)` to the reply.
    fn seal(&self, reply: &mut String) -> Result<(), UnsupportedRequest> {
        let mut nonce = [0; NONCE_LEN];
        let count = self.nonce_counter.fetch_add(1, Ordering::Relaxed);
        nonce[NONCE_LEN - 8..].copy_from_slice(&count.to_be_bytes());
        let mut token = Vec::with_capacity(NONCE_LEN + PAYLOAD + AES_256_GCM.tag_len());
        token.extend_from_slice(&nonce);
        token.resize(NONCE_LEN + PAYLOAD, b'j');
        let tag = self
            .key
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::empty(),
                &mut token[NONCE_LEN..],
            )
            .map_err(|_| UnsupportedRequest)?;
        token.extend_from_slice(tag.as_ref());
        URL_SAFE_NO_PAD.encode_string(&token, reply);
        Ok(())
    }

    fn open(&self, token: &str) -> Result<(), UnsupportedRequest> {
        let mut bytes = URL_SAFE_NO_PAD
            .decode(token)
            .map_err(|_| UnsupportedRequest)?;
        let (nonce, sealed) = bytes
            .split_at_mut_checked(NONCE_LEN)
            .ok_or(UnsupportedRequest)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| UnsupportedRequest)?;
        let payload = self
            .key
            .open_in_place(nonce, Aad::empty(), sealed)
            .map_err(|_| UnsupportedRequest)?;
        std::hint::black_box(payload);
        Ok(())
    }

    fn reply(&self, body: &[u8]) -> Result<Vec<u8>, UnsupportedRequest> {
        let envelope: RequestEnvelope<'_> =
            serde_json::from_slice(body).map_err(|_| UnsupportedRequest)?;
        let params = envelope.params;
        if envelope.method != "tools/call" {
            return Err(UnsupportedRequest);
        }
        let mut reply = String::with_capacity(768);
        reply.push_str(r#"{"jsonrpc":"2.0","id":"#);
        reply.push_str(envelope.id.get());
        match (params.name, params.request_state) {
            ("echo", None) => {
                let arguments: EchoArguments<'_> =
                    serde_json::from_str(params.arguments.get()).map_err(|_| UnsupportedRequest)?;
                reply.push_str(ECHO);
                let mut reply = reply.into_bytes();
                // Serialized, because the text may need escapes.
                let text = format_args!("Echo: {}", arguments.text);
                serde_json::to_writer(&mut reply, &text).map_err(|_| UnsupportedRequest)?;
                reply.extend_from_slice(br#"}],"isError":false}}"#);
                return Ok(reply);
            }
            ("get_weather", None) => {
                reply.push_str(ASK);
                self.seal(&mut reply)?;
                reply.push_str("\"}}");
            }
            ("get_weather", Some(token)) => {
                self.open(token)?;
                reply.push_str(WEATHER);
            }
            _ => return Err(UnsupportedRequest),
        }
        Ok(reply.into_bytes())
    }
}

async fn handle(
    floor: Arc<Floor>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let reply = match request.into_body().collect().await {
        Ok(body) => floor.reply(&body.to_bytes()),
        Err(_) => Err(UnsupportedRequest),
    };
    let mut response = Response::new(Full::default());
    match reply {
        Ok(body) => {
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            *response.body_mut() = Full::new(Bytes::from(body));
        }
        Err(UnsupportedRequest) => *response.status_mut() = StatusCode::BAD_REQUEST,
    }
    Ok(response)
}

/// Serves the floor until SIGTERM or SIGINT.
pub(crate) async fn serve(listen: SocketAddr) -> Result<(), Error> {
    let floor = Arc::new(Floor::new()?);
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(failed(format!("listen on {listen}")))?;
    let address = listener.local_addr()?;
    let mut stop = std::pin::pin!(interrupted());
    // Keep serving if stderr is closed.
    let _ = writeln!(
        std::io::stderr(),
        "floor: listening on http://{address}/mcp"
    );

    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted?.0,
            stopped = &mut stop => return stopped,
        };
        stream.set_nodelay(true)?;
        let floor = Arc::clone(&floor);
        tokio::spawn(async move {
            let service = service_fn(move |request| handle(Arc::clone(&floor), request));
            // The load reports broken connections.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(floor: &Floor, params: &str) -> Result<serde_json::Value, UnsupportedRequest> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}"#);
        let reply = floor.reply(body.as_bytes())?;
        Ok(serde_json::from_slice(&reply).unwrap())
    }

    #[test]
    fn echo_answers_with_its_text() {
        let floor = Floor::new().unwrap();
        let reply = call(
            &floor,
            r#"{"name":"echo","arguments":{"text":"round again"}}"#,
        )
        .unwrap();
        assert_eq!(reply["id"], 7);
        assert_eq!(reply["result"]["content"][0]["text"], "Echo: round again");
    }

    #[test]
    fn dialogue_of_two_rounds_is_served() {
        let floor = Floor::new().unwrap();
        let first = call(&floor, r#"{"name":"get_weather","arguments":{}}"#).unwrap();
        assert_eq!(first["result"]["resultType"], "input_required");
        let ask = &first["result"]["inputRequests"]["github_login"]["params"];
        assert_eq!(ask["message"], "Please provide your GitHub username");
        let token = first["result"]["requestState"].as_str().unwrap();
        let second = call(
            &floor,
            &format!(
                r#"{{"name":"get_weather","arguments":{{}},"requestState":"{token}","_meta":{{}}}}"#
            ),
        )
        .unwrap();
        let text = second["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("Temperature: 72°F"));
    }

    #[test]
    fn foreign_token_does_not_open() {
        let mut reply = String::new();
        Floor::new().unwrap().seal(&mut reply).unwrap();
        let other = Floor::new().unwrap();
        assert!(other.open(&reply).is_err());
        assert!(other.open("AAAA").is_err());
        assert!(other.open("not base64!").is_err());
    }

    #[test]
    fn unsupported_requests_are_rejected() {
        let floor = Floor::new().unwrap();
        assert!(floor.reply(b"{").is_err());
        assert!(call(&floor, r#"{"name":"other","arguments":{}}"#).is_err());
    }
}
