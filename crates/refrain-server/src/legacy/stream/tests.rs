use super::*;
use crate::legacy::session::tests::open as session;
use crate::legacy::streams::{ResumeError, STREAMS};
use crate::limits::ServerLimits;
use crate::server::Server;

/// A server that keeps this many bytes of one stream, and of all.
fn server(resume_bytes: usize, resume_bytes_all: usize) -> Server {
    let limits = ServerLimits {
        resume_bytes,
        resume_bytes_all,
        resume_time: Duration::from_secs(3600),
        ..ServerLimits::default()
    };
    let builder = Server::builder("legacy", "1").limits(limits);
    builder.build().expect("a usable server")
}

fn read_all(mut reader: Reader) -> Vec<(MessageKind, usize)> {
    let mut cx = Context::from_waker(Waker::noop());
    let next = || match reader.poll_next(&mut cx) {
        Poll::Ready(next) => next.map(|(sent, message)| (sent, message.len())),
        Poll::Pending => None,
    };
    std::iter::from_fn(next).collect()
}

fn after(stream: &Stream, place: u64) -> EventId {
    EventId {
        instance: stream.instance.clone(),
        stream: stream.number,
        place,
        purpose: None,
    }
}

#[test]
fn a_talkative_call_keeps_its_reply_within_reach() {
    let server = server(300, usize::MAX);
    let (streams, session) = (&server.0.legacy.streams, session(&server));
    let stream = streams.begin(&session, None);
    streams.push(&stream, MessageKind::Ask, vec![0; 10]);
    for _ in 0..20 {
        streams.push(&stream, MessageKind::Notification, vec![0; 100]);
    }
    streams.push(&stream, MessageKind::Reply, vec![0; 50]);
    // Nobody has read any of it.
    let reader = streams
        .resume(&session, &after(&stream, 0))
        .expect("it is there");
    let read = [
        (MessageKind::Ask, 10),
        (MessageKind::Notification, 100),
        (MessageKind::Notification, 100),
        (MessageKind::Reply, 50),
    ];
    assert_eq!(read_all(reader), read);
    // What was read is thrown away first, and an ask that is no longer there is lost.
    streams.push(&stream, MessageKind::Notification, vec![0; 250]);
    assert_eq!(
        streams
            .resume(&session, &after(&stream, 0))
            .map(read_all)
            .err(),
        Some(ResumeError::Gone)
    );
    let reader = streams
        .resume(&session, &after(&stream, 22))
        .expect("it is there");
    assert_eq!(read_all(reader), [(MessageKind::Notification, 250)]);
}

#[tokio::test]
async fn what_was_only_looked_at_is_not_thrown_away() {
    // Without room for the stream, and without room for all of them.
    for (room, all) in [(0, usize::MAX), (usize::MAX, 0)] {
        let server = server(room, all);
        let (streams, session) = (&server.0.legacy.streams, session(&server));
        let stream = streams.begin(&session, None);
        let reader = stream.read();
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
fn whoever_comes_back_is_given_all_that_another_had_read() {
    let asks: Vec<(MessageKind, usize)> =
        (1..=900).map(|bytes| (MessageKind::Ask, bytes)).collect();
    // More events than are kept, and more bytes.
    for (room, size, more) in [(usize::MAX, 1, EVENTS), (1024 * 1024, 1024 * 1024, 1)] {
        let server = server(room, usize::MAX);
        let (streams, session) = (&server.0.legacy.streams, session(&server));
        let stream = streams.begin(&session, None);
        for (sent, bytes) in &asks {
            streams.push(&stream, *sent, vec![0; *bytes]);
        }
        assert_eq!(read_all(stream.read()), asks);
        let again = streams.resume(&session, &after(&stream, 3));
        let again = again.expect("it is there");
        for _ in 0..more {
            streams.push(&stream, MessageKind::Notification, vec![0; size]);
        }
        streams.push(&stream, MessageKind::Reply, vec![0; 50]);
        let mut read = read_all(again);
        read.retain(|(sent, _)| *sent != MessageKind::Notification);
        assert_eq!(read.pop(), Some((MessageKind::Reply, 50)));
        assert_eq!(read, asks[3..]);
    }
}

#[test]
fn the_oldest_streams_that_are_over_make_room_for_others() {
    let server = server(usize::MAX, 1000);
    let (streams, session) = (&server.0.legacy.streams, session(&server));
    let begin = || {
        let stream = streams.begin(&session, None);
        streams.push(&stream, MessageKind::Reply, vec![0; 300]);
        stream
    };
    let all = [begin(), begin(), begin()];
    streams.finish(&all[1]);
    streams.finish(&all[0]);
    let reads = |stream: &Stream| streams.resume(&session, &after(stream, 0)).is_ok();
    assert_eq!(all.each_ref().map(|stream| reads(stream)), [true; 3]);
    let more = begin();
    assert_eq!(
        all.each_ref().map(|stream| reads(stream)),
        [false, true, true]
    );
    // Of those that go on, the one that says more does without its notes.
    streams.push(&more, MessageKind::Notification, vec![0; 500]);
    assert_eq!(
        all.each_ref().map(|stream| reads(stream)),
        [false, false, true]
    );
    let reader = streams
        .resume(&session, &after(&more, 0))
        .expect("it is there");
    assert_eq!(read_all(reader), [(MessageKind::Reply, 300)]);
    for stream in [&all[2], &more] {
        streams.forget(stream);
    }
    assert_eq!(streams.kept.load(Ordering::Relaxed), 0);
}

#[test]
fn there_are_only_so_many_streams() {
    let server = server(1, usize::MAX);
    let (streams, session) = (&server.0.legacy.streams, session(&server));
    let all: Vec<_> = (0..STREAMS + 2)
        .map(|_| streams.begin(&session, None))
        .collect();
    for stream in &all {
        streams.finish(stream);
    }
    let there = streams.open.lock().streams.len();
    assert_eq!(there, STREAMS);
    assert!(streams.resume(&session, &after(&all[1], 0)).is_err());
    assert!(streams.resume(&session, &after(&all[2], 0)).is_ok());
}

#[tokio::test]
async fn nothing_is_left_of_a_stream_that_is_forgotten() {
    let server = server(100, usize::MAX);
    let legacy = &server.0.legacy;
    let stream = legacy.streams.begin(&session(&server), None);
    let left = Arc::downgrade(&stream);
    let ending = {
        let (legacy, stream) = (legacy.clone(), stream.clone());
        tokio::spawn(async move { legacy.end_stream(&stream).await })
    };
    tokio::task::yield_now().await;
    assert!(!ending.is_finished());
    legacy.streams.forget(&stream);
    drop(stream);
    let ended = tokio::time::timeout(Duration::from_secs(60), ending).await;
    ended.expect("it ends at once").expect("it does not panic");
    assert!(left.upgrade().is_none());
}
