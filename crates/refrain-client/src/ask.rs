//! Asks of a server, and the answers to them.

use refrain_wire::{
    Action, AskKind, CallKind, Form, Root, SamplingAnswer, SamplingParams, check_answer_shape,
};
use serde::Deserialize;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use std::fmt;
use std::sync::Arc;
use url::Url;

/// The maximum length of a URL to visit, in bytes: the person has to read it first.
const URL_MAX: usize = 8 * 1024;

const ELICITATION: &str = "elicitation/create";

/// The origin of an ask. Show it whenever a person is asked.
#[derive(Clone, PartialEq, Eq)]
pub struct Asker {
    /// The server's own name for itself, which is not verified.
    pub server: Option<String>,
    /// The server's URL, or the command that was started.
    pub address: String,
    /// Whether the call is of a tool, a prompt or a resource.
    pub kind: CallKind,
    /// The name of the tool or prompt, or the URI of the resource.
    pub target: String,
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asker")
            .field("server", &self.server)
            .field("address", &without_arguments(&self.address))
            .field("kind", &self.kind)
            .field("target", &self.target)
            .finish()
    }
}

/// The address of a server for logs, without the arguments of a command: they may be secrets.
pub(crate) fn without_arguments(address: &str) -> &str {
    if address.starts_with("http://") || address.starts_with("https://") {
        return address;
    }
    address.split(' ').next().unwrap_or_default()
}

/// A form to fill in.
#[derive(Debug, Clone)]
pub struct FormAsk {
    /// The key of the ask, unique within a round.
    pub key: String,
    /// The server and the call that sent the ask.
    pub asker: Arc<Asker>,
    /// The message for the person.
    pub message: String,
    /// The form.
    pub form: Form,
}

/// A URL to visit. It must not be fetched, nor opened without the person's consent.
#[derive(Debug, Clone)]
pub struct UrlAsk {
    /// The key of the ask, unique within a round.
    pub key: String,
    /// The server and the call that sent the ask.
    pub asker: Arc<Asker>,
    /// The message for the person.
    pub message: String,
    /// The URL.
    pub url: Url,
}

/// A question to a model.
#[derive(Debug, Clone)]
pub struct SamplingAsk {
    /// The key of the ask, unique within a round.
    pub key: String,
    /// The server and the call that sent the ask.
    pub asker: Arc<Asker>,
    /// The conversation, and preferences for the model.
    pub params: SamplingParams,
}

/// A request for the roots: the directories that the server may work in.
#[derive(Debug, Clone)]
pub struct RootsAsk {
    /// The key of the ask, unique within a round.
    pub key: String,
    /// The server and the call that sent the ask.
    pub asker: Arc<Asker>,
}

/// An ask of an unknown kind, or one that this client cannot show.
#[derive(Debug, Clone)]
pub struct UnknownAsk {
    /// The key of the ask, unique within a round.
    pub key: String,
    /// The server and the call that sent the ask.
    pub asker: Arc<Asker>,
    /// Why it cannot be shown.
    pub why: String,
    /// Whether it may be declined or cancelled without being shown: true for elicitations.
    pub can_decline: bool,
}

/// One ask of a call, of any kind.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum IncomingAsk {
    /// A form to fill in.
    Form(FormAsk),
    /// A URL to visit.
    Url(UrlAsk),
    /// A question to a model.
    Sampling(Box<SamplingAsk>),
    /// A request for the roots.
    Roots(RootsAsk),
    /// An ask of an unknown kind, or one that this client cannot show.
    Unknown(UnknownAsk),
}

impl IncomingAsk {
    /// The key, unique within a round.
    pub fn key(&self) -> &str {
        match self {
            Self::Form(ask) => &ask.key,
            Self::Url(ask) => &ask.key,
            Self::Sampling(ask) => &ask.key,
            Self::Roots(ask) => &ask.key,
            Self::Unknown(ask) => &ask.key,
        }
    }

