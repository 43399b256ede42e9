//! A small HTTP/1.1 server, with or without TLS, on which the fake servers are built.

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, Uri};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

/// A request as it was received.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    pub verb: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
}

pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A response body of these bytes.
pub fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A response body of pieces. An error breaks the connection; the end of the channel ends the body.
pub fn pieces(pieces: mpsc::UnboundedReceiver<io::Result<String>>) -> Body {
    let frames = stream::unfold(pieces, |mut pieces| async {
        let piece = pieces.recv().await?;
        if piece.is_err() {
            // The connection flushes the pieces before it sees the error.
            tokio::task::yield_now().await;
        }
        Some((piece.map(|text| Frame::data(text.into())), pieces))
    });
    StreamBody::new(frames).boxed_unsync()
}

/// Serves requests on this listener until the runtime ends.
pub fn serve_http<F, R>(listener: TcpListener, handler: F)
where
    F: Fn(HttpRequest) -> R + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    serve_with(listener, None, handler);
}

/// Serves requests on this listener, over TLS if there is an acceptor, until the runtime ends.
pub fn serve_with<F, R>(listener: TcpListener, tls: Option<TlsAcceptor>, handler: F)
where
    F: Fn(HttpRequest) -> R + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let handler = Arc::new(handler);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (handler, tls) = (Arc::clone(&handler), tls.clone());
            tokio::spawn(async move {
                match tls {
                    None => serve_connection(stream, handler).await,
                    // A client that does not trust the certificate ends the handshake.
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            serve_connection(stream, handler).await;
                        }
                    }
                }
            });
        }
    });
}

async fn serve_connection<S, F, R>(stream: S, handler: Arc<F>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(HttpRequest) -> R + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let handler = Arc::clone(&handler);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes());
            let request = HttpRequest {
                verb: head.method,
                uri: head.uri,
                headers: head.headers,
                body: body.unwrap_or_default(),
            };
            Ok::<_, Infallible>(handler(request).await)
        }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // Clients may close the connection at any time.
    let _ = connection.await;
}
