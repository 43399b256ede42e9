//! A GET with `Last-Event-ID`: the rest of a stream that broke.
//!
//! | the stream | of a call | to listen on |
//! | --- | --- | --- |
//! | is kept here | goes on after that event | goes on after that event |
//! | is no longer kept here | 400 | begins anew, unless another is read |
//! | is at another instance | 503 | begins anew here |
//! | was at an instance that has ended | the call is told to be lost | begins anew here |

use super::{Body, Busy, HttpService, drive_all};
use crate::auth::Caller;
use crate::legacy::{EventId, Known, Lost, Purpose, Sent, Session, store_failed};
use crate::metrics::Refusal;
use crate::record;
use http::{HeaderValue, Response, StatusCode};
use refrain_wire::{RpcError, write_older_error};

impl HttpService {
    /// The rest of a stream that broke. Whoever listened, and cannot be told what it missed, listens anew; whoever called is
    /// told if the call is lost.
    pub(super) async fn resume(
        &self,
        (session, known): (Session, Known),
        last: &HeaderValue,
        caller: Caller,
        busy: Busy,
    ) -> Response<Body> {
        let Some(after) = last.to_str().ok().and_then(EventId::parse) else {
            let why = "the Last-Event-ID header is not one that this server gave out";
            return self.refuse_resuming(why);
        };
        let streams = &self.server.0.legacy.streams;
        let lost = match streams.resume(&session, &after) {
            Ok(reader) => return self.stream_older(reader, session.revision, busy),
            Err(lost) => lost,
        };
        match (self.server.purpose(&session, &after), lost) {
            // It would take the place of the one that took its own, and so on for ever.
            (Some(Purpose::Listening), Lost::Gone) if streams.is_heard(&session) => self
                .refuse_resuming("another stream of this session has taken the place of this one"),
            (Some(Purpose::Listening), _) => self.listen_older(&session, &known, caller, busy),
            (Some(Purpose::Call(id)), Lost::Elsewhere) => {
                match self.server.has_ended(&after.instance).await {
                    Ok(true) => self.tell_of_loss(&session, &id, busy),
                    Ok(false) => self.resume_elsewhere(),
                    Err(error) => self.busy(None, &store_failed(&error)),
                }
            }
            (None, Lost::Elsewhere) => self.resume_elsewhere(),
            (None | Some(Purpose::Call(_)), Lost::Gone) => self.refuse_resuming(
                "the stream of this event is no longer kept; what came after it is lost",
            ),
        }
    }

    fn resume_elsewhere(&self) -> Response<Body> {
        let why = "another instance has the stream of this event, or had it before it was restarted; try again, and call \
                   again if that does not help";
        self.server.0.metrics.request_refused(Refusal::Busy);
        self.busy(None, &RpcError::internal(why))
    }

    /// The end of a call whose instance has ended.
    fn tell_of_loss(&self, session: &Session, id: &str, busy: Busy) -> Response<Body> {
        let error = RpcError::call_over(
            "the call was lost with the instance that had it, which is ending, has ended or is cut off; what it did so far is \
             done; call again",
        );
        let mut message = Vec::with_capacity(256);
        write_older_error(&mut message, Some(id), &error);
        record::sent_older(session.revision, "", &message);
        let stream = self.begin_stream(session);
        let reader = stream.read();
        let streams = &self.server.0.legacy.streams;
        streams.push(&stream, Sent::Reply, message);
        tokio::spawn(drive_all(self.server.clone(), Vec::new(), stream));
        self.stream_older(reader, session.revision, busy)
    }

    fn refuse_resuming(&self, why: &'static str) -> Response<Body> {
        let error = RpcError::invalid_request(why);
        let status = StatusCode::BAD_REQUEST;
        self.refuse(Refusal::InvalidRequest, status, None, &error)
    }
}
