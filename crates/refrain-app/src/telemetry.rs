//! Export of traces over OTLP, switched on by OpenTelemetry's environment variables.
//!
//! Spans are queued and sent by a thread of the SDK. If the collector is slow or down, the queue fills up and further spans
//! are dropped, so that serving is never delayed.

use crate::AppError;
use crate::error::with_hint;
use http_body_util::{BodyExt, Full, Limited};
use opentelemetry::{Key, KeyValue};
use opentelemetry_http::{Bytes, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData};
use refrain::runtime::core::limited_event;
use refrain_http::HttpClient;
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tracing::{Instrument, Level, Metadata};
use url::Url;

/// The variables that contain secrets. Child processes must not inherit them.
pub const OTEL_SECRETS: [&str; 4] = [
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
];

const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];
const ENDPOINT_HINT: &str = "set the URL of a collector, such as http://localhost:4318";
const PROTOCOLS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];
const TIMEOUTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
];
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for sending the last spans at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_RESPONSE: usize = 64 << 10;
/// Fields for log lines. Exported spans have these ids themselves.
const LOG_FIELDS: [&str; 4] = ["trace_id", "span_id", "parent_id", "link"];

/// The export of traces. Dropping it sends the remaining spans, for at most five seconds.
#[derive(Debug)]
#[must_use = "dropping it ends the export"]
pub struct Telemetry(pub(crate) Option<SdkTracerProvider>);

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(provider) = &self.0
            && let Err(error) = provider.shutdown_with_timeout(FLUSH_TIMEOUT)
        {
            tracing::debug!(%error, "failed to send the last spans");
        }
    }
}

/// The non-empty value of the first of these variables that is set.
fn variable(names: &[&str]) -> Option<String> {
    let value = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
    names.iter().find_map(value)
}

/// Starts the export if the environment asks for it. `service` is the service's name unless a variable sets one.
pub(crate) fn start(service: &str) -> Result<Option<SdkTracerProvider>, AppError> {
    let disabled = variable(&["OTEL_SDK_DISABLED"]);
    if disabled.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    match variable(&[EXPORTER]).as_deref() {
        Some("none") => return Ok(None),
        Some("otlp") => {}
        None if variable(&ENDPOINTS).is_some() => {}
        None => return Ok(None),
        Some(other) => {
            return Err(with_hint(
                format!("invalid ${EXPORTER} {other:?}"),
                "use otlp or none",
            ));
        }
    }
    let set = |name: &&'static str| Some((*name, variable(&[*name])?));
    if let Some((name, value)) = PROTOCOLS.iter().find_map(set)
        && value != "http/protobuf"
    {
        return Err(with_hint(
            format!("invalid ${name} {value:?}"),
            "use http/protobuf, for example at port 4318 of a collector",
        ));
    }
    if let Some((name, value)) = ENDPOINTS.iter().find_map(set)
        && !is_http_url(&value)
    {
        // The value may contain a password.
        return Err(with_hint(
            format!("invalid ${name}: expected an http:// or https:// URL"),
            ENDPOINT_HINT,
        ));
    }
    let builder = SpanExporter::builder().with_http();
    let exporter = builder.with_http_client(OtlpClient::new()?).build();
    // The error may contain the URL, and the URL a password.
    let exporter = exporter.map_err(|_| {
        with_hint(
            format!(
                "invalid ${} or another OTEL_EXPORTER_OTLP variable",
                ENDPOINTS[1]
            ),
            ENDPOINT_HINT,
        )
    })?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(ExportedFields(exporter))
        .with_resource(resource(service))
        .build();
    Ok(Some(provider))
}

/// Whether the exporter can send to this URL. With other texts, such as `localhost:4318`, it would start and send nothing.
fn is_http_url(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

fn resource(service: &str) -> Resource {
    let name = Resource::builder().build().get(&Key::new("service.name"));
    let is_named = name.is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let builder = Resource::builder()
        .with_attribute(KeyValue::new("process.pid", i64::from(std::process::id())));
    match is_named {
        true => builder.build(),
        false => builder.with_service_name(service.replace(' ', "-")).build(),
    }
}

/// Whether a span, or an event inside a span, is exported: spans of Refrain up to level debug, all else up to level info.
/// Spans and events of the HTTP client are left out, because the export itself causes them.
pub(crate) fn is_exported(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    let is_of = |prefix: &&str| target.starts_with(prefix);
    if ["h2", "hyper", "opentelemetry", "reqwest", "rustls"]
        .iter()
        .any(is_of)
    {
        return false;
    }
    let max_level = match metadata.is_span() && target.starts_with("refrain") {
        true => Level::DEBUG,
        false => Level::INFO,
    };
    *metadata.level() <= max_level
}

/// Runs `work` in a span that is the root of its trace.
pub async fn in_span<T>(name: &str, work: impl Future<Output = T>) -> T {
    work.instrument(tracing::debug_span!("command", otel.name = name))
        .await
}

/// Removes fields that are meant for log lines.
#[derive(Debug)]
struct ExportedFields(SpanExporter);

impl opentelemetry_sdk::trace::SpanExporter for ExportedFields {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        for span in &mut batch {
            let is_logged = |pair: &KeyValue| LOG_FIELDS.contains(&pair.key.as_str());
            span.attributes.retain(|pair| !is_logged(pair));
        }
        self.0.export(batch).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

/// Sends requests on the SDK's thread, with its own runtime.
struct OtlpClient {
    client: HttpClient,
    runtime: Runtime,
    timeout: Duration,
}

impl OtlpClient {
    fn new() -> Result<Self, AppError> {
        let millis = variable(&TIMEOUTS).and_then(|text| text.parse().ok());
        let timeout = millis.map_or(DEFAULT_TIMEOUT, Duration::from_millis);
        let mut builder = tokio::runtime::Builder::new_current_thread();
        Ok(Self {
            // No idle connections: the runtime does not run between two exports.
            client: HttpClient::new(timeout, Duration::ZERO),
            runtime: builder.enable_all().build()?,
            timeout,
        })
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = async {
            let response = self.client.send(request.map(Full::new)).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_RESPONSE).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        timeout(self.timeout, sent).await?
    }
}

impl opentelemetry_http::HttpClient for OtlpClient {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let sent = self.runtime.block_on(self.send(request));
        match &sent {
            Err(error) => limited_event!(WARN, %error, "failed to export spans"),
            Ok(response) if !response.status().is_success() => {
                limited_event!(
                    WARN,
                    status = response.status().as_u16(),
                    "spans were rejected"
                );
            }
            Ok(_) => {}
        }
        Box::pin(ready(sent))
    }
}

/// Omits the client, which may have a URL with a password.
impl fmt::Debug for OtlpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtlpClient").finish_non_exhaustive()
    }
}
