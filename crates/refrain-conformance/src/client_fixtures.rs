//! Tools and a resource for the tests with real clients. The suite does not call them.

use crate::samples::Name;
use refrain::content::ResourceLink;
use refrain::prelude::*;
use refrain::server::ServerBuilder;
use serde_json::Map;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// The maximum time to wait for a call state or a subscription.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn register(server: ServerBuilder) -> ServerBuilder {
    let sample = Map::from_iter([("verbose".to_owned(), true.into())]);
    server
        .extension("com.example/sample", sample)
        .state(CallStates::default())
        .tool(resource_link())
        .tool(log_levels())
        .tool(outcome())
        .tool(form())
        .tool(url())
        .tool(stream())
        .tool(release())
        .tool(wait())
        .tool(waiting())
        .tool(subscriptions())
        .tool(process_id())
        .resource(asking())
}

/// Returns a link to a resource.
#[tool(name = "test_resource_link")]
async fn resource_link(_cx: Cx) -> Result<Content> {
    let mut link = ResourceLink::new("test://static-text", "static_text");
    link.title = Some("A text".to_owned());
    link.mime_type = Some("text/plain".to_owned());
    link.size = Some(48);
    Ok(link.into())
}

/// Logs a message of each level in ascending order.
#[tool(name = "test_log_levels")]
async fn log_levels(cx: Cx) -> Result<&'static str> {
    for level in LogLevel::ALL {
        cx.log(level, level.as_str());
    }
    Ok("Every level was logged.")
}

/// Asks for a name and returns the outcome.
#[tool(name = "test_outcome")]
async fn outcome(cx: Cx) -> Result<String> {
    Ok(match cx.ask("user_name", "What is your name?").await? {
        Answer::Accepted(Name { name }) => format!("accepted: {name}"),
        Answer::Declined => "declined".to_owned(),
        Answer::Cancelled => "cancelled".to_owned(),
    })
}

#[derive(Debug, Deserialize, Elicit)]
#[serde(rename_all = "lowercase")]
enum Frequency {
    Daily,
    Weekly,
}

#[derive(Debug, Deserialize, Elicit)]
#[serde(rename_all = "lowercase")]
enum Topic {
    #[elicit(title = "News")]
    News,
    #[elicit(title = "Bug fixes")]
    Fixes,
}

/// A field of every kind a form can have.
#[derive(Deserialize, Elicit)]
#[serde(rename_all = "camelCase")]
struct SignUp {
    /// Where to send the newsletter.
    #[elicit(title = "E-mail", format = "email")]
    address: String,
    #[elicit(min = 0, max = 150)]
    age: u8,
    #[elicit(min = 0.5, max = 2.5)]
    height: Option<f64>,
    #[elicit(default = true)]
    public: bool,
    #[elicit(default = "weekly")]
    how_often: Frequency,
    #[elicit(min = 1)]
    topics: Vec<Topic>,
}

/// Asks for a form with a field of every kind.
#[tool(name = "test_form")]
async fn form(cx: Cx) -> Result<String> {
    let SignUp {
        address,
        age,
        height,
        public,
        how_often,
        topics,
    } = cx.elicit("sign_up", "Please sign up.").await?;
    let height = height.map_or_else(|| "unknown".to_owned(), |height| height.to_string());
    Ok(format!(
        "{address}, {age}, {height}, {public}, {how_often:?}, {topics:?}"
    ))
}

/// Asks for a page to be opened.
#[tool(name = "test_url")]
async fn url(cx: Cx) -> Result<&'static str> {
    let page = "https://example.com/consent";
    cx.elicit_url("consent", "Please give your consent.", page, async || {
        ok(true)
    })
    .await?;
    Ok("The page was opened.")
}

/// Asks for the reader's name.
#[resource(uri = "test://asking", mime_type = "text/plain")]
async fn asking(cx: Cx) -> Result<String> {
    let Name { name } = cx.elicit("reader", "Who is reading?").await?;
    Ok(format!("This was written for {name}."))
}

