//! The rounds of a live call.

use super::*;

#[tokio::test]
async fn wrapped_in_steps_each_mutation_is_made_once_over_several_instances() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instances = fleet(3, || builder(&ledger, &keys), false).await;
    let balancer = Balancer::over(&instances).await;
    let asks = balancer.send(&first("wrapped")).await;
    let done = balancer.send(&second("wrapped", &token(&asks))).await;
    assert_eq!(text(&done), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn at_its_own_instance_a_handler_goes_on_where_it_was() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first("twice")).await.reply();
    assert_eq!(asked(&asks), ["first"]);
    let with_progress = first("twice")
        .again(&token(&asks), json!({"first": login("a"), "other": {}}))
        .meta("progressToken", json!("p"));
    // The first round did not want to hear of progress; this one does.
    let events = instance.send(&with_progress).await.events();
    assert_eq!(events[0]["params"]["progressToken"], "p");
    let next = &events[1];
    assert_eq!(asked(next), ["second", "third"]);
    // One of two: the other is asked again.
    let half = first("twice").again(&token(next), json!({"third": login("c")}));
    let rest = instance.send(&half).await.reply();
    assert_eq!(asked(&rest), ["second"]);
    // None at all: as before.
    let none = first("twice").again(&token(&rest), json!({}));
    let rest = instance.send(&none).await.reply();
    assert_eq!(asked(&rest), ["second"]);
    let all = first("twice").again(&token(&rest), json!({"second": login("b")}));
    assert_eq!(text(&instance.send(&all).await.reply()), "abc");
    assert_eq!(ledger.lines(), ["first a", "others b c"]);
}

#[tokio::test]
async fn a_handler_may_go_on_without_its_answer() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first("impatient")).await.reply();
    ledger.has("said by nobody").await;
    let done = instance.send(&second("impatient", &token(&asks))).await;
    assert_eq!(text(&done.reply()), "nobody");
    assert_eq!(ledger.lines(), ["said by nobody"]);
}

#[tokio::test]
async fn answers_of_another_shape_are_refused_and_the_call_goes_on() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first("inline")).await.reply();
    let token_of = token(&asks);
    let odd = first("inline").again(&token_of, json!({"name": {"action": "perhaps"}}));
    let message = instance.send(&odd).await.error(200, -32602);
    names(&message, &["inputResponses", "name"]);
    let unfit = json!({"name": {"action": "accept", "content": {"name": 5}}});
    let unfit = first("inline").again(&token_of, unfit);
    let again = instance.send(&unfit).await.reply();
    let key = asked(&again)[0].to_owned();
    let message = &result(&again)["inputRequests"][&key]["params"]["message"];
    names(message.as_str().expect("a message"), &["not accepted"]);
    let fit = first("inline").again(&token(&again), json!({ key: login("Ada") }));
    assert_eq!(text(&instance.send(&fit).await.reply()), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn a_handler_in_the_explicit_style_is_run_again_when_all_is_answered() {
    let (ledger, keys) = (Arc::<Ledger>::default(), keys());
    let instance = start(builder(&ledger, &keys)).await;
    let asks = instance.send(&first("explicit")).await.reply();
    assert_eq!(asked(&asks), ["first", "second"]);
    let half = first("explicit").again(&token(&asks), json!({"first": login("a")}));
    let rest = instance.send(&half).await.reply();
    assert_eq!(asked(&rest), ["second"]);
    assert_eq!(ledger.lines(), ["run"]);
    let all = first("explicit").again(&token(&rest), json!({"second": login("b")}));
    let done = instance.send(&all).await.reply();
    assert_eq!(text(&done), format!("{} {}", login("a"), login("b")));
    assert_eq!(ledger.lines(), ["run", "run"]);
}

#[tokio::test]
async fn a_cx_that_is_kept_past_its_call_asks_nobody() {
    for tool in ["keeps", "keeps_live"] {
        let (ledger, keys) = (Arc::<Ledger>::default(), keys());
        let instance = start(builder(&ledger, &keys)).await;
        assert_eq!(text(&instance.send(&first(tool)).await.reply()), "kept");
        let said = |name| {
            format!("{name:?} cannot be asked: its call is over, and a question belongs to a call")
        };
        ledger.has(&said("idea")).await;
        assert_eq!(ledger.lines(), [said("late"), said("idea")], "{tool}");
    }
}
