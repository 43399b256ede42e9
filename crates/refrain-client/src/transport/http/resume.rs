//! Resumption of interrupted event streams of legacy servers.

use super::HttpLink;
use crate::retry::{RETRY_AFTER_MAX, backoff};
use crate::transport::LinkError;
use crate::transport::events::StreamEvent;
use http::{HeaderMap, HeaderValue, Response};
use refrain_http::ResponseBody;
use std::time::Duration;

/// Give up after this many connection failures, even with busy responses between them.
const FAILURES_MAX: u32 = 5;
/// Give up after this many busy responses, likewise. In a fleet, instances that lack the stream send them.
const BUSY_MAX: u32 = 20;
/// Give up after this many consecutive streams without an event.
const EMPTY_MAX: u32 = 100;
const RESUME_PAUSE_MIN: Duration = Duration::from_millis(50);

/// The last event of a stream, and the attempts to resume the stream since.
#[derive(Default)]
pub(super) struct StreamResumption {
    headers: HeaderMap,
    last_id: Option<HeaderValue>,
    /// The pause that the server has set in an event.
    pause: Option<Duration>,
    /// Connection failures; `busy` and `empty` count the other failed attempts.
    failures: u32,
    busy: u32,
    retry_after: Option<Duration>,
    empty: u32,
}

impl StreamResumption {
    pub(super) fn new(headers: HeaderMap) -> Self {
        Self {
            headers,
            ..Self::default()
        }
    }

    /// Records an event, and resets the attempts.
    pub(super) fn record(&mut self, event: &StreamEvent) {
        let (last_id, pause) = (self.last_id.take(), self.pause);
        *self = Self {
            last_id: match &event.id {
                // An empty id clears the last id.
                Some(id) => HeaderValue::from_str(id).ok().filter(|id| !id.is_empty()),
                None => last_id,
            },
            pause: event.retry.map(Duration::from_millis).or(pause),
            ..Self::new(std::mem::take(&mut self.headers))
        };
    }

    /// Opens the rest of the stream, if the server still has it.
    pub(super) async fn reopen(&mut self, link: &HttpLink) -> Option<Response<ResponseBody>> {
        let last_id = self.last_id.clone()?;
        while let Some(pause) = self.next_pause() {
            tokio::time::sleep(pause).await;
            let mut headers = self.headers.clone();
            headers.insert("last-event-id", last_id.clone());
            match link.get(headers, None).await {
                Ok(response) => {
                    (self.failures, self.busy, self.retry_after) = (0, 0, None);
                    self.empty += 1;
                    return response;
                }
                Err(LinkError::NotSent(_) | LinkError::Lost(_)) => self.failures += 1,
                Err(LinkError::Busy { retry_after, .. }) => {
                    self.busy += 1;
                    self.retry_after = retry_after;
                }
                Err(LinkError::Final(_)) => return None,
            }
        }
        None
    }

    /// The pause before the next attempt. `None`: give up.
    fn next_pause(&self) -> Option<Duration> {
        let attempts = self.failures.max(self.busy).max(self.empty);
        let is_exhausted = self.failures >= FAILURES_MAX
            || self.busy >= BUSY_MAX
            || self.empty >= EMPTY_MAX
            || self.retry_after > Some(RETRY_AFTER_MAX);
        if is_exhausted {
            return None;
        }
        let pause = match self.pause {
            Some(pause) if attempts == 0 => pause,
            pause => backoff(attempts + 1).max(pause.unwrap_or_default()),
        };
        let retry_after = self.retry_after.unwrap_or_default();
        Some(pause.max(retry_after).max(RESUME_PAUSE_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::events::EventParser;

    #[test]
    fn empty_streams_back_off_and_are_given_up() {
        let mut resume = StreamResumption::new(HeaderMap::new());
        resume.record(&EventParser::default().push(b"id: 1\nretry: 10\n\n")[0]);
        assert_eq!(resume.next_pause(), Some(RESUME_PAUSE_MIN));
        resume.empty = 10;
        assert!(resume.next_pause() > Some(Duration::from_secs(1)));
        resume.empty = EMPTY_MAX;
        assert_eq!(resume.next_pause(), None);
        resume.record(&EventParser::default().push(b"id: 2\n\n")[0]);
        assert_eq!(resume.next_pause(), Some(RESUME_PAUSE_MIN));
    }

    #[test]
    fn busy_server_is_retried_after_its_pause_and_given_up() {
        let mut resume = StreamResumption::new(HeaderMap::new());
        resume.record(&EventParser::default().push(b"id: 1\nretry: 10\n\n")[0]);
        resume.busy = BUSY_MAX - 1;
        resume.retry_after = Some(Duration::from_secs(30));
        assert_eq!(resume.next_pause(), Some(Duration::from_secs(30)));
        resume.retry_after = Some(RETRY_AFTER_MAX + Duration::from_secs(1));
        assert_eq!(resume.next_pause(), None);
        resume.retry_after = None;
        resume.busy = BUSY_MAX;
        assert_eq!(resume.next_pause(), None);
        resume.record(&EventParser::default().push(b"id: 2\n\n")[0]);
        assert_eq!(resume.next_pause(), Some(RESUME_PAUSE_MIN));
    }

    #[test]
    fn resumption_uses_the_last_id_and_the_last_pause() {
        let mut resume = StreamResumption::new(HeaderMap::new());
        resume.failures = 3;
        for event in EventParser::default().push(b"id: 1\nretry: 250\n\nid: 2\n\ndata: x\n\n") {
            resume.record(&event);
        }
        assert_eq!(resume.last_id, Some(HeaderValue::from_static("2")));
        assert_eq!(resume.pause, Some(Duration::from_millis(250)));
        assert_eq!(resume.failures, 0);
        for event in EventParser::default().push(b"id:\ndata: x\n\n") {
            resume.record(&event);
        }
        assert_eq!(resume.last_id, None);
    }
}
