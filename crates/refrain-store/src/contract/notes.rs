//! Notes about sessions.

use super::support::{HOUR, wait_for_noted};
use crate::Store;
use std::sync::Arc;
use std::time::Duration;

async fn note(store: &dyn Store, session: &str, name: &str, value: &[u8], keep: Duration) {
    let noted = store.note(session, name, value.to_vec(), keep).await;
    noted.expect("the store answers");
}

async fn notes(store: &dyn Store, session: &str) -> Vec<(String, Vec<u8>)> {
    store.notes(session).await.expect("the store answers")
}

fn pair(name: &str, value: &[u8]) -> (String, Vec<u8>) {
    (name.to_owned(), value.to_vec())
}

pub(super) async fn a_note_is_found_until_it_is_taken_back(store: Arc<dyn Store>) {
    assert_eq!(notes(&*store, "s").await, []);
    note(&*store, "s", "level", b"info", HOUR).await;
    note(&*store, "s", "answer \u{1f980} \0", &[0, 255, b'x'], HOUR).await;
    note(&*store, "s", "empty", b"", HOUR).await;
    let all = [
        pair("answer \u{1f980} \0", &[0, 255, b'x']),
        pair("empty", b""),
        pair("level", b"info"),
    ];
    assert_eq!(notes(&*store, "s").await, all);
    assert_eq!(store.take_note("s", "empty").await, Ok(true));
    assert_eq!(store.take_note("s", "empty").await, Ok(false));
    let left = [all[0].clone(), all[2].clone()];
    assert_eq!(notes(&*store, "s").await, left);
}

pub(super) async fn a_later_note_takes_the_place_of_an_earlier_one(store: Arc<dyn Store>) {
    note(&*store, "s", "level", b"info", HOUR).await;
    note(&*store, "s", "level", b"debug", HOUR).await;
    assert_eq!(notes(&*store, "s").await, [pair("level", b"debug")]);
}

pub(super) async fn notes_of_other_sessions_are_not_there(store: Arc<dyn Store>) {
    for session in ["s", "s2", "S", "r"] {
        note(&*store, session, "of", session.as_bytes(), HOUR).await;
    }
    for session in ["s", "s2", "S", "r"] {
        let own = [pair("of", session.as_bytes())];
        assert_eq!(notes(&*store, session).await, own);
    }
    assert_eq!(store.take_note("s", "of").await, Ok(true));
    assert_eq!(notes(&*store, "s2").await, [pair("of", b"s2")]);
}

pub(super) async fn a_note_ends_with_its_time(store: Arc<dyn Store>) {
    note(&*store, "s", "short", b"1", Duration::ZERO).await;
    note(&*store, "s", "long", b"2", Duration::MAX).await;
    assert_eq!(notes(&*store, "s").await, [pair("long", b"2")]);
    assert_eq!(store.take_note("s", "short").await, Ok(false));
    for round in 0..40 {
        let name = format!("short {round}");
        note(&*store, "s", &name, b"1", Duration::ZERO).await;
    }
    assert_eq!(notes(&*store, "s").await, [pair("long", b"2")]);
}

pub(super) async fn a_note_is_taken_once(store: Arc<dyn Store>) {
    note(&*store, "s", "answer", b"1", HOUR).await;
    let takers = (0..8).map(|_| {
        let store = store.clone();
        tokio::spawn(async move { store.take_note("s", "answer").await })
    });
    let takers: Vec<_> = takers.collect();
    let mut taken = 0;
    for taker in takers {
        if taker.await.expect("no taker panics") == Ok(true) {
            taken += 1;
        }
    }
    assert_eq!(taken, 1);
}

pub(super) async fn it_is_told_that_something_was_noted(store: Arc<dyn Store>) {
    let mut noted = store.noted();
    note(&*store, "s", "level", b"info", HOUR).await;
    wait_for_noted(&mut noted, "s").await;
    assert_eq!(store.take_note("s", "level").await, Ok(true));
    wait_for_noted(&mut noted, "s").await;
}
