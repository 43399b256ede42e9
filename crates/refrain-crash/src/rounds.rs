//! Plain calls with an ask, which need no database.

use crate::client::accept;
use crate::error::CrashError;
use crate::run::CrashRun;
use crate::worker::NumberAnswer;
use refrain::auth::Principal;
use refrain::prelude::*;
use refrain_testkit::net::{CAPABILITIES_KEY, Request};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::time::Duration;

/// The pause between calls.
const PAUSE: Duration = Duration::from_millis(20);

/// Asks for a number and returns it.
#[tool]
pub(crate) async fn plain(cx: Cx) -> Result<String> {
    let answer: NumberAnswer = cx.elicit("number", "a number").await?;
    Ok(answer.number.to_string())
}

impl CrashRun {
    /// Makes calls until one fails, and counts them.
    pub(crate) async fn make_calls(&self, made: &mut u64) -> Result<Infallible, CrashError> {
        loop {
            let asked = self.round(json!({})).await;
            let key = asked["inputRequests"].as_object();
            let key = key.and_then(|asks| asks.keys().next()).cloned();
            let answer = json!({
                "inputResponses": {key.unwrap_or_default(): accept(&json!(7))},
                "requestState": asked["requestState"],
            });
            let result = self.round(answer).await;
            if result["content"][0]["text"] != "7" {
                return Err(
                    format!("a plain call was answered with {asked}, then {result}").into(),
                );
            }
            *made += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends one request to the instance that runs no tasks, and returns the result or the whole reply.
    async fn round(&self, mut params: Value) -> Value {
        let Some(server) = &self.server else {
            return Value::Null;
        };
        params["name"] = json!("plain");
        params["arguments"] = json!({});
        let request = Request::rpc("tools/call", params).id(json!(1));
        let request = request.meta(CAPABILITIES_KEY, json!({"elicitation": {"form": {}}}));
        let caller = Principal::anonymous();
        let mut response = server.handle(&request.message(), caller).await;
        let reply = response.next().await.unwrap_or_default();
        let mut reply: Value = serde_json::from_slice(&reply).unwrap_or_default();
        match reply["result"].is_object() {
            true => reply["result"].take(),
            false => reply,
        }
    }
}
