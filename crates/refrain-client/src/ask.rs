//! The asks of a call, and the answers to them.

use refrain_wire::{
    Action, AskKind, CallKind, Capability, Form, Root, SamplingAnswer, SamplingParams,
    check_answer_shape,
};
use serde::Deserialize;
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use std::fmt;
use std::sync::Arc;
use url::Url;

/// The longest URL that a person is sent to: they have to read all of it before.
const URL_MAX: usize = 8 * 1024;

const ELICITATION: &str = "elicitation/create";

/// The origin of an ask, to be shown wherever a person is asked.
#[derive(Clone, PartialEq, Eq)]
pub struct Asker {
    /// The name that the server gives itself. It is not verified.
    pub server: Option<String>,
    /// The server's URL, or the command that was started.
    pub address: String,
    /// The kind of the call.
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

/// The address of a server for logs. The arguments of a command are left out: they may be secrets.
pub(crate) fn without_arguments(address: &str) -> &str {
    if address.starts_with("http://") || address.starts_with("https://") {
        return address;
    }
    address.split(' ').next().unwrap_or_default()
}

/// A form to be filled in.
#[derive(Debug, Clone)]
pub struct FormAsk {
    /// The key of the ask.
    pub key: String,
    /// The origin of the ask.
    pub asker: Arc<Asker>,
    /// The message for the person.
    pub message: String,
    /// The form.
    pub form: Form,
}

/// A URL to be visited. It must not be fetched, and not be opened without consent.
#[derive(Debug, Clone)]
pub struct UrlAsk {
    /// The key of the ask.
    pub key: String,
    /// The origin of the ask.
    pub asker: Arc<Asker>,
    /// The message for the person.
    pub message: String,
    /// The URL.
    pub url: Url,
}

/// A question to a model.
#[derive(Debug, Clone)]
pub struct SamplingAsk {
    /// The key of the ask.
    pub key: String,
    /// The origin of the ask.
    pub asker: Arc<Asker>,
    /// The conversation, and preferences for the model.
    pub params: SamplingParams,
}

/// A question for the roots.
#[derive(Debug, Clone)]
pub struct RootsAsk {
    /// The key of the ask.
    pub key: String,
    /// The origin of the ask.
    pub asker: Arc<Asker>,
}

/// An ask that this client does not know, or cannot show.
#[derive(Debug, Clone)]
pub struct UnknownAsk {
    /// The key of the ask.
    pub key: String,
    /// The origin of the ask.
    pub asker: Arc<Asker>,
    /// Why it cannot be shown.
    pub why: String,
    /// Whether it is meant for a person, who may decline or cancel it unseen.
    pub can_decline: bool,
}

/// One ask of a call.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Ask {
    /// A form to be filled in.
    Form(FormAsk),
    /// A URL to be visited.
    Url(UrlAsk),
    /// A question to a model.
    Sampling(Box<SamplingAsk>),
    /// A question for the roots.
    Roots(RootsAsk),
    /// An ask that this client does not know, or cannot show.
    Unknown(UnknownAsk),
}

impl Ask {
    /// The key of the ask.
    pub fn key(&self) -> &str {
        match self {
            Self::Form(ask) => &ask.key,
            Self::Url(ask) => &ask.key,
            Self::Sampling(ask) => &ask.key,
            Self::Roots(ask) => &ask.key,
            Self::Unknown(ask) => &ask.key,
        }
    }

