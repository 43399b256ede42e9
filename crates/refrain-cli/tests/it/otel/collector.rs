//! An OTLP receiver, and the tree of the spans that it received.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as SpanStatus;
use parking_lot::Mutex;
use prost::Message;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// A collector on a free port. It ends with the Tokio runtime.
pub(super) struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<ReceivedSpan>>>,
}

#[derive(Clone, Debug)]
pub(super) struct ReceivedSpan {
    /// The attribute `service.name` of the resource.
    pub(super) service: String,
    pub(super) span: Span,
}

impl Collector {
    /// Starts a collector that expects this API key in each request.
    pub(super) async fn start(api_key: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        let spans: Arc<Mutex<Vec<ReceivedSpan>>> = Arc::default();
        let all = spans.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let all = all.clone();
                let service = service_fn(move |request| receive(request, all.clone(), api_key));
                let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move {
                    // The exporter may close the connection.
                    let _ = serving.await;
                });
            }
        });
        Self { address, spans }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn all(&self) -> Vec<ReceivedSpan> {
        self.spans.lock().clone()
    }

    /// All spans of the trace whose root has this name, ordered by time.
    pub(super) fn trace(&self, root: &str) -> Vec<ReceivedSpan> {
        let all = self.all();
        let mut roots = all.iter().filter(|it| it.span.parent_span_id.is_empty());
        let root = roots.find(|span| span.span.name == root);
        let id = root.expect("a root with this name").trace();
        let mut spans = all;
        spans.retain(|span| span.trace() == id);
        spans.sort_by_key(|span| span.span.start_time_unix_nano);
        spans
    }
}

async fn receive(
    request: Request<Incoming>,
    all: Arc<Mutex<Vec<ReceivedSpan>>>,
    api_key: &str,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes());
    let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let is_expected = head.method == Method::POST
        && head.uri.path() == "/v1/traces"
        && header("content-type") == Some("application/x-protobuf")
        && header("x-api-key") == Some(api_key);
    let decoded = ExportTraceServiceRequest::decode(body.unwrap_or_default());
    let mut response = Response::new(Full::default());
    match decoded {
        Ok(batch) if is_expected => all.lock().extend(spans_of(batch)),
        _ => *response.status_mut() = StatusCode::BAD_REQUEST,
    }
    Ok(response)
}

fn spans_of(batch: ExportTraceServiceRequest) -> impl Iterator<Item = ReceivedSpan> {
    batch.resource_spans.into_iter().flat_map(|of_resource| {
        let resource = of_resource.resource.unwrap_or_default();
        let service = value_of(&resource.attributes, "service.name").unwrap_or_default();
        let spans = of_resource.scope_spans.into_iter();
        let spans = spans.flat_map(|of_scope| of_scope.spans);
        spans.map(move |span| ReceivedSpan {
            service: service.clone(),
            span,
        })
    })
}

fn value_of(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|pair| pair.key == key)?;
    let AnyValue { value } = found.value.as_ref()?;
    match value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        Value::BoolValue(value) => Some(value.to_string()),
        Value::DoubleValue(number) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl ReceivedSpan {
    pub(super) fn id(&self) -> String {
        hex(&self.span.span_id)
    }

    pub(super) fn parent(&self) -> String {
        hex(&self.span.parent_span_id)
    }

    pub(super) fn trace(&self) -> String {
        hex(&self.span.trace_id)
    }

    pub(super) fn links(&self) -> Vec<String> {
        self.span
            .links
            .iter()
            .map(|link| hex(&link.span_id))
            .collect()
    }

    pub(super) fn attribute(&self, key: &str) -> Option<String> {
        value_of(&self.span.attributes, key)
    }

    pub(super) fn has_error_status(&self) -> bool {
        let status = self.span.status.as_ref();
        status.is_some_and(|status| status.code() == SpanStatus::Error)
    }

    pub(super) fn kind(&self) -> &'static str {
        match self.span.kind() {
            SpanKind::Client => "client",
            SpanKind::Server => "server",
            SpanKind::Consumer => "consumer",
            SpanKind::Producer => "producer",
            SpanKind::Internal | SpanKind::Unspecified => "internal",
        }
    }
}

/// The trees of the root spans as text, ordered by time. Equal sibling trees, such as repeated polls, are listed once.
pub(super) fn tree(spans: &[ReceivedSpan]) -> String {
    let mut children: BTreeMap<String, Vec<&ReceivedSpan>> = BTreeMap::new();
    for span in spans {
        children.entry(span.parent()).or_default().push(span);
    }
    for siblings in children.values_mut() {
        siblings.sort_by_key(|span| span.span.start_time_unix_nano);
    }
    subtrees(&children, "", 0).concat()
}

fn subtrees(
    children: &BTreeMap<String, Vec<&ReceivedSpan>>,
    parent: &str,
    depth: usize,
) -> Vec<String> {
    let mut trees = Vec::new();
    for span in children.get(parent).into_iter().flatten() {
        let line = format!(
            "{:indent$}{} {} {}\n",
            "",
            span.service,
            span.kind(),
            span.span.name,
            indent = 2 * depth
        );
        let tree = line + &subtrees(children, &span.id(), depth + 1).concat();
        if !trees.contains(&tree) {
            trees.push(tree);
        }
    }
    trees
}
