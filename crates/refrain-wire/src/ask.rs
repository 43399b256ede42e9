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
use serde_json::value::RawValue;

use crate::decode::Text;
use crate::meta::Capability;
use crate::sampling::SamplingParams;

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
    pub fn capability(&self) -> Capability {
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

    /// The kind of an ask that was written as JSON. `None` if it is none.
    ///
    /// ```
    /// # use refrain_wire::{Ask, AskKind};
    /// let kept = serde_json::to_string(&Ask::Roots)?;
    /// assert_eq!(AskKind::of_request(&kept), Some(AskKind::Roots));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn of_request(json: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Request<'a> {
            #[serde(borrow)]
            method: Text<'a>,
            #[serde(borrow)]
            params: Option<Params<'a>>,
        }
        #[derive(Deserialize)]
        struct Params<'a> {
            #[serde(borrow)]
            mode: Option<Text<'a>>,
        }
        let request: Request<'_> = serde_json::from_str(json).ok()?;
        let mode = request.params.and_then(|params| params.mode);
        match (
            request.method.0.as_ref(),
            mode.as_ref().map(|mode| mode.0.as_ref()),
        ) {
            ("elicitation/create", None | Some("form")) => Some(Self::Form),
            ("elicitation/create", Some("url")) => Some(Self::Url),
            ("sampling/createMessage", _) => Some(Self::Sampling),
            ("roots/list", _) => Some(Self::Roots),
            _ => None,
        }
    }
}
