//! What older clients send.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Agreed, Revision};
use crate::call::{Call, CallKind};
use crate::complete::{CompleteParams, decode_with};
use crate::decode::{Named, Nested, Object, RawObject, Text, is_object, reason};
use crate::envelope::Members;
use crate::error::RpcError;
use crate::meta::{Capabilities, LogLevel, Meta, PROTOCOL_VERSION_KEY, ProgressToken};
use crate::ratified::ListParams;
use crate::trace::{Loose, RawTrace};

/// What `initialize` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initialize {
    /// The revision to be spoken: the client's, or the latest that is known here.
    pub revision: Revision,
    /// What the client can do, as far as that revision knows it.
    pub capabilities: Capabilities,
}

/// Does the request carry the metadata of 2026-07-28, whatever else it is?
pub fn is_modern(params: Option<&RawValue>) -> bool {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(rename = "_meta", borrow)]
        meta: Members<'a>,
    }
    let read = params.and_then(|raw| serde_json::from_str::<Params<'_>>(raw.get()).ok());
    read.is_some_and(|params| {
        let mut members = params.meta.0.iter();
        members.any(|(key, _)| key.0 == PROTOCOL_VERSION_KEY)
    })
}

/// Reads the params of a method, in which nothing is required but what `T` says.
fn params<'a, T: Deserialize<'a>>(params: Option<&'a RawValue>) -> Result<T, RpcError> {
    if params.is_some_and(|raw| !is_object(raw)) {
        return Err(RpcError::invalid_params("params must be an object"));
    }
    let text = params.map_or("{}", RawValue::get);
    serde_json::from_str(text).map_err(|error| RpcError::invalid_params(reason(&error)))
}

/// Reads the params of `initialize`.
pub fn decode_initialize(raw: Option<&RawValue>) -> Result<Initialize, RpcError> {
    decode_initialize_in(None, raw)
}

/// The same, where one revision is spoken whatever the client asks for, if there is one.
pub(crate) fn decode_initialize_in(
    only: Option<Revision>,
    raw: Option<&RawValue>,
) -> Result<Initialize, RpcError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        #[serde(borrow)]
        protocol_version: Text<'a>,
        capabilities: Nested<Declared>,
        #[serde(rename = "clientInfo")]
        _client_info: Object,
    }
    let read: Params<'_> = params(raw)?;
    let asked = Revision::parse(&read.protocol_version.0);
    let revision = only.or(asked).unwrap_or(Revision::LATEST);
    Ok(Initialize {
        revision,
        capabilities: read.capabilities.0.known_to(revision),
    })
}

/// What a client declares.
#[derive(Deserialize)]
struct Declared {
    elicitation: Option<Nested<Elicitation>>,
    sampling: Option<Nested<Sampling>>,
    roots: Option<Object>,
}

impl Named for Declared {
    const NAME: &'static str = "capabilities";
}

#[derive(Deserialize)]
struct Elicitation {
    form: Option<Object>,
    url: Option<Object>,
}

impl Named for Elicitation {
    const NAME: &'static str = "capabilities.elicitation";
}

#[derive(Deserialize)]
struct Sampling {
    tools: Option<Object>,
    context: Option<Object>,
}

impl Named for Sampling {
    const NAME: &'static str = "capabilities.sampling";
}

impl Declared {
    fn known_to(&self, revision: Revision) -> Capabilities {
        let latest = revision >= Revision::V2025_11_25;
        let forms = revision >= Revision::V2025_06_18;
        let elicitation = self.elicitation.as_ref().map(|declared| &declared.0);
        let elicitation = elicitation.filter(|_| forms);
        let url = latest && elicitation.is_some_and(|declared| declared.url.is_some());
        let sampling = self.sampling.as_ref().map(|declared| &declared.0);
        Capabilities {
            // An empty declaration is one for forms, from before there were URLs.
            form: elicitation.is_some_and(|declared| declared.form.is_some() || !url),
            url,
            sampling: sampling.is_some(),
            sampling_tools: latest && sampling.is_some_and(|declared| declared.tools.is_some()),
            // Before it could be declared, every client had it.
            sampling_context: sampling
                .is_some_and(|declared| !latest || declared.context.is_some()),
            roots: self.roots.is_some(),
            tasks: false,
        }
    }
}

