//! The checks of every restaurant server.

use crate::Expected;
use crate::server::Target;
use crate::user::User;
use refrain_client::wire::{AskKind, Content, ResourceContents, ToolResult};
use refrain_client::{
    AskAnswer, CallSpec, Client, ClientLimits, ErrorKind, IncomingAsk, PendingCall, RoundOutcome,
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::timeout;

/// The timeout of one check.
const CHECK_TIME: Duration = Duration::from_secs(120);
/// The number of concurrent calls.
const MANY: usize = 20;

/// A client, and the user behind it.
struct Guest<'a> {
    client: Client,
    user: User,
    target: &'a Target,
    expected: &'a Expected,
}

/// Runs checks in sequence, each with a timeout.
macro_rules! run {
    ($guest:expr, $($check:ident,)*) => {
        $(
            println!("{}", stringify!($check));
            timeout(CHECK_TIME, $check($guest)).await.expect("the check ends in time");
        )*
    };
}

/// Runs all checks.
pub(crate) async fn check_all(target: &Target, expected: &Expected) {
    let user = User::default();
    let connected = timeout(CHECK_TIME, target.connect(user.client())).await;
    let client = connected.expect("connecting ends in time");
    let guest = &Guest {
        client: client.expect("the server accepts the client"),
        user,
        target,
        expected,
    };
    run!(
        guest,
        reports_its_identity,
        lists_its_features,
        adds,
        rejects_invalid_calls,
        books_a_table,
        books_no_table,
        plans_a_trip_in_two_rounds,
        plans_no_trip,
        orders_dinner_with_three_asks_at_once,
        signs_in,
        asks_the_model,
        asks_for_the_roots,
        gets_a_prompt_that_asks,
        reads_a_resource,
        reads_a_resource_that_asks,
        makes_many_calls_at_once,
    );
    if expected.asks_inline {
        run!(
            guest,
            invalid_answer_is_cancelled,
            pays_after_a_visit,
            does_not_pay_without_a_visit,
        );
    } else {
        run!(guest, invalid_answer_is_not_sent, resumes_a_stored_call,);
    }
}

/// The text of a successful result with one block.
#[track_caller]
fn text(result: &ToolResult) -> &str {
    assert!(!result.is_error, "{result:?}");
    let [block] = result.content.as_slice() else {
        panic!("expected one block: {result:?}");
    };
    block.as_text().expect("the block is a text")
}

impl Guest<'_> {
    async fn call(&self, tool: &str, arguments: Value) -> ToolResult {
        let result = self.client.call_tool(tool, arguments).await;
        result.unwrap_or_else(|error| panic!("{tool}: {error}"))
    }

    async fn effects(&self) -> u32 {
        effects(&self.client).await
    }
}

/// The number of effects at the server.
async fn effects(client: &Client) -> u32 {
    let count = client.call_tool("effects", json!({})).await;
    let count = count.expect("a count");
    text(&count).parse().expect("a number")
}

async fn reports_its_identity(guest: &Guest<'_>) {
    let server = guest.client.server();
    assert_eq!(server.version, guest.expected.revision);
    for capability in ["tools", "prompts", "resources"] {
        assert!(server.capabilities.contains_key(capability), "{server:?}");
    }
    if let Some(name) = server.name() {
        assert_eq!(name, guest.expected.name);
    }
}

async fn lists_its_features(guest: &Guest<'_>) {
    let tools = guest.client.tools().await.expect("a list of tools");
    for name in ["add", "effects", "book_table", "plan_trip", "suggest"] {
        assert!(tools.iter().any(|tool| tool.name == name), "{tools:?}");
    }
    let prompts = guest.client.prompts().await.expect("a list of prompts");
    assert_eq!(prompts[0].name, "greeting");
    let resources = guest.client.resources().await.expect("a list");
    assert_eq!(resources[0].uri, "restaurant://menu");
    let templates = guest.client.resource_templates().await.expect("a list");
    assert_eq!(templates[0].uri_template, "restaurant://diary/{day}");
}

