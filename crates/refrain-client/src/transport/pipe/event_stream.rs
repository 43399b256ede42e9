//! The HTTP+SSE transport of 2024-11-05, used like a pipe.
//!
//! The server sends all messages on one event stream. Its first event names the URL to which the client posts its own
//! messages, one by one. When the stream ends, all requests fail, and the next request opens another stream.

use super::child::ExitGuard;
use super::{PipeState, QueuedLine};
use crate::error::{ErrorKind, cause};
use crate::pace::Pace;
use crate::retry::within;
use crate::transport::events::{EventKind, EventParser, StreamEvent};
use crate::transport::{HttpLink, LinkError};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, Response};
use refrain_http::ResponseBody;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use url::Url;

/// Limits for the first event.
const FIRST_EVENT_MAX: usize = 16 * 1024;
const FIRST_EVENT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time to send a notification or a response, and to flush the queue on shutdown.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of requests whose POST has no response yet.
const POSTS_MAX: usize = 1024;

/// An open event stream, and the URL for messages to the server.
pub(crate) struct EventStream {
    http: Arc<HttpLink>,
    endpoint: Url,
    response: Response<ResponseBody>,
    parser: EventParser,
    /// Messages after the first event.
    received: Vec<StreamEvent>,
}

impl EventStream {
    /// Opens the stream; `None` if the server does not use this transport.
    pub(crate) async fn open(http: &Arc<HttpLink>) -> Result<Option<Self>, ErrorKind> {
        // The timeout does not include a login of the user.
        let opened = http.get(HeaderMap::new(), Some(FIRST_EVENT_TIMEOUT)).await;
        let mut response = match opened {
            Ok(Some(response)) => response,
            Ok(None)
            | Err(LinkError::Final(ErrorKind::HttpStatus { .. } | ErrorKind::Timeout(_))) => {
                return Ok(None);
            }
            Err(error) => return Err(ErrorKind::from(error)),
        };
        let opening = async {
            let mut parser = EventParser::default();
            while parser.buffered() < FIRST_EVENT_MAX {
                let Ok(Some(chunk)) = response.body_mut().chunk().await else {
                    return Ok(None);
                };
                let mut events = parser.push(&chunk).into_iter();
                // Other events before it may set the pause for a reconnection.
                let Some(first) = events.find(|event| !event.data.is_empty()) else {
                    continue;
                };
                if first.kind != EventKind::Endpoint {
                    return Ok(None);
                }
                return Ok(Some(Self {
                    http: Arc::clone(http),
                    endpoint: endpoint(http, &first.data)?,
                    response,
                    parser,
                    received: events.collect(),
                }));
            }
            Ok(None)
        };
        within(FIRST_EVENT_TIMEOUT, opening)
            .await
            .unwrap_or(Ok(None))
    }

    pub(super) fn http(&self) -> &Arc<HttpLink> {
        &self.http
    }

    /// Reads messages to the end of the stream. Returns the reason for the end.
    async fn read(mut self, shared: &Arc<PipeState>) -> String {
        let limit = shared.setup.limits.message;
        let mut pace = Pace::of_messages();
        // The bytes that the pace has not counted.
        let mut bytes = 0_usize;
        loop {
            let buffered = self.parser.buffered();
            let (mut awaited, mut others) = (0, 0);
            for event in self.received.drain(..) {
                let is_message = event.kind == EventKind::Message && !event.data.is_empty();
                let text = || String::from_utf8_lossy(&event.data).into_owned();
                if is_message && shared.receive(text()).await {
                    awaited += event.data.len();
                } else {
                    others += 1;
                }
            }
            // Counts the bytes of comments too, but not those of awaited responses.
            pace.count_messages(bytes.saturating_sub(buffered + awaited), others);
            bytes = buffered.min(bytes);
            pace.wait().await;
            match self.response.body_mut().chunk().await {
                Ok(Some(chunk)) => {
                    self.received = self.parser.push(&chunk);
                    bytes += chunk.len();
                }
                Ok(None) => return "the event stream ended".to_owned(),
                Err(error) => return cause(&error).to_string(),
            }
            let longest = self.received.iter().map(|event| event.data.len()).max();
            if self.parser.buffered().max(longest.unwrap_or_default()) > limit {
                shared.fail_too_long();
                return "an event is too large".to_owned();
            }
        }
    }
}

/// The URL for messages. It must have the origin of the stream: the messages contain answers and tokens.
fn endpoint(http: &HttpLink, data: &[u8]) -> Result<Url, ErrorKind> {
    let invalid = |why: &str| {
        let endpoint = String::from_utf8_lossy(data);
        ErrorKind::NotMcp {
            address: http.url().to_string(),
            why: format!("it names the endpoint {endpoint:?}, {why}"),
        }
    };
    let endpoint = std::str::from_utf8(data).ok();
    let url = endpoint.and_then(|endpoint| http.url().join(endpoint.trim()).ok());
    let url = url.ok_or_else(|| invalid("which is not a URL"))?;
    if url.origin() != http.url().origin() || !url.username().is_empty() || url.password().is_some()
    {
        return Err(invalid("which has another origin"));
    }
    Ok(url)
}

/// Reads and posts messages until the stream ends or the link is closed.
pub(super) async fn run(
    stream: EventStream,
    queue: mpsc::Receiver<QueuedLine>,
    mut shutdown: oneshot::Receiver<()>,
    shared: Arc<PipeState>,
) {
    let _guard = ExitGuard(&shared);
    let outbox = Outbox {
        http: Arc::clone(&stream.http),
        endpoint: stream.endpoint.clone(),
        shared: &shared,
    };
    let mut posting = pin!(outbox.post_all(queue));
    let mut reading = pin!(stream.read(&shared));
    let why = tokio::select! {
        why = &mut reading => why,
        () = &mut posting => "the connection was closed".to_owned(),
        _ = &mut shutdown => {
            within(FLUSH_TIMEOUT, posting).await;
            "the connection was closed".to_owned()
        }
    };
    shared.set_exited(why);
}

/// Posts the messages of the client.
struct Outbox<'a> {
    http: Arc<HttpLink>,
    endpoint: Url,
    shared: &'a PipeState,
}

impl Outbox<'_> {
    /// Posts messages until the queue is closed. A server may delay its response to the POST of a request until the request
    /// is answered, so requests are posted concurrently. Other messages are posted one after the other.
    async fn post_all(&self, mut queue: mpsc::Receiver<QueuedLine>) {
        let mut requests = FuturesUnordered::new();
        loop {
            let line = tokio::select! {
                Some(()) = requests.next(), if !requests.is_empty() => continue,
                line = queue.recv(), if requests.len() < POSTS_MAX => line,
            };
            let Some(QueuedLine { id, text }) = line else {
                return;
            };
            match id {
                Some(id) => requests.push(self.post_request(id, text)),
                None => {
                    let mut posting = pin!(self.post_other(text));
                    loop {
                        tokio::select! {
                            () = &mut posting => break,
                            Some(()) = requests.next(), if !requests.is_empty() => {}
                        }
                    }
                }
            }
        }
    }

    async fn post_request(&self, id: u64, text: String) {
        let silence = self.shared.setup.limits.silence;
        if let Err(error) = self.http.post_to(&self.endpoint, text, silence).await {
            self.shared.routes.lock().fail(id, error);
        }
    }

    async fn post_other(&self, text: String) {
        if let Err(error) = self.http.post_to(&self.endpoint, text, SEND_TIMEOUT).await {
            tracing::debug!(?error, "failed to send message");
        }
    }
}