/// What the `_meta` of a request may say.
#[derive(Default, Deserialize)]
struct OlderMeta<'a> {
    #[serde(rename = "progressToken", borrow)]
    progress_token: Option<ProgressToken<'a>>,
    #[serde(borrow)]
    traceparent: Option<Loose<'a>>,
    #[serde(borrow)]
    tracestate: Option<Loose<'a>>,
    #[serde(borrow)]
    baggage: Option<Loose<'a>>,
}

impl Named for OlderMeta<'_> {
    const NAME: &'static str = "_meta";
}

fn meta<'a>(read: Option<Nested<OlderMeta<'a>>>, agreed: Agreed) -> Meta<'a> {
    let read = read.map(|read| read.0).unwrap_or_default();
    let trace = RawTrace {
        parent: read.traceparent,
        state: read.tracestate,
        baggage: read.baggage,
    };
    Meta {
        protocol_version: Cow::Borrowed(agreed.revision.as_str()),
        client_info: None,
        capabilities: agreed.capabilities,
        extensions: None,
        log_level: agreed.log_level,
        progress_token: read.progress_token.map(|token| token.0),
        task_ttl: None,
        call_id: None,
        trace: trace.read(),
    }
}

/// Reads the params of a call.
pub fn decode_call<'a>(
    kind: CallKind,
    raw: Option<&'a RawValue>,
    agreed: Agreed,
) -> Result<Call<'a>, RpcError> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        name: Option<Text<'a>>,
        #[serde(borrow)]
        uri: Option<Text<'a>>,
        #[serde(borrow)]
        arguments: Option<RawObject<'a>>,
        #[serde(rename = "_meta", borrow)]
        meta: Option<Nested<OlderMeta<'a>>>,
    }
    let read: Params<'a> = params(raw)?;
    let target = match kind {
        CallKind::Tool | CallKind::Prompt => read.name,
        CallKind::Resource => read.uri,
    };
    let target = target.ok_or_else(|| {
        let (member, method) = (kind.target_member(), kind.method());
        RpcError::invalid_params(format!("{member} is missing; {method} needs it"))
    })?;
    Ok(Call {
        kind,
        target: target.0,
        arguments: read.arguments.map(|raw| raw.0),
        answers: None,
        state: None,
        meta: meta(read.meta, agreed),
    })
}

/// Reads the params of a list method.
pub fn decode_list<'a>(
    raw: Option<&'a RawValue>,
    agreed: Agreed,
) -> Result<ListParams<'a>, RpcError> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        cursor: Option<Text<'a>>,
        #[serde(rename = "_meta", borrow)]
        meta: Option<Nested<OlderMeta<'a>>>,
    }
    let read: Params<'a> = params(raw)?;
    Ok(ListParams {
        meta: meta(read.meta, agreed),
        cursor: read.cursor.map(|text| text.0),
    })
}

/// Reads the params of `completion/complete`.
pub fn decode_complete<'a>(
    raw: Option<&'a RawValue>,
    agreed: Agreed,
) -> Result<CompleteParams<'a>, RpcError> {
    decode_with(raw, |read: Option<Nested<OlderMeta<'a>>>| {
        meta(read, agreed)
    })
}

/// Reads the level out of the params of `logging/setLevel`.
pub fn decode_set_level(raw: Option<&RawValue>) -> Result<LogLevel, RpcError> {
    #[derive(Deserialize)]
    struct Params {
        level: LogLevel,
    }
    params(raw).map(|read: Params| read.level)
}

/// Reads the URI out of the params of `resources/subscribe` or `resources/unsubscribe`.
pub fn decode_uri<'a>(raw: Option<&'a RawValue>) -> Result<Cow<'a, str>, RpcError> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        uri: Text<'a>,
    }
    params(raw).map(|read: Params<'a>| read.uri.0)
}

/// The messages of a batch. `None`: the bytes are no array, or no JSON.
pub fn split_batch(bytes: &[u8]) -> Option<Vec<&RawValue>> {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if first != Some(&b'[') {
        return None;
    }
    serde_json::from_slice(bytes).ok()
}