async fn adds(guest: &Guest<'_>) {
    let sum = guest.call("add", json!({"a": 2, "b": 3})).await;
    assert_eq!(text(&sum), "5");
}

/// Some servers respond with an error, others with an error result.
async fn rejects_invalid_calls(guest: &Guest<'_>) {
    for (tool, arguments) in [("add", json!({"a": "two"})), ("no_such_tool", json!({}))] {
        match guest.client.call_tool(tool, arguments).await {
            Ok(result) => assert!(result.is_error, "{tool}: {result:?}"),
            Err(error) => assert!(matches!(error.kind, ErrorKind::Rpc(_)), "{error:?}"),
        }
    }
    let unknown = guest.client.read_resource("restaurant://kitchen").await;
    let error = unknown.expect_err("there is no such resource");
    assert!(matches!(error.kind, ErrorKind::Rpc(_)), "{error:?}");
}

async fn books_a_table(guest: &Guest<'_>) {
    let before = guest.effects().await;
    let inside = json!({"date": "2026-12-24", "guests": 4});
    let outside = json!({"date": "2026-12-25", "guests": 8, "seating": "outside"});
    for (answers, booked) in [
        (inside, "a table for 4 on 2026-12-24, inside"),
        (outside, "a table for 8 on 2026-12-25, outside"),
    ] {
        guest.user.set_answers(answers);
        let result = guest.call("book_table", json!({})).await;
        assert_eq!(text(&result), booked);
        assert_eq!(guest.user.take_asked(), ["When, and for how many?"]);
    }
    assert_eq!(guest.effects().await, before + 2);
}

async fn books_no_table(guest: &Guest<'_>) {
    let before = guest.effects().await;
    for (answer, action) in [
        (AskAnswer::Decline, "decline"),
        (AskAnswer::Cancel, "cancel"),
    ] {
        guest.user.set_only_answer(answer);
        let result = guest.call("book_table", json!({})).await;
        assert_eq!(text(&result), format!("no table was booked: {action}"));
    }
    assert_eq!(guest.effects().await, before);
}

/// The call can be resumed with a valid answer.
async fn invalid_answer_is_not_sent(guest: &Guest<'_>) {
    let before = guest.effects().await;
    guest
        .user
        .set_answers(json!({"date": "2026-12-24", "guests": 9}));
    let result = guest.client.call_tool("book_table", json!({})).await;
    let error = result.expect_err("nine guests are too many");
    let ErrorKind::Unanswered(unanswered) = &error.kind else {
        panic!("{error:?}");
    };
    assert!(unanswered[0].why.contains("guests"), "{unanswered:?}");
    assert_eq!(guest.effects().await, before);

    let Some(pending) = error.pending else {
        panic!("the error does not contain the call");
    };
    guest
        .user
        .set_answers(json!({"date": "2026-12-24", "guests": 8}));
    let result = guest.client.finish(*pending).await.expect("a result");
    assert_eq!(
        result["content"][0]["text"],
        "a table for 8 on 2026-12-24, inside"
    );
    assert_eq!(guest.effects().await, before + 1);
}

async fn plans_a_trip_in_two_rounds(guest: &Guest<'_>) {
    let before = guest.effects().await;
    guest
        .user
        .set_answers(json!({"city": "Zürich \"am\\See\"", "nights": 3}));
    let result = guest.call("plan_trip", json!({})).await;
    assert_eq!(text(&result), "3 nights in Zürich \"am\\See\"");
    let asked = ["How many nights in Zürich \"am\\See\"?", "Where to?"];
    assert_eq!(guest.user.take_asked(), asked);
    assert_eq!(guest.effects().await, before + 1);
}

/// The text of the result depends on the server.
async fn plans_no_trip(guest: &Guest<'_>) {
    let before = guest.effects().await;
    guest.user.set_only_answer(AskAnswer::Decline);
    let result = guest.call("plan_trip", json!({})).await;
    assert!(!result.content.is_empty(), "{result:?}");
    assert_eq!(guest.user.take_asked(), ["Where to?"]);
    assert_eq!(guest.effects().await, before);
}

