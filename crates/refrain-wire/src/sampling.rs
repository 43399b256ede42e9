//! Sampling: requests to the client's model, and its answers.

use serde::de::{Deserializer, Error};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::canonical::JsonError;
use crate::capabilities::{Capabilities, Capability};
use crate::content::{Content, Role};
use crate::info::ToolInfo;

/// A request to the client's model. If the model uses tools, send its message back with the results:
///
/// ```
/// use refrain_wire::{SamplingAnswer, SamplingParams, ToolInfo};
/// let weather = ToolInfo {
///     name: "get_weather".into(),
///     input_schema: serde_json::json!({"type": "object", "properties": {"city": {"type": "string"}}}),
///     ..ToolInfo::default()
/// };
/// let mut params = SamplingParams::new(1000).user("Paris or London?").tool(weather);
/// # let answer: SamplingAnswer = serde_json::from_value(serde_json::json!({"role": "assistant", "model": "m",
/// #     "content": {"type": "tool_use", "id": "1", "name": "get_weather", "input": {"city": "Paris"}}}))?;
/// // let answer = cx.sample("advice", params.clone()).await?;
/// let results = answer.tool_uses().map(|tool| match tool.name.as_str() {
///     "get_weather" => tool.result(format!("Sunny in {}", tool.input["city"])),
///     other => tool.failed(format!("unknown tool {other}")),
/// });
/// params = params.answer(&answer).results(results);
/// assert!(params.check().is_ok());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SamplingParams {
    /// The conversation so far.
    pub messages: Vec<SamplingMessage>,
    /// Preferences for the choice of a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_preferences: Option<ModelPreferences>,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The client context to include, if the client declares `sampling.context`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include_context: Option<IncludeContext>,
    /// The sampling temperature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// The maximum number of tokens to generate.
    pub max_tokens: u32,
    /// Texts at which the model stops.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_sequences: Vec<String>,
    /// Provider-specific settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// The tools that the model may use. They need not be tools of the server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolInfo>,
    /// Whether the model must use tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
}

impl SamplingParams {
    /// An empty conversation with this limit for the answer.
    pub fn new(max_tokens: u32) -> Self {
        Self {
            max_tokens,
            ..Self::default()
        }
    }

    /// Adds a message of one block.
    pub fn message(self, role: Role, content: impl Into<SamplingBlock>) -> Self {
        self.blocks(role, vec![content.into()])
    }

    /// Adds a text from the user.
    pub fn user(self, text: impl Into<String>) -> Self {
        self.message(Role::User, Content::text(text))
    }

    /// Adds a text from the assistant.
    pub fn assistant(self, text: impl Into<String>) -> Self {
        self.message(Role::Assistant, Content::text(text))
    }

    /// Adds a message of several blocks.
    pub fn blocks(mut self, role: Role, content: Vec<SamplingBlock>) -> Self {
        self.messages.push(SamplingMessage { role, content });
        self
    }

    /// Adds an answer of the model unchanged.
    pub fn answer(self, answer: &SamplingAnswer) -> Self {
        self.blocks(answer.role, answer.content.clone())
    }

    /// Adds the results of all tool uses in the previous message.
    pub fn results(self, results: impl IntoIterator<Item = ToolUseResult>) -> Self {
        let content = results.into_iter().map(SamplingBlock::ToolResult);
        self.blocks(Role::User, content.collect())
    }

    /// Adds a tool that the model may use.
    pub fn tool(mut self, tool: ToolInfo) -> Self {
        self.tools.push(tool);
        self
    }

