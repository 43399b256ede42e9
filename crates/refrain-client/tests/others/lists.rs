//! Lists and server descriptions as the servers sent them.

use crate::server::Target;
use refrain_client::{Client, WireMessage};
use refrain_testkit::net::sdk_programs::Program;
use serde::Serialize;
use serde_json::Value;
use std::sync::{Arc, Mutex};

/// The messages received so far.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<Value>>>);

impl Received {
    fn record(&self, wire: WireMessage<'_>) {
        if let WireMessage::Received { message, .. } = wire {
            let message = serde_json::from_str(message).expect("JSON");
            self.0
                .lock()
                .expect("the lock is not poisoned")
                .push(message);
        }
    }

    /// The text of a member of the last result with this member.
    fn member(&self, name: &str) -> String {
        let received = self.0.lock().expect("the lock is not poisoned");
        let mut results = received.iter().rev().map(|message| &message["result"]);
        let found = results.find_map(|result| result.get(name));
        found.expect("it was received").to_string()
    }
}

#[track_caller]
fn assert_kept(kept: &impl Serialize, sent: &str) {
    assert_eq!(serde_json::to_string(kept).expect("JSON"), sent);
    assert!(sent.len() > 2, "an empty list shows nothing");
}

/// Checks that lists are serialized as the server sent them, in the same order.
pub(crate) async fn check_kept(program: Program) {
    let received = Received::default();
    let recorder = received.clone();
    let builder = Client::builder().on_wire(move |wire| recorder.record(wire));
    let client = Target::Stdio(program)
        .connect(builder)
        .await
        .expect("a server");
    let described: Value = serde_json::from_str(client.server().raw.get()).expect("JSON");
    assert_eq!(
        described["capabilities"].to_string(),
        received.member("capabilities")
    );
    assert_kept(
        &client.tools().await.expect("a list"),
        &received.member("tools"),
    );
    assert_kept(
        &client.prompts().await.expect("a list"),
        &received.member("prompts"),
    );
    assert_kept(
        &client.resources().await.expect("a list"),
        &received.member("resources"),
    );
    let templates = client.resource_templates().await.expect("a list");
    assert_kept(&templates, &received.member("resourceTemplates"));
}