    /// The kind; `None` for [`Self::Unknown`].
    pub fn kind(&self) -> Option<AskKind> {
        match self {
            Self::Form(_) => Some(AskKind::Form),
            Self::Url(_) => Some(AskKind::Url),
            Self::Sampling(_) => Some(AskKind::Sampling),
            Self::Roots(_) => Some(AskKind::Roots),
            Self::Unknown(_) => None,
        }
    }

    pub(crate) fn read(key: &str, request: &Value, asker: &Arc<Asker>) -> Self {
        let parsed = Self::parse(key.to_owned(), request, Arc::clone(asker));
        parsed.unwrap_or_else(|InvalidAsk(why)| {
            Self::Unknown(UnknownAsk {
                key: key.to_owned(),
                asker: Arc::clone(asker),
                why,
                can_decline: request["method"] == ELICITATION,
            })
        })
    }

    fn parse(key: String, request: &Value, asker: Arc<Asker>) -> Result<Self, InvalidAsk> {
        let method = request["method"].as_str();
        let method = method.ok_or_else(|| invalid("the ask has no method"))?;
        let params = request.get("params");
        let params = params.ok_or_else(|| invalid(format!("the ask {method} has no params")));
        match method {
            ELICITATION => Self::parse_elicitation(key, read("elicitation", params?)?, asker),
            "sampling/createMessage" => {
                let params: SamplingParams = read("sampling", params?)?;
                params.check().map_err(|error| invalid(error.to_string()))?;
                Ok(Self::Sampling(Box::new(SamplingAsk { key, asker, params })))
            }
            "roots/list" => Ok(Self::Roots(RootsAsk { key, asker })),
            method => Err(invalid(format!("unknown ask method {method:?}"))),
        }
    }

    fn parse_elicitation(
        key: String,
        ask: Elicitation,
        asker: Arc<Asker>,
    ) -> Result<Self, InvalidAsk> {
        let message = ask.message;
        match ask.mode.as_deref() {
            None | Some("form") => {
                let schema = ask.requested_schema;
                let schema = schema.ok_or_else(|| invalid("the form has no schema"))?;
                let schema = to_raw_value(&schema).map_err(|error| invalid(error.to_string()))?;
                let form = Form::parse(&schema)
                    .map_err(|error| invalid(format!("the form cannot be shown: {error}")))?;
                Ok(Self::Form(FormAsk {
                    key,
                    asker,
                    message,
                    form,
                }))
            }
            Some("url") => {
                let text = ask
                    .url
                    .ok_or_else(|| invalid("the URL to visit is missing"))?;
                check_length(&text)?;
                let url = Url::parse(&text)
                    .map_err(|error| invalid(format!("invalid URL {text:?}: {error}")))?;
                if !matches!(url.scheme(), "http" | "https") {
                    return Err(invalid(format!(
                        "unsafe URL {text:?}: expected http or https"
                    )));
                }
                // Escaping may have made it longer.
                check_length(url.as_str())?;
                Ok(Self::Url(UrlAsk {
                    key,
                    asker,
                    message,
                    url,
                }))
            }
            Some(mode) => Err(invalid(format!("unknown elicitation mode {mode:?}"))),
        }
    }