    /// Sets whether the model must use tools.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = Some(choice);
        self
    }

    /// Sets the system prompt.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.system_prompt = Some(text.into());
        self
    }

    /// Sets the temperature.
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Adds a preferred model by its name or a part of it.
    pub fn hint(mut self, name: impl Into<String>) -> Self {
        let name = Some(name.into());
        self.preferences().hints.push(ModelHint { name });
        self
    }

    /// Sets the priority of intelligence, from 0 to 1.
    pub fn intelligence(mut self, priority: f64) -> Self {
        self.preferences().intelligence_priority = Some(priority);
        self
    }

    /// Sets the priority of speed, from 0 to 1.
    pub fn speed(mut self, priority: f64) -> Self {
        self.preferences().speed_priority = Some(priority);
        self
    }

    /// Sets the priority of low cost, from 0 to 1.
    pub fn cost(mut self, priority: f64) -> Self {
        self.preferences().cost_priority = Some(priority);
        self
    }

    /// The capability that the client must have declared.
    pub fn capability(&self) -> Capability {
        let mut blocks = self.messages.iter().flat_map(|message| &message.content);
        let is_tool = |block: &_| {
            matches!(
                block,
                SamplingBlock::ToolUse(_) | SamplingBlock::ToolResult(_)
            )
        };
        if !self.tools.is_empty() || self.tool_choice.is_some() || blocks.any(is_tool) {
            Capability::SamplingTools
        } else {
            Capability::Sampling
        }
    }

    /// Checks that messages contain only text, images and audio, and that the results of all tool uses follow them.
    pub fn check(&self) -> Result<(), ConversationError> {
        let mut used: Vec<&str> = Vec::new();
        for (index, message) in self.messages.iter().enumerate() {
            let checked = message.check(&mut used);
            checked.map_err(|source| ConversationError::Message { index, source })?;
        }
        used.first().map_or(Ok(()), |id| {
            Err(ConversationError::NoResult((*id).to_owned()))
        })
    }

    /// Removes `include_context` if the client did not declare `sampling.context`.
    pub fn drop_undeclared(&mut self, capabilities: Capabilities) {
        if !capabilities.sampling_context {
            self.include_context = None;
        }
    }

    fn preferences(&mut self) -> &mut ModelPreferences {
        self.model_preferences.get_or_insert_default()
    }
}

/// An invalid conversation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConversationError {
    /// A message is invalid.
    #[error("messages[{index}]: {source}")]
    Message {
        /// The index of the message.
        index: usize,
        /// The error.
        source: MessageError,
    },
    /// The tool use with this id has no result.
    #[error("messages: tool use {0:?} has no result; add it with .results(..)")]
    NoResult(String),
}

/// An invalid message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// It contains a resource.
    #[error("resources are not supported; send text, images or audio")]
    Resource,
    /// It mixes tool results with other content, or is not the user's.
    #[error("tool results must be the only content of a user message")]
    MixedResults,
    /// It is a user message with a tool use.
    #[error("tool uses are allowed only in assistant messages")]
    ToolUseByUser,
    /// Its results do not match the tool uses of the previous message.
    #[error("the results {results:?} do not match the tool uses {used:?} of the previous message")]
    Results {
        /// The ids of the tool uses.
        used: Vec<String>,
        /// The ids of the results.
        results: Vec<String>,
    },
}

/// One message of a conversation with a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingMessage {
    /// The author.
    pub role: Role,
    /// The content: in JSON, a block or an array of blocks.
    #[serde(serialize_with = "write_blocks", deserialize_with = "read_blocks")]
    pub content: Vec<SamplingBlock>,
}

impl SamplingMessage {
    /// Checks a message against the tool uses of the previous one, then replaces them by its own.
    fn check<'a>(&'a self, used: &mut Vec<&'a str>) -> Result<(), MessageError> {
        let mut results = Vec::new();
        let mut uses = Vec::new();
        for block in &self.content {
            match block {
                SamplingBlock::ToolResult(result) => results.push(result.tool_use_id.as_str()),
                SamplingBlock::ToolUse(tool) => uses.push(tool.id.as_str()),
                SamplingBlock::Content(Content::Resource { .. } | Content::ResourceLink(_)) => {
                    return Err(MessageError::Resource);
                }
                SamplingBlock::Content(_) | SamplingBlock::Other(_) => {}
            }
        }
        if !results.is_empty() && (results.len() < self.content.len() || self.role != Role::User) {
            return Err(MessageError::MixedResults);
        }
        if !uses.is_empty() && self.role != Role::Assistant {
            return Err(MessageError::ToolUseByUser);
        }
        results.sort_unstable();
        used.sort_unstable();
        if results != *used {
            let owned = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
            return Err(MessageError::Results {
                used: owned(used),
                results: owned(&results),
            });
        }
        *used = uses;
        Ok(())
    }
}

/// Whether the model must use tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// It must use at least one.
    Required,
    /// It must not use tools.
    None,
}

/// A model's request to use a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "tool_use")]
pub struct ToolUse {
    /// The id for the result.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments, not validated.
    pub input: Map<String, Value>,
    /// Additional metadata.
    #[serde(rename = "_meta", default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl ToolUse {
    /// A successful result.
    pub fn result(&self, content: impl Into<Content>) -> ToolUseResult {
        ToolUseResult {
            tool_use_id: self.id.clone(),
            content: vec![content.into()],
            structured_content: None,
            is_error: false,
            meta: None,
        }
    }

