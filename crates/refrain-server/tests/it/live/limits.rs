//! Live calls are limited, and end.

use super::*;

#[tokio::test]
async fn an_instance_that_stops_gives_up_what_waits_and_takes_nothing_on() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first("waits")).await.reply();
    instance.server.start_draining();
    let mut refused = instance.send(&first("inline")).await;
    names(&refused.error(503, -32603), &["stopping", "call again"]);
    instance.server.close_live();
    ledger.has("dropped").await;
    refused = instance.send(&second("waits", &token(&asks))).await;
    names(&refused.error(200, -32603), &["is stopping", "call again"]);
    assert_eq!(ledger.lines(), ["begun", "dropped"]);
}

#[tokio::test]
async fn live_calls_are_limited_in_number_and_in_time() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        live_calls: 2,
        live_time: Duration::from_millis(300),
        ..ServerLimits::default()
    };
    let instance = start(builder(&ledger, &keys).limits(limits)).await;
    let asks = instance.send(&first("waits")).await.reply();
    instance.send(&first("waits")).await.reply();
    let refused = instance.send(&first("waits")).await;
    names(&refused.error(503, -32603), &["limit of 2 live calls"]);
    assert_eq!(ledger.lines(), ["begun", "begun"], "it did not even begin");
    // A pending dialogue is no running call.
    instance.at_rest().await;
    ledger.has("dropped").await;
    let late = instance.send(&second("waits", &token(&asks))).await;
    names(&late.error(200, -32603), &["given up", "call again"]);
    let free = async {
        while instance.send(&first("waits")).await.status == 503 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("a place", free).await;
}

#[tokio::test]
async fn the_work_of_a_live_handler_is_limited_as_that_of_any_round() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let limits = ServerLimits {
        round_time: Duration::from_millis(50),
        ..ServerLimits::default()
    };
    let instance = start(builder(&ledger, &keys).limits(limits)).await;
    let asks = instance.send(&first("waits")).await.reply();
    let message = instance.send(&first("works")).await.error(200, -32603);
    names(&message, &["time limit of a round"]);
    // Whoever thinks is not in a hurry: far more than that time has passed.
    let done = instance.send(&second("waits", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "Ada");
}

#[tokio::test]
async fn a_client_that_goes_away_before_the_first_reply_ends_the_call() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let mut connection = instance.connect().await;
    connection.send(&first("works")).await;
    ledger.has("begun").await;
    drop(connection);
    ledger.has("dropped").await;
}

#[test]
fn what_cannot_be_built() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let why = |builder: ServerBuilder| builder.build().expect_err("a mistake").to_string();
    let build = || builder(&ledger, &keys);
    let both = Tool::new("both", inline).live().task();
    names(&why(build().tool(both)), &["\"both\"", "live", "task"]);
    let no_keys = Server::builder("x", "1").peers(Peers::new("a"));
    assert!(matches!(no_keys.build(), Err(BuildError::PeersNeedKeys)));
    for (peers, words) in [
        (Peers::new(""), ["\"\"", "1 to 200"]),
        (Peers::new("a b"), ["\"a b\"", "spaces"]),
        (Peers::new("a").peer("b", "10.0.0.8"), ["\"b\"", "scheme"]),
        (Peers::new("a").peer("b", "ftp://b/"), ["\"b\"", "https"]),
        (
            Peers::new("a")
                .peer("b", "http://b/")
                .peer("b", "http://c/"),
            ["\"b\"", "twice"],
        ),
    ] {
        names(&why(build().peers(peers)), &words);
    }
}
