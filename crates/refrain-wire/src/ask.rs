//! What a call may ask of its client.
//!
//! | ask | method on the wire |
//! | --- | --- |
//! | form, url | `elicitation/create` |
//! | sampling | `sampling/createMessage` |
//! | roots | `roots/list` |

use std::sync::Arc;

use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::content::{Content, Role};
use crate::meta::{Capabilities, Capability};

/// One question to the client.
#[derive(Debug, Clone)]
pub enum Ask {
    /// Show a form and return what was filled in.
    Form {
        /// What the person reads.
        message: String,
        /// The schema of what is to be filled in.
        schema: Arc<RawValue>,
    },
    /// Send the person to a URL.
    Url {
        /// What the person reads.
        message: String,
        /// Where to go.
        url: String,
    },
    /// Ask a model.
    Sampling(Box<SamplingParams>),
    /// List the roots.
    Roots,
}

impl Ask {
    /// The kind of ask.
    pub const fn kind(&self) -> AskKind {
        match self {
            Self::Form { .. } => AskKind::Form,
            Self::Url { .. } => AskKind::Url,
            Self::Sampling(_) => AskKind::Sampling,
            Self::Roots => AskKind::Roots,
        }
    }

    /// What the client must have declared to be asked this.
    pub const fn capability(&self) -> Capability {
        match self {
            Self::Form { .. } => Capability::Form,
            Self::Url { .. } => Capability::Url,
            Self::Sampling(params) => params.capability(),
            Self::Roots => Capability::Roots,
        }
    }
}

impl Serialize for Ask {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct FormParams<'a> {
            mode: &'a str,
            message: &'a str,
            #[serde(rename = "requestedSchema")]
            schema: &'a RawValue,
        }
        #[derive(Serialize)]
        struct UrlParams<'a> {
            mode: &'a str,
            message: &'a str,
            url: &'a str,
        }

        let fields = if matches!(self, Self::Roots) { 1 } else { 2 };
        let mut request = serializer.serialize_struct("Ask", fields)?;
        request.serialize_field("method", self.kind().method())?;
        match self {
            Self::Form { message, schema } => {
                request.serialize_field(
                    "params",
                    &FormParams {
                        mode: "form",
                        message,
                        schema,
                    },
                )?;
            }
            Self::Url { message, url } => {
                request.serialize_field(
                    "params",
                    &UrlParams {
                        mode: "url",
                        message,
                        url,
                    },
                )?;
            }
            Self::Sampling(params) => request.serialize_field("params", params)?,
            Self::Roots => {}
        }
        request.end()
    }
}

/// The kinds of ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AskKind {
    /// A form.
    Form,
    /// A visit to a URL.
    Url,
    /// A question to a model.
    Sampling,
    /// The list of roots.
    Roots,
}

impl AskKind {
    /// The kind's name, for messages and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Form => "form",
            Self::Url => "url",
            Self::Sampling => "sampling",
            Self::Roots => "roots",
        }
    }

    /// The method of the input request.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Form | Self::Url => "elicitation/create",
            Self::Sampling => "sampling/createMessage",
            Self::Roots => "roots/list",
        }
    }
}

/// A question to the client's model.
///
/// ```
/// use refrain_wire::SamplingParams;
/// let params = SamplingParams::new(100)
///     .system("You are a geographer.")
///     .user("What is the capital of France?")
///     .hint("claude-3-sonnet")
///     .intelligence(0.8);
/// assert_eq!(params.messages.len(), 1);
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SamplingParams {
    /// The conversation so far.
    pub messages: Vec<SamplingMessage>,
    /// Which model to choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_preferences: Option<ModelPreferences>,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// How much of the client's context the model should see. Only clients that declare `sampling.context` are asked
    /// for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include_context: Option<IncludeContext>,
    /// How freely the model should choose its words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// The most tokens the model may write.
    pub max_tokens: u32,
    /// Texts that end the model's answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_sequences: Vec<String>,
    /// Further settings for the client's provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// The tools the model may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Value>,
    /// Whether the model must use them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Value>,
}

impl SamplingParams {
    /// An empty conversation with room for this many tokens of answer.
    pub fn new(max_tokens: u32) -> Self {
        Self {
            max_tokens,
            ..Self::default()
        }
    }

    /// Adds a message.
    #[must_use]
    pub fn message(mut self, role: Role, content: Content) -> Self {
        self.messages.push(SamplingMessage { role, content });
        self
    }

    /// Adds a text from the user.
    #[must_use]
    pub fn user(self, text: impl Into<String>) -> Self {
        self.message(Role::User, Content::text(text))
    }

    /// Adds a text from the assistant.
    #[must_use]
    pub fn assistant(self, text: impl Into<String>) -> Self {
        self.message(Role::Assistant, Content::text(text))
    }

    /// Sets the system prompt.
    #[must_use]
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.system_prompt = Some(text.into());
        self
    }

    /// Sets the temperature.
    #[must_use]
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Adds a model, or a part of its name, to those preferred.
    #[must_use]
    pub fn hint(mut self, name: impl Into<String>) -> Self {
        self.preferences().hints.push(ModelHint {
            name: Some(name.into()),
        });
        self
    }

    /// Says from 0 to 1 how much the model's intelligence matters.
    #[must_use]
    pub fn intelligence(mut self, priority: f64) -> Self {
        self.preferences().intelligence_priority = Some(priority);
        self
    }

    /// Says from 0 to 1 how much the model's speed matters.
    #[must_use]
    pub fn speed(mut self, priority: f64) -> Self {
        self.preferences().speed_priority = Some(priority);
        self
    }

    /// Says from 0 to 1 how much the model's cost matters.
    #[must_use]
    pub fn cost(mut self, priority: f64) -> Self {
        self.preferences().cost_priority = Some(priority);
        self
    }

    /// What the client must have declared to be asked this.
    pub const fn capability(&self) -> Capability {
        if self.tools.is_some() || self.tool_choice.is_some() {
            Capability::SamplingTools
        } else {
            Capability::Sampling
        }
    }

    /// Leaves out what this client did not declare and can do without: its context.
    pub fn keep_to(&mut self, capabilities: Capabilities) {
        if !capabilities.sampling_context {
            self.include_context = None;
        }
    }

    fn preferences(&mut self) -> &mut ModelPreferences {
        self.model_preferences.get_or_insert_default()
    }
}

/// One message of a conversation with a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingMessage {
    /// Who said it.
    pub role: Role,
    /// What was said.
    pub content: Content,
}

/// How much of the client's context a model should see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IncludeContext {
    /// Nothing.
    None,
    /// What came from this server.
    ThisServer,
    /// What came from any server.
    AllServers,
}

/// Which model to choose; the client decides.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelPreferences {
    /// Models to consider, the best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<ModelHint>,
    /// From 0 to 1, how much a low cost matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_priority: Option<f64>,
    /// From 0 to 1, how much speed matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_priority: Option<f64>,
    /// From 0 to 1, how much intelligence matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intelligence_priority: Option<f64>,
}

/// A model to consider.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModelHint {
    /// The model's name, or a part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}