/// The barrier shows that all three asks are open at the same time.
async fn orders_dinner_with_three_asks_at_once(guest: &Guest<'_>) {
    let before = guest.effects().await;
    guest.user.set_answers(json!({"dish": "fish"}));
    guest.user.wait_for(3);
    let result = guest.call("order_dinner", json!({})).await;
    assert_eq!(text(&result), "fish with Riesling in the garden");
    assert_eq!(guest.user.take_asked().len(), 3);
    assert_eq!(guest.effects().await, before + 1);
}

async fn signs_in(guest: &Guest<'_>) {
    guest.user.set_answers(json!({}));
    let result = guest.call("sign_in", json!({})).await;
    assert_eq!(text(&result), "signed in");
    let asked = ["Please sign in. https://example.com/login?for=you"];
    assert_eq!(guest.user.take_asked(), asked);

    guest.user.set_only_answer(AskAnswer::Decline);
    let result = guest.call("sign_in", json!({})).await;
    assert_eq!(text(&result), "not signed in: decline");
}

async fn asks_the_model(guest: &Guest<'_>) {
    guest.user.set_answers(json!({}));
    let result = guest.call("suggest", json!({"about": "tea"})).await;
    assert_eq!(text(&result), "the model scripted said: Riesling");
    let asked = guest.user.take_asked();
    assert!(asked[0].contains("What about tea?"), "{asked:?}");
}

async fn asks_for_the_roots(guest: &Guest<'_>) {
    guest.user.set_answers(json!({}));
    let result = guest.call("list_places", json!({})).await;
    assert_eq!(text(&result), "the garden");
    assert_eq!(guest.user.take_asked(), ["roots"]);
}

async fn gets_a_prompt_that_asks(guest: &Guest<'_>) {
    guest.user.set_answers(json!({"name": "Ada"}));
    let arguments = json!({"style": "warmly"});
    let prompt = guest.client.get_prompt("greeting", arguments).await;
    let prompt = prompt.expect("a prompt");
    let said: Vec<_> = prompt
        .messages
        .iter()
        .map(|message| message.content.as_text())
        .collect();
    assert_eq!(said, [Some("Greet Ada, warmly.")]);
    assert_eq!(guest.user.take_asked(), ["Who is to be greeted?"]);
}

/// The text of a resource.
async fn read(guest: &Guest<'_>, uri: &str) -> String {
    let read = guest.client.read_resource(uri).await;
    match read.expect("a resource").contents.as_slice() {
        [ResourceContents::Text { text, .. }] => text.clone(),
        other => panic!("expected one text: {other:?}"),
    }
}

async fn reads_a_resource(guest: &Guest<'_>) {
    assert_eq!(read(guest, "restaurant://menu").await, "fish, cheese");
}

async fn reads_a_resource_that_asks(guest: &Guest<'_>) {
    guest.user.set_answers(json!({"name": "Ada"}));
    let diary = read(guest, "restaurant://diary/monday").await;
    assert_eq!(diary, "Ada on monday");
    assert_eq!(guest.user.take_asked(), ["Whose diary?"]);
}

/// Concurrent calls do not mix up their states.
async fn makes_many_calls_at_once(guest: &Guest<'_>) {
    let before = guest.effects().await;
    guest.user.set_answers(json!({"city": "Oslo", "nights": 2}));
    guest.user.wait_for(MANY);
    let calls = (0..MANY).map(|_| guest.call("plan_trip", json!({})));
    for result in futures_util::future::join_all(calls).await {
        assert_eq!(text(&result), "2 nights in Oslo");
    }
    assert_eq!(guest.user.take_asked().len(), 2 * MANY);
    assert_eq!(guest.effects().await, before + 20);
}

