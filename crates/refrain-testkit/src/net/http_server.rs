//! A small HTTP/1.1 server, with or without TLS, on which the fake servers are built.

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A complete response.
#[derive(Clone, Default)]
pub struct CannedResponse {
    pub status: u16,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
}

impl CannedResponse {
    pub fn new(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    pub fn json(status: u16, body: &Value) -> Self {
        let response = Self::new(status).header("content-type", "application/json");
        response.body(body.to_string())
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let body = Full::new(self.body).map_err(|never| match never {});
        let mut response = Response::builder().status(self.status);
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        response.body(body.boxed_unsync()).expect("a response")
    }
}

/// An event stream. An error breaks the connection; the end of the channel ends the stream.
pub(super) fn respond_events(
    events: mpsc::UnboundedReceiver<io::Result<String>>,
) -> Response<Body> {
    let frames = stream::unfold(events, |mut events| async {
        let event = events.recv().await?;
        if event.is_err() {
            // Yield, so that the connection flushes earlier events before it sees the error.
            tokio::task::yield_now().await;
        }
        Some((event.map(|text| Frame::data(text.into())), events))
    });
    let response = Response::builder().header("content-type", "text/event-stream");
    let body = StreamBody::new(frames).boxed_unsync();
    response.body(body).expect("a response")
}

/// Serves requests on this listener, over TLS if there is an acceptor, until the runtime ends or accepting fails.
pub(super) fn serve_http<F, R>(listener: TcpListener, tls: Option<TlsAcceptor>, handler: F)
where
    F: Fn(Request<Bytes>) -> R + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let handler = Arc::new(handler);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (handler, tls) = (Arc::clone(&handler), tls.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let handler = Arc::clone(&handler);
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.map(|body| body.to_bytes());
                    let request = Request::from_parts(head, body.unwrap_or_default());
                    Ok::<_, Infallible>(handler(request).await)
                }
            });
            tokio::spawn(async move {
                let http = http1::Builder::new();
                // Clients may close the connection or reject the certificate.
                match tls {
                    None => drop(http.serve_connection(TokioIo::new(stream), service).await),
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            drop(http.serve_connection(TokioIo::new(stream), service).await);
                        }
                    }
                }
            });
        }
    });
}
