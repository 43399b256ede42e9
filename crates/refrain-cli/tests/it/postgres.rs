//! Tasks with a Postgres store. The tests start a server unless one is configured.

use crate::support::tasks::{in_the_middle, short_lease_config};
use crate::support::{Call, Client, Files, Ledger, Serve, program};
use refrain_store::test_postgres::TestPostgres;
use serde_json::{Value, json};

/// The URL is in the environment, as recommended for passwords.
#[tokio::test]
async fn worker_finishes_a_task_of_a_killed_instance() {
    let cluster = TestPostgres::shared().expect("a Postgres");
    in_the_middle(async |pause_ms| {
        let url = cluster.database().await.expect("a database");
        let files = Files::new();
        let (file, brief) = (files.write("ledger", ""), short_lease_config(&files));
        let with = |serve: Serve| {
            let serve = serve.ledger(&file).config(&brief);
            serve.env("REFRAIN_STORE", &url)
        };
        let ledger = Ledger::at(&file);
        let mut instance = with(Serve::new()).start().await;
        let worker = with(Serve::worker()).start_worker().await;
        let client = Client::new(instance.address);
        let call = json!({"text": "lamp", "pause_ms": pause_ms});
        let id = client.create(Call::new("echo_task", call)).await;
        ledger.wait_for("attempt", 1).await;
        let killed = instance.id();
        instance.kill().await;
        if !ledger.done().is_empty() {
            return None;
        }
        ledger.wait_for("done", 1).await;
        assert_eq!(ledger.attempts("echo"), [killed, worker.id()]);
        assert_eq!(ledger.done(), ["echo lamp"]);

        let other = with(Serve::new()).start().await;
        let done = Client::new(other.address).completed(&id).await;
        assert_eq!(done.text(), "Echo: lamp");
        let mut list = program();
        let list = list.args(["store", "tasks", "list", "--json"]);
        let list = list.env("REFRAIN_STORE", &url).output().await;
        let rows: Value =
            serde_json::from_slice(&list.expect("the process runs").stdout).expect("valid JSON");
        assert_eq!(rows[0]["id"], json!(id), "{rows}");
        assert_eq!(rows[0]["status"], "completed", "{rows}");
        Some(())
    })
    .await;
}
