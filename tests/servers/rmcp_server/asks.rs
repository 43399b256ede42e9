//! What the restaurant asks, and the answers.

use rmcp::model::{
    CallToolResponse, CreateMessageRequest, CreateMessageRequestParams, ElicitRequest,
    ElicitRequestParams, ErrorData, InputRequest, InputRequests, InputRequiredResult,
    InputResponses, ListRootsRequest, SamplingMessage, Tool,
};
use serde_json::{Value, json};

/// The answers of a round.
pub(crate) struct Answers(pub(crate) InputResponses);

impl Answers {
    /// The content of a form that was accepted.
    pub(crate) fn content(&self, key: &str) -> Option<&Value> {
        let answer = self.0.get(key)?;
        (answer["action"] == "accept").then(|| &answer["content"])
    }

    /// What was done with a form or a URL.
    pub(crate) fn action(&self, key: &str) -> Option<&str> {
        self.0.get(key)?["action"].as_str()
    }

    /// A field of a form that was accepted.
    pub(crate) fn field(&self, key: &str) -> Option<&str> {
        self.content(key)?[key].as_str()
    }

    /// What the model said.
    pub(crate) fn said(&self, key: &str) -> Option<&str> {
        self.0.get(key)?["content"]["text"].as_str()
    }

    /// The names of the roots.
    pub(crate) fn names(&self, key: &str) -> Option<String> {
        let roots = self.0.get(key)?["roots"].as_array()?;
        let names = roots.iter().filter_map(|root| root["name"].as_str());
        Some(names.collect::<Vec<_>>().join(", "))
    }
}

pub(crate) fn ask<const N: usize>(asks: [(&str, InputRequest); N]) -> InputRequiredResult {
    let asks = asks.map(|(key, ask)| (key.to_owned(), ask));
    InputRequiredResult::from_input_requests(InputRequests::from(asks))
}

/// One ask, and the state to go on from.
pub(crate) fn ask_on(one: (&str, InputRequest), state: &Value) -> CallToolResponse {
    let mut incomplete = ask([one]);
    incomplete.request_state = Some(state.to_string());
    incomplete.into()
}

pub(crate) fn form(
    message: &str,
    fields: &Value,
    required: &[&str],
) -> Result<InputRequest, ErrorData> {
    let schema = json!({ "type": "object", "properties": fields, "required": required });
    let requested_schema = serde_json::from_value(schema)
        .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    let params = ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: message.into(),
        requested_schema,
    };
    Ok(InputRequest::Elicitation(ElicitRequest::new(params)))
}

/// A form with one text in it.
pub(crate) fn one_text<'a>(
    key: &'a str,
    message: &str,
    field: &str,
) -> Result<(&'a str, InputRequest), ErrorData> {
    let fields = json!({ field: { "type": "string" } });
    Ok((key, form(message, &fields, &[field])?))
}

pub(crate) fn model(question: &str) -> InputRequest {
    let messages = vec![SamplingMessage::user_text(question)];
    let params = CreateMessageRequestParams::new(messages, 100);
    InputRequest::CreateMessage(CreateMessageRequest::new(params))
}

/// The model may use one tool.
pub(crate) fn model_with_tool(question: &str, tool: Tool) -> InputRequest {
    let messages = vec![SamplingMessage::user_text(question)];
    let params = CreateMessageRequestParams::new(messages, 100).with_tools(vec![tool]);
    InputRequest::CreateMessage(CreateMessageRequest::new(params))
}

pub(crate) fn roots() -> InputRequest {
    InputRequest::ListRoots(ListRootsRequest::default())
}