    /// Checks an answer against this ask, and fills in the defaults of a form.
    pub(crate) fn check(&self, answer: AskAnswer) -> Result<AskAnswer, InvalidAnswer> {
        match (self, answer) {
            (Self::Form(ask), AskAnswer::Accept(mut content)) => {
                ask.form.fill_defaults(&mut content);
                let content = Value::Object(content);
                let checked = ask.form.check(&content);
                checked.map_err(|error| InvalidAnswer(error.to_string()))?;
                AskAnswer::accept(content)
            }
            (Self::Url(_), AskAnswer::Accept(content)) if !content.is_empty() => Err(
                InvalidAnswer("the answer to a URL must have no content".to_owned()),
            ),
            (Self::Roots(_), AskAnswer::Roots(roots)) => {
                roots.iter().try_for_each(check_root)?;
                Ok(AskAnswer::Roots(roots))
            }
            (Self::Form(_) | Self::Url(_), answer @ (AskAnswer::Decline | AskAnswer::Cancel))
            | (Self::Url(_), answer @ AskAnswer::Accept(_))
            | (Self::Sampling(_), answer @ AskAnswer::Sampled(_)) => Ok(answer),
            (Self::Unknown(ask), answer @ (AskAnswer::Decline | AskAnswer::Cancel))
                if ask.can_decline =>
            {
                Ok(answer)
            }
            (Self::Unknown(ask), _) => Err(InvalidAnswer(ask.why.clone())),
            (ask, _) => Err(InvalidAnswer(format!(
                "answer of the wrong kind for a {} ask",
                ask.kind().map_or("unknown", AskKind::as_str)
            ))),
        }
    }
}

pub(crate) fn check_root(root: &Root) -> Result<(), InvalidAnswer> {
    let uri = &root.uri;
    // Checks the text, because `Url::parse` resolves `.` and `..`.
    let is_dot = |part: &str| matches!(part.replace("%2e", ".").as_str(), "." | "..");
    let why = match Url::parse(uri) {
        Err(_) => "not a URI",
        Ok(url) if url.scheme() != "file" || !uri.starts_with("file://") => "expected file://",
        Ok(_) if uri.to_ascii_lowercase().split(['/', '\\']).any(is_dot) => {
            "the path must not contain . or .."
        }
        Ok(_) => return Ok(()),
    };
    Err(InvalidAnswer(format!("invalid root {uri:?}: {why}")))
}

fn check_length(url: &str) -> Result<(), InvalidAsk> {
    match url.len() {
        0..=URL_MAX => Ok(()),
        length => Err(invalid(format!(
            "the URL to visit has {length} bytes, more than a person can check; the limit is {URL_MAX}"
        ))),
    }
}

/// An answer that does not match its ask.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidAnswer(pub(crate) String);

#[derive(Debug)]
struct InvalidAsk(String);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Elicitation {
    mode: Option<String>,
    message: String,
    requested_schema: Option<Value>,
    url: Option<String>,
}

fn read<'a, T: Deserialize<'a>>(what: &str, value: &'a Value) -> Result<T, InvalidAsk> {
    T::deserialize(value).map_err(|error| invalid(format!("invalid {what} ask: {error}")))
}

fn invalid(why: impl Into<String>) -> InvalidAsk {
    InvalidAsk(why.into())
}

/// The answer to an ask.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum AskAnswer {
    /// The content of a form, or the consent to visit a URL (empty).
    Accept(Map<String, Value>),
    /// The person declined a form or a URL.
    Decline,
    /// The person dismissed a form or a URL.
    Cancel,
    /// The reply of a model.
    Sampled(Box<SamplingAnswer>),
    /// The roots.
    Roots(Vec<Root>),
}

/// Shows only the kind of the answer: its content may be private.
impl fmt::Debug for AskAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accept(_) => "Accept(..)",
            Self::Decline => "Decline",
            Self::Cancel => "Cancel",
            Self::Sampled(_) => "Sampled(..)",
            Self::Roots(_) => "Roots(..)",
        })
    }
}

impl AskAnswer {
    /// The content of a form, which must be an object.
    pub fn accept(content: Value) -> Result<Self, InvalidAnswer> {
        // The error names only the type: the content may be private.
        let other = match content {
            Value::Object(content) => return Ok(Self::Accept(content)),
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
        };
        Err(InvalidAnswer(format!(
            "invalid form content: expected an object, not {other}"
        )))
    }

    /// The consent to visit a URL: accepts without content.
    pub fn visited() -> Self {
        Self::Accept(Map::new())
    }