    /// The kind of the ask, if it is known.
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
        parsed.unwrap_or_else(|UnreadableAsk(why)| {
            Self::Unknown(UnknownAsk {
                key: key.to_owned(),
                asker: Arc::clone(asker),
                why,
                can_decline: request["method"] == ELICITATION,
            })
        })
    }

    fn parse(key: String, request: &Value, asker: Arc<Asker>) -> Result<Self, UnreadableAsk> {
        let method = request["method"].as_str();
        let method = method.ok_or_else(|| unreadable("the ask has no method"))?;
        let params = request.get("params");
        let params = params.ok_or_else(|| unreadable(format!("the ask {method} has no params")));
        match method {
            ELICITATION => Self::parse_elicitation(key, read("elicitation", params?)?, asker),
            "sampling/createMessage" => {
                let params: SamplingParams = read("sampling", params?)?;
                if params.capability() != Capability::Sampling {
                    let why = "the model is to use tools, which this client does not offer";
                    return Err(unreadable(why));
                }
                params
                    .check()
                    .map_err(|error| unreadable(error.to_string()))?;
                Ok(Self::Sampling(Box::new(SamplingAsk { key, asker, params })))
            }
            "roots/list" => Ok(Self::Roots(RootsAsk { key, asker })),
            method => Err(unreadable(format!(
                "asks of the method {method:?} are unknown"
            ))),
        }
    }

    fn parse_elicitation(
        key: String,
        ask: Elicitation,
        asker: Arc<Asker>,
    ) -> Result<Self, UnreadableAsk> {
        let message = ask.message;
        match ask.mode.as_deref() {
            None | Some("form") => {
                let schema = ask.requested_schema;
                let schema = schema.ok_or_else(|| unreadable("the form has no schema"))?;
                let schema =
                    to_raw_value(&schema).map_err(|error| unreadable(error.to_string()))?;
                let form = Form::parse(&schema)
                    .map_err(|error| unreadable(format!("the form cannot be shown: {error}")))?;
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
                    .ok_or_else(|| unreadable("the URL to visit is missing"))?;
                check_length(&text)?;
                let url = Url::parse(&text)
                    .map_err(|error| unreadable(format!("{text:?} is no URL: {error}")))?;
                if !matches!(url.scheme(), "http" | "https") {
                    return Err(unreadable(format!(
                        "a person can be sent to http and https URLs only, not to {text:?}"
                    )));
                }
                // Letters beyond ASCII are escaped now.
                check_length(url.as_str())?;
                Ok(Self::Url(UrlAsk {
                    key,
                    asker,
                    message,
                    url,
                }))
            }
            Some(mode) => Err(unreadable(format!(
                "elicitations of mode {mode:?} are unknown"
            ))),
        }
    }

    /// Checks that an answer fits the ask, and fills in the defaults of a form.
    pub(crate) fn check(&self, answer: Answer) -> Result<Answer, InvalidAnswer> {
        match (self, answer) {
            (Self::Form(ask), Answer::Accept(mut content)) => {
                ask.form.fill_defaults(&mut content);
                let content = Value::Object(content);
                let checked = ask.form.check(&content);
                checked.map_err(|error| InvalidAnswer(error.to_string()))?;
                Answer::accept(content)
            }
            (Self::Url(_), Answer::Accept(content)) if !content.is_empty() => {
                Err(InvalidAnswer("a visit to a URL has no content".to_owned()))
            }
            (Self::Roots(_), Answer::Roots(roots)) => {
                roots.iter().try_for_each(check_root)?;
                Ok(Answer::Roots(roots))
            }
            (Self::Form(_) | Self::Url(_), answer @ (Answer::Decline | Answer::Cancel))
            | (Self::Url(_), answer @ Answer::Accept(_))
            | (Self::Sampling(_), answer @ Answer::Sampled(_)) => Ok(answer),
            (Self::Unknown(ask), answer @ (Answer::Decline | Answer::Cancel))
                if ask.can_decline =>
            {
                Ok(answer)
            }
            (Self::Unknown(ask), _) => Err(InvalidAnswer(ask.why.clone())),
            (ask, _) => Err(InvalidAnswer(format!(
                "the answer does not fit an ask of the kind {}",
                ask.kind().map_or("unknown", AskKind::as_str)
            ))),
        }
    }
}

/// Checks that a root is an unambiguous `file://` URI.
fn check_root(root: &Root) -> Result<(), InvalidAnswer> {
    let uri = &root.uri;
    // Parsing resolves `.` and `..`.
    let is_up = |part: &str| matches!(part.replace("%2e", ".").as_str(), "." | "..");
    let why = match Url::parse(uri) {
        Err(_) => "it is no URI",
        Ok(url) if url.scheme() != "file" || !uri.starts_with("file://") => {
            "it must begin with file://"
        }
        Ok(_) if uri.to_ascii_lowercase().split(['/', '\\']).any(is_up) => {
            "its path must not have . or .. in it"
        }
        Ok(_) => return Ok(()),
    };
    let why = format!("the root {uri:?} cannot be told: {why}");
    Err(InvalidAnswer(why))
}

fn check_length(url: &str) -> Result<(), UnreadableAsk> {
    match url.len() {
        0..=URL_MAX => Ok(()),
        length => Err(unreadable(format!(
            "the URL to visit has {length} bytes; a person can look through {URL_MAX} at most"
        ))),
    }
}

/// Why an answer does not answer its ask.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidAnswer(pub(crate) String);

#[derive(Debug)]
struct UnreadableAsk(String);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Elicitation {
    mode: Option<String>,
    message: String,
    requested_schema: Option<Value>,
    url: Option<String>,
}