    /// A failure with its reason.
    pub fn failed(&self, reason: impl Into<String>) -> ToolUseResult {
        ToolUseResult {
            is_error: true,
            ..self.result(reason.into())
        }
    }
}

/// The result of a tool use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "tool_result", rename_all = "camelCase")]
pub struct ToolUseResult {
    /// The id of the tool use.
    pub tool_use_id: String,
    /// The content for the model.
    pub content: Vec<Content>,
    /// The result as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_content: Option<Value>,
    /// Whether the tool failed. The content has the reason.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    /// Additional metadata.
    #[serde(rename = "_meta", default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

/// How much of the client's context to include.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IncludeContext {
    /// Nothing.
    None,
    /// The context of this server.
    ThisServer,
    /// The context of all servers.
    AllServers,
}

/// Preferences for the choice of a model. The client decides.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelPreferences {
    /// Preferred models, the best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<ModelHint>,
    /// The priority of low cost, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_priority: Option<f64>,
    /// The priority of speed, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_priority: Option<f64>,
    /// The priority of intelligence, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intelligence_priority: Option<f64>,
}

/// A preferred model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModelHint {
    /// The model's name, or a part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The answer of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SamplingAnswer {
    /// The author, usually the assistant.
    pub role: Role,
    /// The content: in JSON, a block or an array of blocks.
    #[serde(serialize_with = "write_blocks", deserialize_with = "read_blocks")]
    pub content: Vec<SamplingBlock>,
    /// The model that answered.
    pub model: String,
    /// Why the model stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
}

impl SamplingAnswer {
    /// An answer of one text.
    pub fn new(model: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            role: Role::Assistant,
            content: vec![Content::text(text).into()],
            model: model.into(),
            stop_reason: None,
        }
    }

    /// The concatenated text blocks.
    pub fn text(&self) -> String {
        let texts = self.content.iter().filter_map(|block| match block {
            SamplingBlock::Content(content) => content.as_text(),
            _ => None,
        });
        texts.collect()
    }

    /// The tool uses that the model requests.
    pub fn tool_uses(&self) -> impl Iterator<Item = &ToolUse> {
        self.content.iter().filter_map(|block| match block {
            SamplingBlock::ToolUse(tool) => Some(tool),
            _ => None,
        })
    }
}

/// One block of a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SamplingBlock {
    /// A block of content.
    Content(Content),
    /// A tool use.
    ToolUse(ToolUse),
    /// The result of a tool use.
    ToolResult(ToolUseResult),
    /// A block of unknown type, as sent.
    Other(Value),
}

impl<T: Into<Content>> From<T> for SamplingBlock {
    fn from(content: T) -> Self {
        Self::Content(content.into())
    }
}

impl<'de> Deserialize<'de> for SamplingBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_value(Value::deserialize(deserializer)?).map_err(Error::custom)
    }
}

impl SamplingBlock {
    fn from_value(value: Value) -> Result<Self, JsonError> {
        if !value.is_object() {
            return Err(JsonError::new("a content block must be an object"));
        }
        let read = match value.get("type").and_then(Value::as_str) {
            None => return Err(JsonError::new("a content block must have a type")),
            Some("tool_use") => serde_json::from_value(value).map(Self::ToolUse),
            Some("tool_result") => serde_json::from_value(value).map(Self::ToolResult),
            Some(kind) if Content::is_known(kind) => {
                serde_json::from_value(value).map(Self::Content)
            }
            Some(_) => Ok(Self::Other(value)),
        };
        Ok(read?)
    }
}

/// Serializes a single block without an array, for clients that do not read arrays.
fn write_blocks<S: Serializer>(
    blocks: &Vec<SamplingBlock>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match blocks.as_slice() {
        [block] => block.serialize(serializer),
        blocks => blocks.serialize(serializer),
    }
}

/// Reads one block, or an array of blocks.
fn read_blocks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SamplingBlock>, D::Error> {
    let blocks = match Value::deserialize(deserializer)? {
        Value::Array(blocks) => blocks.into_iter().map(SamplingBlock::from_value).collect(),
        block => SamplingBlock::from_value(block).map(|block| vec![block]),
    };
    blocks.map_err(Error::custom)
}
