//! Notes about sessions.

use super::support::{HOUR, new_note, wait_for_noted};
use crate::{NewNote, Room, Store, Swept};
use std::sync::Arc;
use std::time::Duration;

async fn note(store: &dyn Store, place: &str, name: &str, value: &[u8], keep: Duration) {
    let note = new_note(place, name, value, keep);
    let noted = store.note(note).await;
    assert!(noted.expect("no error"), "there is room");
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
    assert!(store.take_note("s", "empty").await.expect("no error"));
    assert!(!store.take_note("s", "empty").await.expect("no error"));
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
    assert!(store.take_note("s", "of").await.expect("no error"));
    assert_eq!(notes(&*store, "s2").await, [pair("of", b"s2")]);
}

pub(super) async fn a_note_ends_with_its_time(store: Arc<dyn Store>) {
    note(&*store, "s", "short", b"1", Duration::ZERO).await;
    note(&*store, "s", "long", b"2", Duration::MAX).await;
    assert_eq!(notes(&*store, "s").await, [pair("long", b"2")]);
    assert!(!store.take_note("s", "short").await.expect("no error"));
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
        if matches!(taker.await, Ok(Ok(true))) {
            taken += 1;
        }
    }
    assert_eq!(taken, 1);
}

pub(super) async fn it_is_told_that_something_was_noted(store: Arc<dyn Store>) {
    let mut noted = store.noted();
    note(&*store, "s", "level", b"info", HOUR).await;
    wait_for_noted(&mut noted, "s").await;
    assert!(store.take_note("s", "level").await.expect("no error"));
    wait_for_noted(&mut noted, "s").await;
}

async fn note_in(store: &dyn Store, name: &str, value: &[u8], room: Room<'_>) -> bool {
    let note = NewNote {
        room,
        ..new_note("s", name, value, HOUR)
    };
    store.note(note).await.expect("the store answers")
}

pub(super) async fn names_are_read_without_their_values(store: Arc<dyn Store>) {
    for (place, name) in [("s", "b"), ("s", "a \0"), ("r", "a"), ("q", "a")] {
        note(&*store, place, name, b"value", HOUR).await;
    }
    note(&*store, "s", "over", b"value", Duration::ZERO).await;
    let places = ["s", "r", "none"].map(str::to_owned);
    let mut names = store.note_names(&places).await.expect("the store answers");
    names.sort_unstable();
    let name = |place: &str, name: &str| (place.to_owned(), name.to_owned());
    let wanted = [name("r", "a"), name("s", "a \0"), name("s", "b")];
    assert_eq!(names, wanted);
    assert_eq!(store.note_names(&[]).await.expect("no error"), Vec::new());
    let many: Vec<String> = (0..2000).map(|at| format!("place {at}")).collect();
    assert_eq!(store.note_names(&many).await.expect("no error"), Vec::new());
    let value = store.note_value("s", "a \0").await;
    assert_eq!(value.expect("no error"), Some(b"value".to_vec()));
    for (place, name) in [("s", "over"), ("s", "c"), ("none", "a")] {
        assert_eq!(store.note_value(place, name).await.expect("no error"), None);
    }
}

pub(super) async fn no_more_is_noted_than_there_is_room_for(store: Arc<dyn Store>) {
    let room = Room {
        prefix: "a/",
        notes: 3,
        bytes: 20,
    };
    note(&*store, "s", "b", &[0; 100], HOUR).await;
    note(&*store, "r", "a/1", &[0; 100], HOUR).await;
    note(&*store, "s", "a/over", &[0; 100], Duration::ZERO).await;
    assert!(!note_in(&*store, "a/1", &[0; 20], room).await);
    assert!(note_in(&*store, "a/1", &[0; 9], room).await);
    assert!(note_in(&*store, "a/2", &[0; 8], room).await);
    assert!(!note_in(&*store, "a/3", &[0], room).await, "no more bytes");
    assert!(
        note_in(&*store, "a/1", &[0; 10], room).await,
        "in its place"
    );
    assert!(note_in(&*store, "a/1", b"", room).await, "in its place");
    assert!(note_in(&*store, "a/\u{e4}", b"", room).await);
    assert!(!note_in(&*store, "a/4", b"", room).await, "no more notes");
    assert!(note_in(&*store, "a/4", b"", Room::ANY).await);
    let names: Vec<String> = notes(&*store, "s")
        .await
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["a/1", "a/2", "a/4", "a/\u{e4}", "b"]);
}

pub(super) async fn of_many_notes_at_once_there_is_room_for_some(store: Arc<dyn Store>) {
    let noting = (0..16).map(|at| {
        let store = store.clone();
        let room = Room {
            prefix: "",
            notes: 4,
            bytes: usize::MAX,
        };
        tokio::spawn(async move { note_in(&*store, &at.to_string(), b"1", room).await })
    });
    let noting: Vec<_> = noting.collect();
    let mut kept = 0;
    for noted in noting {
        kept += usize::from(noted.await.expect("none panics"));
    }
    assert_eq!(kept, 4);
    assert_eq!(notes(&*store, "s").await.len(), 4);
}

pub(super) async fn a_sweep_takes_notes_whose_time_is_over(store: Arc<dyn Store>) {
    note(&*store, "s", "kept", b"1", HOUR).await;
    note(&*store, "s", "over", b"1", Duration::ZERO).await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    for (most, notes) in [(0, 0), (2, 1), (2, 0)] {
        let swept = Swept {
            notes,
            ..Swept::default()
        };
        assert_eq!(store.sweep(HOUR, most).await.expect("no error"), swept);
    }
    assert_eq!(notes(&*store, "s").await, [pair("kept", b"1")]);
}
