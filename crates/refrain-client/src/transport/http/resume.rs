//! Streams of older servers that break, or are closed for a while, and go on.

use super::HttpLink;
use crate::retry::{LONGEST_WISH, backoff};
use crate::transport::LinkError;
use crate::transport::events::Event;
use http::{HeaderMap, HeaderValue};
use std::time::Duration;

/// How often, one time after the other, a server may be out of reach when a stream is to go on.
const RESUMES_MAX: u32 = 5;
/// How often, one time after the other, a server may say that it cannot go on now. In a fleet, that is what the
/// instances say that do not have the stream.
const BUSY_MAX: u32 = 20;
/// How often, one time after the other, a stream that goes on may bring nothing.
const EMPTY_MAX: u32 = 100;
/// The shortest pause before a stream goes on.
const RESUME_PAUSE: Duration = Duration::from_millis(50);

/// How to go on with a stream that broke.
pub(super) struct Resume {
    headers: HeaderMap,
    /// The last event that was seen.
    after: Option<HeaderValue>,
    /// How long the server wants to be left alone before.
    pause: Option<Duration>,
    /// How often it could not be reached, one time after the other.
    failures: u32,
    /// How often it could not go on at the time, one time after the other.
    busy: u32,
    /// How long it then wanted to be left alone.
    wish: Option<Duration>,
    /// How often it went on, one time after the other, and brought nothing.
    empty: u32,
}

impl Resume {
    pub(super) fn new(headers: HeaderMap) -> Self {
        Self {
            headers,
            after: None,
            pause: None,
            failures: 0,
            busy: 0,
            wish: None,
            empty: 0,
        }
    }

    pub(super) fn seen(&mut self, event: &Event) {
        self.failures = 0;
        self.busy = 0;
        self.wish = None;
        self.empty = 0;
        if let Some(id) = &event.id {
            // An empty id takes back the one before.
            self.after = HeaderValue::from_str(id).ok().filter(|id| !id.is_empty());
        }
        if let Some(pause) = event.retry {
            self.pause = Some(Duration::from_millis(pause));
        }
    }

    /// The rest of the stream, if the server has it.
    pub(super) async fn go_on(&mut self, link: &HttpLink) -> Option<reqwest::Response> {
        let after = self.after.clone()?;
        while let Some(pause) = self.next_pause() {
            tokio::time::sleep(pause).await;
            let mut headers = self.headers.clone();
            headers.insert("last-event-id", after.clone());
            match link.get(headers).await {
                Ok(response) => {
                    self.failures = 0;
                    self.busy = 0;
                    self.wish = None;
                    self.empty += 1;
                    return response;
                }
                Err(LinkError::NotSent(_) | LinkError::Lost(_)) => self.failures += 1,
                Err(LinkError::Busy { retry_after, .. }) => {
                    self.busy += 1;
                    self.wish = retry_after;
                }
                Err(LinkError::Final(_)) => return None,
            }
        }
        None
    }

    /// How long to wait before it goes on: longer each time until it brings something, and not for ever.
    fn next_pause(&self) -> Option<Duration> {
        let times = self.failures.max(self.busy).max(self.empty);
        let is_enough = self.failures >= RESUMES_MAX
            || self.busy >= BUSY_MAX
            || self.empty >= EMPTY_MAX
            || self.wish > Some(LONGEST_WISH);
        if is_enough {
            return None;
        }
        let pause = match self.pause {
            Some(pause) if times == 0 => pause,
            pause => backoff(times + 1).max(pause.unwrap_or_default()),
        };
        let wish = self.wish.unwrap_or_default();
        Some(pause.max(wish).max(RESUME_PAUSE))
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
        assert_eq!(resume.next_pause(), Some(RESUME_PAUSE));
        resume.empty = 10;
        assert!(resume.next_pause() > Some(Duration::from_secs(1)));
        resume.empty = EMPTY_MAX;
        assert_eq!(resume.next_pause(), None);
        resume.seen(&Events::default().push(b"id: 2\n\n")[0]);
        assert_eq!(resume.next_pause(), Some(RESUME_PAUSE));
    }

    #[test]
    fn a_server_that_cannot_go_on_now_is_asked_again_when_it_says_and_not_for_ever() {
        let mut resume = Resume::new(HeaderMap::new());
        resume.seen(&Events::default().push(b"id: 1\nretry: 10\n\n")[0]);
        resume.busy = BUSY_MAX - 1;
        resume.wish = Some(Duration::from_secs(30));
        assert_eq!(resume.next_pause(), Some(Duration::from_secs(30)));
        resume.wish = Some(LONGEST_WISH + Duration::from_secs(1));
        assert_eq!(resume.next_pause(), None);
        resume.wish = None;
        resume.busy = BUSY_MAX;
        assert_eq!(resume.next_pause(), None);
        resume.seen(&Events::default().push(b"id: 2\n\n")[0]);
        assert_eq!(resume.next_pause(), Some(RESUME_PAUSE));
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
