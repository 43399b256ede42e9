//! Streams of older servers that break, or are closed for a while, and go on.

use super::HttpLink;
use crate::client::back_off;
use crate::transport::LinkError;
use crate::transport::events::Event;
use http::{HeaderMap, HeaderValue};
use std::time::Duration;

/// How often, one time after the other, a server may be out of reach when a stream is to go on.
const RESUMES_MAX: u32 = 5;
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
}

impl Resume {
    pub(super) fn new(headers: HeaderMap) -> Self {
        Self {
            headers,
            after: None,
            pause: None,
            failures: 0,
        }
    }

    pub(super) fn seen(&mut self, event: &Event) {
        self.failures = 0;
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
        while self.failures < RESUMES_MAX {
            let pause = self.pause.unwrap_or_else(|| back_off(self.failures + 1));
            tokio::time::sleep(pause.max(RESUME_PAUSE)).await;
            let mut headers = self.headers.clone();
            headers.insert("last-event-id", after.clone());
            match link.get(headers).await {
                Ok(response) => return response,
                Err(LinkError::NotSent(_) | LinkError::Lost(_)) => self.failures += 1,
                Err(_) => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::events::Events;

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