/// The states of calls, by a key that the caller chose.
#[derive(Default)]
struct CallStates(watch::Sender<BTreeMap<String, CallState>>);

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "lowercase")]
enum CallState {
    /// The handler is running.
    Running,
    /// The handler may return.
    Released,
    /// The handler was dropped before it returned.
    Dropped,
}

impl CallStates {
    fn set(&self, key: &str, state: CallState) {
        self.0.send_modify(|calls| {
            calls.insert(key.to_owned(), state);
        });
    }

    async fn wait_for(&self, key: &str, state: CallState) -> Result<()> {
        let mut calls = self.0.subscribe();
        let reached = calls.wait_for(|calls| calls.get(key) == Some(&state));
        let reached = timeout(WAIT_LIMIT, reached).await.map(drop);
        reached.map_err(|_| Error::msg(format!("call {key} did not become {state:?} in time")))
    }
}

/// Records that a handler was dropped.
struct RecordDrop<'a> {
    calls: &'a CallStates,
    key: &'a str,
}

impl Drop for RecordDrop<'_> {
    fn drop(&mut self) {
        self.calls.set(self.key, CallState::Dropped);
    }
}

#[derive(Deserialize, JsonSchema)]
struct FixtureKey {
    /// The key of the call.
    key: String,
}

/// Reports progress and logs in five steps, then waits for a release.
#[tool(name = "test_stream")]
async fn stream(
    cx: Cx,
    calls: State<CallStates>,
    FixtureKey { key }: FixtureKey,
) -> Result<&'static str> {
    for step in 1..=5 {
        let name = format!("step {step}");
        cx.progress(step.into(), Some(5.0), &name);
        cx.log(LogLevel::Info, name);
    }
    calls.wait_for(&key, CallState::Released).await?;
    Ok("Released.")
}

/// Releases a call of `test_stream`.
#[tool(name = "test_release")]
async fn release(
    _cx: Cx,
    calls: State<CallStates>,
    FixtureKey { key }: FixtureKey,
) -> Result<&'static str> {
    calls.set(&key, CallState::Released);
    Ok("Done.")
}

/// Waits until it is cancelled.
#[tool(name = "test_wait")]
async fn wait(
    cx: Cx,
    calls: State<CallStates>,
    FixtureKey { key }: FixtureKey,
) -> Result<&'static str> {
    let _record = RecordDrop {
        calls: &calls,
        key: &key,
    };
    calls.set(&key, CallState::Running);
    cx.progress(1.0, None, "waiting");
    std::future::pending().await
}

#[derive(Deserialize, JsonSchema)]
struct WaitArguments {
    /// The key of the call.
    key: String,
    /// The state to wait for.
    fate: CallState,
}

/// Waits until a call of `test_wait` has a state.
#[tool(name = "test_waiting")]
async fn waiting(
    _cx: Cx,
    calls: State<CallStates>,
    WaitArguments { key, fate }: WaitArguments,
) -> Result<String> {
    calls.wait_for(&key, fate).await?;
    Ok(format!("{fate:?}"))
}

#[derive(Deserialize, JsonSchema)]
struct SubscriptionCount {
    /// The expected number.
    count: usize,
}

/// Waits until this number of subscriptions is open.
#[tool(name = "test_subscriptions")]
async fn subscriptions(_cx: Cx, server: State<Server>, args: SubscriptionCount) -> Result<String> {
    let reached = async {
        while server.subscriptions() != args.count {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let in_time = timeout(WAIT_LIMIT, reached).await.is_ok();
    let open = format!("{} are open", server.subscriptions());
    if in_time {
        Ok(open)
    } else {
        Err(Error::msg(open))
    }
}

/// Returns the process id of the server.
#[tool(name = "test_process_id")]
async fn process_id(_cx: Cx) -> Result<String> {
    Ok(std::process::id().to_string())
}
