//! Killed instances: only the current round is lost, and the client repeats it.

use crate::support::{Balancer, Call, Client, Files, Instance, Ledger, Reply, Serve, within};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use std::path::Path;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe::OpenOptions;

async fn instance(name: &str, keys: &Path, ledger: &Path) -> Instance {
    let serve = Serve::new().keys(keys).ledger(ledger);
    serve.named(name).start().await
}

fn asked(key: &str) -> Reply {
    Reply::Asked(vec![key.into()])
}

#[tokio::test]
async fn call_continues_after_a_kill_between_rounds() {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let ledger = files.write("ledger", "");
    let mut a = instance("a", &keys, &ledger).await;
    let b = instance("b", &keys, &ledger).await;
    let balancer = Balancer::start([a.address, b.address]).await;
    let client = Client::new(balancer.address);
    let mut order = Call::order("lamp");
    let mut item = Call::new(
        "update_work_item",
        json!({"workItemId": 4522, "fields": {"System.State": "Resolved"}}),
    );

    let at_a = Client::new(a.address);
    assert_eq!(at_a.round(&mut order).await, asked("confirm_order"));
    assert_eq!(at_a.round(&mut item).await, asked("resolution"));
    item.answer("resolution", &json!({"resolution": "Duplicate"}));
    assert_eq!(at_a.round(&mut item).await, asked("duplicate_of"));
    a.kill().await;

    order.answer("confirm_order", &json!({"confirm": true}));
    item.answer("duplicate_of", &json!({"duplicateOfId": 4301}));
    let (order, item) = (client.finish(order).await, client.finish(item).await);
    assert_eq!(
        item.reply,
        Reply::Done(
            "Bug #4522 resolved as Duplicate of Bug #4301. State set to Resolved and duplicate link created."
                .into()
        )
    );
    assert!(matches!(order.reply, Reply::Done(_)), "{order:?}");
    assert_eq!(order.served_by, ["b"]);
    // The work of the killed instance is in the token, and is not repeated.
    Ledger::at(&ledger).assert_ordered_once(&["lamp".into()]);
}

/// The instance is killed after its step, and the response is lost.
#[tokio::test]
async fn step_with_a_lost_response_repeats_under_the_same_key() {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let file = files.write("ledger", "");
    let ledger = Ledger::at(&file);
    let mut a = instance("a", &keys, &file).await;
    let b = instance("b", &keys, &file).await;
    let (at_a, at_b) = (Client::new(a.address), Client::new(b.address));
    let mut order = Call::order("lamp");
    assert_eq!(at_a.round(&mut order).await, asked("confirm_order"));
    order.answer("confirm_order", &json!({"confirm": true}));

    let lost = at_a.begin(&order);
    let lost = within("a response", lost).await;
    ledger.wait_for("charge", 1).await;
    a.kill().await;
    drop(lost);

    // The token can be used any number of times, and the key is always the same.
    let (mut again, mut once_more) = (order.clone(), order);
    let first = at_b.round(&mut again).await;
    assert_eq!(at_b.round(&mut once_more).await, first);
    let charged = ledger.effects("charge");
    assert_eq!(charged.len(), 3);
    assert!(
        charged.iter().all(|charge| *charge == charged[0]),
        "{charged:?}"
    );
    assert_eq!(ledger.effects("reserve").len(), 1);
    let receipt = format!("receipt {}.", &charged[0].0[..8]);
    assert!(
        matches!(&first, Reply::Done(text) if text.ends_with(&receipt)),
        "{first:?} has no {receipt}"
    );
}

/// The ledger is a pipe that is read only in part, so the step blocks in the middle of its line.
#[tokio::test]
async fn interrupted_step_repeats_under_the_same_key() {
    let files = Files::new();
    let keys = files.keys("fleet.keys");
    let pipe = files.path("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // Opened for reading and writing, so that neither side blocks.
    let reading = OpenOptions::new().read_write(true).open_receiver(&pipe);
    let mut reading = BufReader::new(reading.unwrap());
    let file = files.write("ledger", "");
    let mut a = instance("a", &keys, &pipe).await;
    let b = instance("b", &keys, &file).await;
    let (at_a, at_b) = (Client::new(a.address), Client::new(b.address));
    // More than the buffer of a pipe.
    let item = "lamp ".repeat(60_000);
    let mut order = Call::order(&item);

    let mut reserved = String::new();
    let (reply, read) = within("the first round", async {
        tokio::join!(at_a.round(&mut order), reading.read_line(&mut reserved))
    })
    .await;
    assert_eq!(reply, asked("confirm_order"));
    assert_eq!(read.unwrap(), reserved.len());
    assert!(reserved.starts_with("reserve ") && reserved.ends_with("lamp \n"));

    order.answer("confirm_order", &json!({"confirm": true}));
    let cut_off = order.clone();
    let cut_off = tokio::spawn(async move { at_a.begin(&cut_off).await.map(drop) });
    let mut begun = [0; "charge ".len() + 32];
    let read = within("the charge begins", reading.read_exact(&mut begun)).await;
    assert_eq!(read.unwrap(), begun.len());
    a.kill().await;
    let cut_off = within("the connection ends", cut_off).await.unwrap();
    assert!(cut_off.is_err(), "the round was over: {cut_off:?}");

    let reply = at_b.round(&mut order).await;
    assert!(matches!(reply, Reply::Done(_)), "{reply:?}");
    let charged = Ledger::at(&file).effects("charge");
    assert_eq!(charged.len(), 1);
    assert_eq!(begun, *format!("charge {}", charged[0].0).as_bytes());
}
