//! Asks: a handler's requests for input from the client.
//!
//! | ask | method on the wire |
//! | --- | --- |
//! | form, url | `elicitation/create` |
//! | sampling | `sampling/createMessage` |
//! | roots | `roots/list` |

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::capabilities::Capability;
use crate::sampling::SamplingParams;

/// One request for input from the client.
#[derive(Debug, Clone)]
pub enum Ask {
    /// Show a form and return its content.
    Form {
        /// The text to show.
        message: String,
        /// The schema of the form.
        schema: Arc<RawValue>,
    },
    /// Send the user to a URL.
    Url {
        /// The text to show.
        message: String,
        /// The URL.
        url: String,
    },
    /// Sample the client's model.
    Sampling(Box<SamplingParams>),
    /// List the client's roots.
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

    /// The capability that the client must have declared.
    pub fn capability(&self) -> Capability {
        match self {
            Self::Form { .. } => Capability::Form,
            Self::Url { .. } => Capability::Url,
            Self::Sampling(params) => params.capability(),
            Self::Roots => Capability::Roots,
        }
    }
}

/// The `params` of an input request.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum AskParams<'a> {
    Elicit(ElicitParams<'a>),
    Sampling(Cow<'a, SamplingParams>),
}

/// The `params` of `elicitation/create`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ElicitParams<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<&'static str>,
    pub(crate) message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requested_schema: Option<Cow<'a, RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<&'a str>,
    /// Only in 2025-11-25.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) elicitation_id: Option<&'a str>,
}

impl Ask {
    pub(crate) fn params(&self) -> Option<AskParams<'_>> {
        let elicit = |message, schema, url| {
            AskParams::Elicit(ElicitParams {
                mode: Some(self.kind().as_str()),
                message,
                requested_schema: schema,
                url,
                elicitation_id: None,
            })
        };
        match self {
            Self::Form { message, schema } => {
                Some(elicit(message, Some(Cow::Borrowed(schema.as_ref())), None))
            }
            Self::Url { message, url } => Some(elicit(message, None, Some(url))),
            Self::Sampling(params) => Some(AskParams::Sampling(Cow::Borrowed(params.as_ref()))),
            Self::Roots => None,
        }
    }
}

impl Serialize for Ask {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct AskRequest<'a> {
            method: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            params: Option<AskParams<'a>>,
        }
        let (method, params) = (self.kind().method(), self.params());
        AskRequest { method, params }.serialize(serializer)
    }
}

/// The kind of an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AskKind {
    /// A form.
    Form,
    /// A URL to open.
    Url,
    /// A request to the client's model.
    Sampling,
    /// The list of roots.
    Roots,
}

impl AskKind {
    /// The name in messages and logs.
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

    /// The kind of an ask in JSON, or `None` if the JSON is not an ask.
    pub fn of_request(json: &str) -> Option<Self> {
        let request: Value = serde_json::from_str(json).ok()?;
        match (request.get("method")?.as_str()?, &request["params"]["mode"]) {
            ("elicitation/create", Value::Null) => Some(Self::Form),
            ("elicitation/create", mode) if mode == "form" => Some(Self::Form),
            ("elicitation/create", mode) if mode == "url" => Some(Self::Url),
            ("sampling/createMessage", _) => Some(Self::Sampling),
            ("roots/list", _) => Some(Self::Roots),
            _ => None,
        }
    }
}
