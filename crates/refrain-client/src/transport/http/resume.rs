//! Resuming event streams of legacy servers.

use super::HttpLink;
use crate::retry::{RETRY_AFTER_MAX, backoff};
use crate::transport::LinkError;
use crate::transport::events::Event;
use http::{HeaderMap, HeaderValue};
use std::time::Duration;

/// How often in a row the server may be unreachable.
const FAILURES_MAX: u32 = 5;
/// How often in a row the server may be busy. In a fleet, instances without the stream answer so.
const BUSY_MAX: u32 = 20;
/// How often in a row a resumed stream may bring nothing.
const EMPTY_MAX: u32 = 100;
const RESUME_PAUSE_MIN: Duration = Duration::from_millis(50);

/// The position in a stream, and the attempts to resume it since the last event.
#[derive(Default)]
pub(super) struct Resume {
    headers: HeaderMap,
    after: Option<HeaderValue>,
    /// The pause that the server asked for with `retry`.
    pause: Option<Duration>,
    failures: u32,
    busy: u32,
    retry_after: Option<Duration>,
    empty: u32,
}

impl Resume {
    pub(super) fn new(headers: HeaderMap) -> Self {
        Self {
            headers,
            ..Self::default()
        }
    }

    pub(super) fn seen(&mut self, event: &Event) {
        let (after, pause) = (self.after.take(), self.pause);
        *self = Self {
            after: match &event.id {
                // An empty id resets the position.
                Some(id) => HeaderValue::from_str(id).ok().filter(|id| !id.is_empty()),
                None => after,
            },
            pause: event.retry.map(Duration::from_millis).or(pause),
            ..Self::new(std::mem::take(&mut self.headers))
        };
    }

    /// The rest of the stream, if the server has it.
    pub(super) async fn reopen(&mut self, link: &HttpLink) -> Option<reqwest::Response> {
        let after = self.after.clone()?;
        while let Some(pause) = self.next_pause() {
            tokio::time::sleep(pause).await;
            let mut headers = self.headers.clone();
            headers.insert("last-event-id", after.clone());
            match link.get(headers).await {
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

    /// The pause before the next attempt, or `None` after too many.
    fn next_pause(&self) -> Option<Duration> {
        let times = self.failures.max(self.busy).max(self.empty);
        let is_enough = self.failures >= FAILURES_MAX
            || self.busy >= BUSY_MAX
            || self.empty >= EMPTY_MAX
            || self.retry_after > Some(RETRY_AFTER_MAX);
        if is_enough {
            return None;
        }
        let pause = match self.pause {
            Some(pause) if times == 0 => pause,
            pause => backoff(times + 1).max(pause.unwrap_or_default()),
        };
        let retry_after = self.retry_after.unwrap_or_default();
        Some(pause.max(retry_after).max(RESUME_PAUSE_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::events::Events;

    #[test]
    fn a_stream_that_brings_nothing_goes_on_ever_more_slowly_and_not_for_ever() {
        let mut resume = Resume::new(HeaderMap::new());
        resume.seen(&Events::default().push(b"id: 1\nretry: 10\n\n")[0]);
        assert_eq!(resume.next_pause(), Some(RESUME_PAUSE_MIN));
        resume.empty = 10;
        assert!(resume.next_pause() > Some(Duration::from_secs(1)));
        resume.empty = EMPTY_MAX;
        assert_eq!(resume.next_pause(), None);
        resume.seen(&Events::default().push(b"id: 2\n\n")[0]);
        assert_eq!(resume.next_pause(), Some(RESUME_PAUSE_MIN));
    }

    #[test]
    fn a_server_that_cannot_go_on_now_is_asked_again_when_it_says_and_not_for_ever() {
        let mut resume = Resume::new(HeaderMap::new());
        resume.seen(&Events::default().push(b"id: 1\nretry: 10\n\n")[0]);
        resume.busy = BUSY_MAX - 1;
        resume.retry_after = Some(Duration::from_secs(30));
        assert_eq!(resume.next_pause(), Some(Duration::from_secs(30)));
        resume.retry_after = Some(RETRY_AFTER_MAX + Duration::from_secs(1));
        assert_eq!(resume.next_pause(), None);
        resume.retry_after = None;
        resume.busy = BUSY_MAX;
        assert_eq!(resume.next_pause(), None);
        resume.seen(&Events::default().push(b"id: 2\n\n")[0]);
        assert_eq!(resume.next_pause(), Some(RESUME_PAUSE_MIN));
    }

    #[test]
    fn a_stream_goes_on_after_the_last_id_and_the_last_pause() {
        let mut resume = Resume::new(HeaderMap::new());
        resume.failures = 3;
        for event in Events::default().push(b"id: 1\nretry: 250\n\nid: 2\n\ndata: x\n\n") {
            resume.seen(&event);
        }
        assert_eq!(resume.after, Some(HeaderValue::from_static("2")));
        assert_eq!(resume.pause, Some(Duration::from_millis(250)));
        assert_eq!(resume.failures, 0);
        for event in Events::default().push(b"id:\ndata: x\n\n") {
            resume.seen(&event);
        }
        assert_eq!(resume.after, None);
    }
}
