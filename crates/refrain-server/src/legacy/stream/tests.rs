//! Tests of the streams of legacy sessions.

use super::*;
use crate::legacy::session::tests::open as session;
use crate::legacy::streams::{MAX_STREAMS, MAX_STREAMS_EACH, StreamResumeError};
use crate::limits::ServerLimits;
use crate::server::Server;
use std::net::Ipv4Addr;

fn caller() -> LimitKey {
    LimitKey::Anonymous
}

/// A server with these limits for one stream and for all streams.
fn server(resume_bytes: usize, resume_bytes_all: usize) -> Server {
    server_with(ServerLimits {
        resume_bytes,
        resume_bytes_all,
        resume_bytes_each: usize::MAX,
        ..ServerLimits::default()
    })
}

fn server_with(limits: ServerLimits) -> Server {
    let limits = ServerLimits {
        resume_time: Duration::from_secs(3600),
        ..limits
    };
    let builder = Server::builder("legacy", "1").limits(limits);
    builder.build().expect("a valid server")
}

fn read_all(mut reader: StreamReader) -> Vec<(MessageKind, usize)> {
    let mut cx = Context::from_waker(Waker::noop());
    let next = || match reader.poll_next(&mut cx) {
        Poll::Ready(next) => next.map(|(kind, message)| (kind, message.len())),
        Poll::Pending => None,
    };
    std::iter::from_fn(next).collect()
}

fn after(stream: &Stream, sequence: u64) -> EventId {
    EventId {
        instance: stream.instance.clone(),
        stream: stream.number,
        sequence,
        purpose: None,
    }
}

#[test]
fn unread_asks_and_replies_survive_many_notifications() {
    let server = server(300, usize::MAX);
    let (streams, session) = (&server.0.legacy.streams, session(&server));
    let stream = streams.open_stream(&session, caller(), None);
    streams.push(&stream, MessageKind::Ask, vec![0; 10]);
    for _ in 0..20 {
        streams.push(&stream, MessageKind::Notification, vec![0; 100]);
    }
    streams.push(&stream, MessageKind::Reply, vec![0; 50]);
    // No event was read yet.
    let reader = streams
        .resume(&session, &after(&stream, 0))
        .expect("stored stream");
    let read = [
        (MessageKind::Ask, 10),
        (MessageKind::Notification, 100),
        (MessageKind::Notification, 100),
        (MessageKind::Reply, 50),
    ];
    assert_eq!(read_all(reader), read);
    // Read events are dropped first; the dropped ask makes the start unavailable.
    streams.push(&stream, MessageKind::Notification, vec![0; 250]);
    assert_eq!(
        streams
            .resume(&session, &after(&stream, 0))
            .map(read_all)
            .err(),
        Some(StreamResumeError::Gone)
    );
    let reader = streams
        .resume(&session, &after(&stream, 22))
        .expect("stored stream");
    assert_eq!(read_all(reader), [(MessageKind::Notification, 250)]);
}

#[tokio::test]
async fn peeked_messages_are_not_dropped() {
    // The limit of one stream, then the limit of all streams.
    for (limit, total) in [(0, usize::MAX), (usize::MAX, 0)] {
        let server = server(limit, total);
        let (streams, session) = (&server.0.legacy.streams, session(&server));
        let stream = streams.open_stream(&session, caller(), None);
        let reader = stream.reader();
        streams.push(&stream, MessageKind::Ask, vec![0; 10]);
        let first = reader.peek().await.expect("an ask");
        assert_eq!((first.0, first.1.len()), (MessageKind::Ask, 10));
        streams.push(&stream, MessageKind::Ask, vec![0; 20]);
        streams.push(&stream, MessageKind::Reply, vec![0; 30]);
        let read = [
            (MessageKind::Ask, 10),
            (MessageKind::Ask, 20),
            (MessageKind::Reply, 30),
        ];
        assert_eq!(read_all(reader), read);
    }
}

#[test]
fn resumed_reader_gets_events_that_another_has_read() {
    let asks: Vec<(MessageKind, usize)> =
        (1..=900).map(|bytes| (MessageKind::Ask, bytes)).collect();
    // Exceeds the limit of events, then the limit of bytes.
    for (limit, size, more) in [(usize::MAX, 1, MAX_EVENTS), (1024 * 1024, 1024 * 1024, 1)] {
        let server = server(limit, usize::MAX);
        let (streams, session) = (&server.0.legacy.streams, session(&server));
        let stream = streams.open_stream(&session, caller(), None);
        for (kind, bytes) in &asks {
            streams.push(&stream, *kind, vec![0; *bytes]);
        }
        assert_eq!(read_all(stream.reader()), asks);
        let resumed = streams.resume(&session, &after(&stream, 3));
        let resumed = resumed.expect("stored stream");
        for _ in 0..more {
            streams.push(&stream, MessageKind::Notification, vec![0; size]);
        }
        streams.push(&stream, MessageKind::Reply, vec![0; 50]);
        let mut read = read_all(resumed);
        read.retain(|(kind, _)| *kind != MessageKind::Notification);
        assert_eq!(read.pop(), Some((MessageKind::Reply, 50)));
        assert_eq!(read, asks[3..]);
    }
}

