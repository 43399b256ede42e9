//! A GET with `Last-Event-ID`: the rest of a stream that broke.
//!
//! Relayed to the holder of the session before it comes here, unless this instance has the stream.
//!
//! | the stream | of a call | of the session |
//! | --- | --- | --- |
//! | is kept here | goes on after that event | goes on after that event |
//! | is no longer kept here | 400 | begins anew, unless another is read |
//! | was at the holder, which is gone | an error as the reply: the call is lost | begins anew here |
//! | is at another instance | 503 | begins anew here |

use super::{Body, Busy, HttpService, drive_all};
use crate::auth::Caller;
use crate::legacy::{EventId, HELD_ELSEWHERE, Lost, Purpose, Session, lost_call};
use crate::metrics::Refusal;
use crate::record;
use crate::response::MessageKind;
use http::{Response, StatusCode};
use refrain_wire::RpcError;
use refrain_wire::legacy;

impl HttpService {
    /// The rest of a stream that broke.
    pub(super) fn resume(
        &self,
        session: &Session,
        after: Option<EventId>,
        caller: Caller,
        busy: Option<Busy>,
    ) -> Response<Body> {
        let Some(after) = after else {
            let why = "the Last-Event-ID header is not one that this server gave out";
            return self.refuse_resuming(why);
        };
        let streams = &self.server.0.legacy.streams;
        let lost = match streams.resume(session, &after) {
            Ok(reader) => return self.stream_older(reader, session.revision, busy),
            Err(lost) => lost,
        };
        match (after.purpose(), lost) {
            // Each would take the place of the other, for ever.
            (Some(Purpose::Listening), Lost::Gone) if streams.is_heard(session) => self
                .refuse_resuming("another stream of this session has taken the place of this one"),
            (Some(Purpose::Listening), _) => self.listen_older(session, caller, busy),
            (Some(Purpose::Call(id)), Lost::Elsewhere) if self.is_lost(session, &after) => {
                self.report_lost(session, &id, busy)
            }
            (None | Some(Purpose::Call(_)), Lost::Elsewhere) => {
                self.server.0.metrics.request_refused(Refusal::Elsewhere);
                self.busy(None, &RpcError::internal(HELD_ELSEWHERE))
            }
            (None | Some(Purpose::Call(_)), Lost::Gone) => self.refuse_resuming(
                "the stream of this event is no longer kept; what came after it is lost",
            ),
        }
    }

    /// Is the stream of this event lost with the holder of the session? A holder with a URL that could be reached has been
    /// sent the request.
    fn is_lost(&self, session: &Session, after: &EventId) -> bool {
        let (holder, relay) = (&session.holder, &self.server.0.relay);
        holder.url.is_some() && !relay.is_own(holder) && after.instance == holder.id()
    }

    /// The end of a call whose instance is gone.
    fn report_lost(&self, session: &Session, id: &str, busy: Option<Busy>) -> Response<Body> {
        let mut message = Vec::with_capacity(256);
        legacy::write_error(&mut message, Some(id), &lost_call());
        record::sent_older(session.revision, "", &message);
        let stream = self.begin_stream(session, None);
        let reader = stream.read();
        let streams = &self.server.0.legacy.streams;
        streams.push(&stream, MessageKind::Reply, message);
        let driving = drive_all(self.server.clone(), session.clone(), Vec::new(), stream);
        tokio::spawn(driving);
        self.stream_older(reader, session.revision, busy)
    }

    fn refuse_resuming(&self, why: &'static str) -> Response<Body> {
        let error = RpcError::invalid_request(why);
        let status = StatusCode::BAD_REQUEST;
        self.refuse(Refusal::InvalidRequest, status, None, &error)
    }
}