fn read<'a, T: Deserialize<'a>>(what: &str, value: &'a Value) -> Result<T, UnreadableAsk> {
    T::deserialize(value).map_err(|error| unreadable(format!("the {what} cannot be read: {error}")))
}

fn unreadable(why: impl Into<String>) -> UnreadableAsk {
    UnreadableAsk(why.into())
}

/// The answer to an ask.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum Answer {
    /// The content of a form, or the consent to a URL (then it is empty).
    Accept(Map<String, Value>),
    /// The person said no to a form or a URL.
    Decline,
    /// The person dismissed a form or a URL.
    Cancel,
    /// The reply of a model.
    Sampled(Box<SamplingAnswer>),
    /// The roots.
    Roots(Vec<Root>),
}

/// Shows only the kind of the answer: its content may be private.
impl fmt::Debug for Answer {
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

impl Answer {
    /// A form filled in with the members of this object.
    pub fn accept(content: Value) -> Result<Self, InvalidAnswer> {
        // The content may be private, so the error names only its type.
        let other = match content {
            Value::Object(content) => return Ok(Self::Accept(content)),
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
        };
        Err(InvalidAnswer(format!(
            "a form is filled in with an object, not with {other}"
        )))
    }

    /// The consent to a URL.
    pub fn visited() -> Self {
        Self::Accept(Map::new())
    }

    /// Reads an answer of this kind in the protocol's JSON form.
    pub fn read(kind: AskKind, answer: &Value) -> Result<Self, InvalidAnswer> {
        let unreadable = |error: serde_json::Error| InvalidAnswer(error.to_string());
        let raw = to_raw_value(answer).map_err(unreadable)?;
        let checked = check_answer_shape(kind, &raw);
        checked.map_err(|error| InvalidAnswer(error.to_string()))?;
        Ok(match kind {
            AskKind::Form | AskKind::Url => {
                match Action::deserialize(&answer["action"]).map_err(unreadable)? {
                    Action::Accept => match &answer["content"] {
                        Value::Object(content) => Self::Accept(content.clone()),
                        _ => Self::visited(),
                    },
                    Action::Decline => Self::Decline,
                    Action::Cancel => Self::Cancel,
                }
            }
            AskKind::Sampling => Self::Sampled(Box::deserialize(answer).map_err(unreadable)?),
            AskKind::Roots => Self::Roots(Vec::deserialize(&answer["roots"]).map_err(unreadable)?),
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
    use crate::call::Call;
    use crate::pending::{Origin, PendingCall};

    #[test]
    fn a_url_that_nobody_can_look_through_is_not_asked() {
        let read = |url: &str| {
            let params = json!({"mode": "url", "message": "Go", "url": url});
            let request = json!({"method": "elicitation/create", "params": params});
            Ask::parse("k".into(), &request, PendingCall::of_task("t").asker())
        };
        let start = "https://example.com/";
        let longest = format!("{start}{}", "x".repeat(URL_MAX - start.len()));
        assert!(matches!(read(&longest), Ok(Ask::Url(ask)) if ask.url.as_str() == longest));
        // Three bytes for each of the two of a letter.
        let letters = format!("{start}{}", "é".repeat(URL_MAX / 3));
        for url in [format!("{longest}x"), letters] {
            let UnreadableAsk(why) = read(&url).expect_err("it is too long");
            assert!(why.contains("8192 at most") && !why.contains("xx"), "{why}");
        }
    }

    #[test]
    fn what_is_private_is_not_shown() {
        for (content, of) in [
            (json!("s3cret"), "a string"),
            (json!(["s3cret"]), "an array"),
        ] {
            let why = Answer::accept(content).unwrap_err().to_string();
            assert!(why.ends_with(of), "{why}");
        }
        let pending = |address: &str| {
            let origin = Origin {
                address: address.to_owned(),
                server: None,
                dialect: None,
            };
            PendingCall::new(Call::tool("t"), "1".into(), origin)
        };
        let command = pending("./server --token s3cret");
        let shown = format!("{command:?} {:?}", command.asker());
        assert!(
            !shown.contains("s3cret") && shown.contains("./server"),
            "{shown}"
        );
        let url = pending("https://example.com/mcp");
        assert!(format!("{url:?}").contains("https://example.com/mcp"));
    }

    #[test]
    fn an_answer_of_another_kind_is_said_to_be_none() {
        let asker = PendingCall::of_task("t").asker();
        let ask = Ask::Roots(RootsAsk {
            key: "k".into(),
            asker,
        });
        let why = ask.check(Answer::Decline).unwrap_err();
        assert_eq!(why.0, "the answer does not fit an ask of the kind roots");
    }
}
