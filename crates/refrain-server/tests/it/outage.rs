//! Log events about an outage of the store.

use crate::support::tasks::{FaultyStore, eager};
use crate::support::watch::{LoggedEvent, watch};
use crate::support::{echo, start, until};
use refrain_server::{Server, Tool};
use refrain_store::{MemoryStore, StoreError};
use std::cell::RefCell;
use std::time::Duration;
use tracing::level_filters::LevelFilter;

#[tokio::test]
async fn outage_is_logged_once_and_its_end_too() {
    let (recorder, _guard) = watch(LevelFilter::INFO);
    let faulty = FaultyStore::new(&MemoryStore::new());
    let server = Server::builder("tasks", "1")
        .tasks(faulty.clone(), eager())
        .tool(Tool::new("echo", echo).task());
    let _instance = start(server).await;
    let events: RefCell<Vec<LoggedEvent>> = RefCell::default();
    let logged = |text: &str| {
        events.borrow_mut().extend(recorder.take().events);
        let events = events.borrow();
        events.iter().filter(|event| event.text == text).count()
    };
    faulty.fail(Some(StoreError::Unavailable("outage".into())));
    until("the warning", || logged("failed to claim tasks") > 0).await;
    // Ten polls.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(logged("failed to claim tasks"), 1);
    assert_eq!(logged("store available again"), 0);
    faulty.fail(None);
    until("the end", || logged("store available again") > 0).await;
    let events = events.borrow();
    let end = events
        .iter()
        .find(|event| event.text == "store available again");
    let failures = end.and_then(|end| end.fields.get("failures")?.parse().ok());
    assert!(failures > Some(1), "{end:?}");
}