#[test]
fn ended_streams_are_evicted_in_the_order_they_were_opened() {
    let server = server(usize::MAX, 1000);
    let (streams, session) = (&server.0.legacy.streams, session(&server));
    let open = || {
        let stream = streams.open_stream(&session, caller(), None);
        streams.push(&stream, MessageKind::Reply, vec![0; 300]);
        stream
    };
    let all = [open(), open(), open()];
    streams.end(&all[1]);
    streams.end(&all[0]);
    let can_resume = |stream: &Stream| streams.resume(&session, &after(stream, 0)).is_ok();
    assert_eq!(all.each_ref().map(|stream| can_resume(stream)), [true; 3]);
    let more = open();
    assert_eq!(
        all.each_ref().map(|stream| can_resume(stream)),
        [false, true, true]
    );
    // Evicts the last ended stream. That is not enough, so the growing stream drops its notification.
    streams.push(&more, MessageKind::Notification, vec![0; 500]);
    assert_eq!(
        all.each_ref().map(|stream| can_resume(stream)),
        [false, false, true]
    );
    let reader = streams
        .resume(&session, &after(&more, 0))
        .expect("stored stream");
    assert_eq!(read_all(reader), [(MessageKind::Reply, 300)]);
    for stream in [&all[2], &more] {
        streams.forget(stream);
    }
    assert_eq!(streams.stored_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn streams_of_one_caller_do_not_evict_those_of_others() {
    let server = server_with(ServerLimits {
        resume_bytes_each: 1000,
        ..ServerLimits::default()
    });
    let (streams, session) = (&server.0.legacy.streams, session(&server));
    let open = |address: u8| {
        let caller = LimitKey::address([127, 0, 0, address].into());
        let stream = streams.open_stream(&session, caller, None);
        streams.push(&stream, MessageKind::Reply, vec![0; 400]);
        streams.end(&stream);
        stream
    };
    let other = open(1);
    let own = [open(2), open(2), open(2), open(2)];
    let can_resume = |stream: &Stream| streams.resume(&session, &after(stream, 0)).is_ok();
    assert_eq!(
        own.each_ref().map(|stream| can_resume(stream)),
        [false, false, true, true]
    );
    assert!(can_resume(&other));
    // The number of streams is limited, too.
    for _ in 0..MAX_STREAMS_EACH {
        let caller = LimitKey::address([127, 0, 0, 2].into());
        streams.end(&streams.open_stream(&session, caller, None));
    }
    assert!(!can_resume(&own[3]) && can_resume(&other));
    let stored = streams.open.lock().streams.len();
    assert_eq!(stored, MAX_STREAMS_EACH + 1);
}

#[test]
fn oldest_unread_replies_of_a_batch_are_dropped_at_the_limit_of_the_caller() {
    let server = server_with(ServerLimits {
        resume_bytes_each: 1000,
        ..ServerLimits::default()
    });
    let (streams, session) = (&server.0.legacy.streams, session(&server));
    let batch = streams.open_stream(&session, caller(), None);
    let reader = batch.reader();
    for _ in 0..10 {
        streams.push(&batch, MessageKind::Reply, vec![0; 400]);
    }
    assert_eq!(streams.stored_bytes.load(Ordering::Relaxed), 800);
    assert_eq!(read_all(reader), [], "the stream ends at the gap");
    // The only reply of a call is never cut.
    let purpose = server.0.legacy.purpose_of_call(&session, "1");
    let stream = streams.open_stream(&session, caller(), Some(&purpose));
    let reader = stream.reader();
    streams.push(&stream, MessageKind::Reply, vec![0; 2000]);
    streams.end(&stream);
    assert_eq!(read_all(reader), [(MessageKind::Reply, 2000)]);
}

#[test]
fn number_of_ended_streams_is_limited() {
    let server = server(1, usize::MAX);
    let (streams, session) = (&server.0.legacy.streams, session(&server));
    let callers = (0..MAX_STREAMS + 2).map(|number| {
        let address = Ipv4Addr::from_bits((number / MAX_STREAMS_EACH) as u32);
        LimitKey::address(address.into())
    });
    let all: Vec<_> = callers
        .map(|caller| streams.open_stream(&session, caller, None))
        .collect();
    for stream in &all {
        streams.end(stream);
    }
    let stored = streams.open.lock().streams.len();
    assert_eq!(stored, MAX_STREAMS);
    assert!(streams.resume(&session, &after(&all[1], 0)).is_err());
    assert!(streams.resume(&session, &after(&all[2], 0)).is_ok());
}

#[tokio::test]
async fn removed_stream_is_freed() {
    let server = server(100, usize::MAX);
    let legacy = &server.0.legacy;
    let stream = legacy
        .streams
        .open_stream(&session(&server), caller(), None);
    let weak = Arc::downgrade(&stream);
    let ending = {
        let (legacy, stream) = (legacy.clone(), stream.clone());
        tokio::spawn(async move { legacy.end_stream(&stream).await })
    };
    tokio::task::yield_now().await;
    assert!(!ending.is_finished());
    legacy.streams.forget(&stream);
    drop(stream);
    let ended = tokio::time::timeout(Duration::from_secs(60), ending).await;
    ended.expect("no timeout").expect("no panic");
    assert!(weak.upgrade().is_none());
}