/// The pending call is stored as text, and resumed by another client.
async fn resumes_a_stored_call(guest: &Guest<'_>) {
    let mut outcome = guest.client.start(CallSpec::tool("plan_trip")).await;
    for (answers, message) in [
        (json!({"city": "Oslo"}), "Where to?"),
        (json!({"nights": 5}), "How many nights in Oslo?"),
    ] {
        let Ok(RoundOutcome::Pending(pending)) = outcome else {
            panic!("expected a pending call: {outcome:?}");
        };
        let stored = serde_json::to_string(&pending).expect("it serialises");
        let mut pending: PendingCall = serde_json::from_str(&stored).expect("it deserialises");
        let asks = pending.unanswered();
        let [IncomingAsk::Form(ask)] = asks.as_slice() else {
            panic!("expected one form: {asks:?}");
        };
        assert_eq!(ask.message, message);
        let answer = AskAnswer::accept(answers).expect("an object");
        pending
            .answer(&ask.key, answer)
            .expect("the answer is valid");
        let client = Client::builder().answer_manually([AskKind::Form]);
        let client = guest.target.connect(client).await.expect("a second client");
        outcome = client.resume(pending).await;
    }
    let Ok(RoundOutcome::Complete(result)) = outcome else {
        panic!("expected a complete call: {outcome:?}");
    };
    assert_eq!(
        result["content"],
        json!([Content::text("5 nights in Oslo")])
    );
}

/// A server that asks during a call waits, so the client cancels its ask.
async fn invalid_answer_is_cancelled(guest: &Guest<'_>) {
    let before = guest.effects().await;
    guest
        .user
        .set_answers(json!({"date": "2026-12-24", "guests": 9}));
    let result = guest.call("book_table", json!({})).await;
    assert_eq!(text(&result), "no table was booked: cancel");
    assert_eq!(guest.effects().await, before);
}

/// The server rejects the call with -32042 until its page was visited.
async fn pays_after_a_visit(guest: &Guest<'_>) {
    let before = guest.effects().await;
    guest.user.set_answers(json!({}));
    guest.user.visit_urls();
    let account = json!({"account": "savings"});
    let result = guest.call("pay", account.clone()).await;
    assert_eq!(text(&result), "paid from savings");
    let asked = guest.user.take_asked();
    let [asked] = asked.as_slice() else {
        panic!("expected one visit: {asked:?}");
    };
    assert!(asked.starts_with("Please connect your account. http://127.0.0.1:"));
    assert!(asked.ends_with("/connect/savings"), "{asked}");

    let result = guest.call("pay", account).await;
    assert_eq!(text(&result), "paid from savings");
    assert!(
        guest.user.take_asked().is_empty(),
        "the account is connected now"
    );
    assert_eq!(guest.effects().await, before + 2);
}

/// Without a visit nothing is paid. The person is asked once, and the call can be resumed.
async fn does_not_pay_without_a_visit(guest: &Guest<'_>) {
    let limits = ClientLimits {
        rounds: 4,
        ..ClientLimits::default()
    };
    let client = guest.user.client().limits(limits);
    let client = guest.target.connect(client).await.expect("a client");
    let before = effects(&client).await;
    guest.user.set_only_answer(AskAnswer::Decline);
    let declined = client.call_tool("pay", json!({"account": "other"})).await;
    let error = declined.expect_err("nothing is paid");
    let ErrorKind::Rpc(failure) = &error.kind else {
        panic!("expected the server's error: {error:?}");
    };
    assert_eq!(failure.code, -32042);
    assert_eq!(guest.user.take_asked().len(), 1);

    guest.user.set_only_answer(AskAnswer::visited());
    let unvisited = client.call_tool("pay", json!({"account": "other"})).await;
    let error = unvisited.expect_err("nothing is paid");
    assert!(
        matches!(error.kind, ErrorKind::TooManyRounds(4)),
        "{error:?}"
    );
    assert_eq!(guest.user.take_asked().len(), 1, "the visit is asked once");
    let Some(pending) = error.pending else {
        panic!("the error does not contain the call");
    };
    let [IncomingAsk::Url(ask)] = &pending.asks()[..] else {
        panic!("expected one visit: {pending:?}");
    };
    reqwest::get(ask.url.clone()).await.expect("a page");
    let result = client.finish(*pending).await.expect("a result");
    assert_eq!(result["content"][0]["text"], "paid from other");
    assert_eq!(effects(&client).await, before + 1);
}
