//! Handlers that return rounds themselves, as rmcp offers for 2026-07-28.

use refrain_rmcp::Adapter;
use refrain_testkit::{Effects, Fleet, Script, ScriptedAnswer};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ElicitRequest,
    ElicitRequestParams, InputRequest, InputRequiredResult, ListToolsResult,
    PaginatedRequestParams, Tool, object,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::json;

/// Asks for a letter in each of three rounds, and keeps the letters in its state.
struct Spelling(Effects);

impl ServerHandler for Spelling {
    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tool = Tool::new("spell", "Spells", object(json!({"type": "object"})));
        Ok(ListToolsResult::with_all_items(vec![tool]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut word = request.request_state.unwrap_or_default();
        self.0.record(format!("after {word:?}"));
        let responses = request.input_responses.unwrap_or_default();
        if let Some(letter) = responses.get("letter") {
            word += letter["content"]["letter"].as_str().expect("a letter");
        }
        if word.len() == 3 {
            return Ok(CallToolResult::success(vec![ContentBlock::text(word)]).into());
        }
        let schema = json!({
            "type": "object",
            "properties": {"letter": {"type": "string"}},
            "required": ["letter"],
        });
        let ask = ElicitRequestParams::FormElicitationParams {
            meta: None,
            message: format!("After {word:?}?"),
            requested_schema: serde_json::from_value(schema).expect("a schema"),
        };
        let ask = InputRequest::Elicitation(ElicitRequest::new(ask));
        let requests = [("letter".to_owned(), ask)].into();
        Ok(InputRequiredResult::new(Some(requests), Some(word)).into())
    }
}

#[tokio::test]
async fn each_round_of_the_handler_runs_once() {
    let effects = Effects::new();
    let state = effects.clone();
    let build = move || {
        Adapter::new(Spelling(state.clone()))
            .replay(["spell"])
            .into_builder()
    };
    let fleet = Fleet::new(build);
    let script = Script::new().otherwise(|ask| {
        let letter = match ask.message() {
            message if message.contains("\"\"") => "c",
            message if message.contains("\"c\"") => "a",
            _ => "t",
        };
        ScriptedAnswer::form(json!({"letter": letter}))
    });
    let outcome = fleet.call("spell", json!({})).script(script).run().await;
    assert_eq!(outcome.text(), "cat");
    let keys = outcome.rounds().iter().flat_map(|round| round.keys());
    assert_eq!(
        keys.collect::<Vec<_>>(),
        ["letter", "round 2/letter", "round 3/letter"]
    );
    // The first request and the first answer both come before there is a letter.
    assert_eq!(
        effects.take(),
        [("after \"\"", 2), ("after \"c\"", 1), ("after \"ca\"", 1)]
            .map(|(key, count)| (key.to_owned(), count))
            .into()
    );
}