    /// Reads an answer to an ask of this kind from the protocol's JSON.
    pub fn read(kind: AskKind, answer: &Value) -> Result<Self, InvalidAnswer> {
        let invalid = |error: serde_json::Error| InvalidAnswer(error.to_string());
        let raw = to_raw_value(answer).map_err(invalid)?;
        let checked = check_answer_shape(kind, &raw);
        checked.map_err(|error| InvalidAnswer(error.to_string()))?;
        Ok(match kind {
            AskKind::Form | AskKind::Url => {
                match Action::deserialize(&answer["action"]).map_err(invalid)? {
                    Action::Accept => match &answer["content"] {
                        Value::Object(content) => Self::Accept(content.clone()),
                        _ => Self::visited(),
                    },
                    Action::Decline => Self::Decline,
                    Action::Cancel => Self::Cancel,
                }
            }
            AskKind::Sampling => Self::Sampled(Box::deserialize(answer).map_err(invalid)?),
            AskKind::Roots => Self::Roots(Vec::deserialize(&answer["roots"]).map_err(invalid)?),
        })
    }

    pub(crate) fn to_json(&self, kind: Option<AskKind>) -> Value {
        match self {
            Self::Accept(content) if kind == Some(AskKind::Form) => {
                json!({"action": "accept", "content": content})
            }
            Self::Accept(_) => json!({"action": "accept"}),
            Self::Decline => json!({"action": "decline"}),
            Self::Cancel => json!({"action": "cancel"}),
            Self::Sampled(answer) => json!(answer),
            Self::Roots(roots) => json!({"roots": roots}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::CallSpec;
    use crate::pending::{CallOrigin, PendingCall};

    #[test]
    fn too_long_url_is_rejected() {
        let read = |url: &str| {
            let params = json!({"mode": "url", "message": "Go", "url": url});
            let request = json!({"method": "elicitation/create", "params": params});
            IncomingAsk::parse("k".into(), &request, PendingCall::of_task("t").asker())
        };
        let start = "https://example.com/";
        let longest = format!("{start}{}", "x".repeat(URL_MAX - start.len()));
        assert!(matches!(read(&longest), Ok(IncomingAsk::Url(ask)) if ask.url.as_str() == longest));
        // Escaping turns the two bytes of each letter into six.
        let escaped = format!("{start}{}", "é".repeat(URL_MAX / 3));
        for url in [format!("{longest}x"), escaped] {
            let InvalidAsk(why) = read(&url).expect_err("the URL is too long");
            assert!(
                why.contains("the limit is 8192") && !why.contains("xx"),
                "{why}"
            );
        }
    }

    #[test]
    fn errors_and_debug_output_hide_private_data() {
        for (content, kind) in [
            (json!("s3cret"), "a string"),
            (json!(["s3cret"]), "an array"),
        ] {
            let why = AskAnswer::accept(content).unwrap_err().to_string();
            assert!(why.ends_with(kind), "{why}");
        }
        let pending = |address: &str| {
            let origin = CallOrigin {
                address: address.to_owned(),
                server: None,
                dialect: None,
            };
            PendingCall::new(CallSpec::tool("t"), "1".into(), origin)
        };
        let command = pending("./server --token s3cret");
        let debug = format!("{command:?} {:?}", command.asker());
        assert!(
            !debug.contains("s3cret") && debug.contains("./server"),
            "{debug}"
        );
        let url = pending("https://example.com/mcp");
        assert!(format!("{url:?}").contains("https://example.com/mcp"));
    }

    #[test]
    fn answer_of_another_kind_is_rejected() {
        let asker = PendingCall::of_task("t").asker();
        let ask = IncomingAsk::Roots(RootsAsk {
            key: "k".into(),
            asker,
        });
        let why = ask.check(AskAnswer::Decline).unwrap_err();
        assert_eq!(why.0, "answer of the wrong kind for a roots ask");
    }
}
