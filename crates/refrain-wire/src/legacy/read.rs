//! Reads messages from legacy clients.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{Revision, SessionSettings};
use crate::call::{Call, CallKind};
use crate::canonical::JsonError;
use crate::capabilities::Capabilities;
use crate::complete::{CompleteParams, read_complete};
use crate::decode::{EXPECTED_ID, Text};
use crate::error::RpcError;
use crate::members::Reader;
use crate::meta::{
    CustomMeta, LogLevel, Meta, PROGRESS_TOKEN_KEY, PROTOCOL_VERSION_KEY, ProgressToken,
    is_reserved,
};
use crate::ratified::ListParams;
use crate::trace::{RawTrace, TraceContext};

/// The params of `initialize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initialize {
    /// The revision of the session: the client's, or the latest supported one.
    pub revision: Revision,
    /// The client's capabilities in that revision.
    pub capabilities: Capabilities,
}

/// Whether a request has the `_meta` of 2026-07-28.
pub fn is_modern(params: Option<&RawValue>) -> bool {
    let meta = Reader::optional_params(params).map(|params| params.object("_meta"));
    let Ok(Ok(Some(meta))) = meta else {
        return false;
    };
    let mut members = meta.members.0.iter();
    members.any(|(key, _)| key.0 == PROTOCOL_VERSION_KEY)
}

fn read_params(raw: Option<&RawValue>) -> Result<Reader<'_>, RpcError> {
    Ok(Reader::optional_params(raw)?.with_null_as_absent())
}

/// Reads the params of `initialize`.
pub fn decode_initialize(raw: Option<&RawValue>) -> Result<Initialize, RpcError> {
    decode_initialize_in(None, raw)
}

/// Reads the params of `initialize`, in a fixed revision or the negotiated one.
pub(crate) fn decode_initialize_in(
    fixed: Option<Revision>,
    raw: Option<&RawValue>,
) -> Result<Initialize, RpcError> {
    let params = read_params(raw)?;
    let version = params.text("protocolVersion")?;
    let version = version.ok_or_else(|| params.missing("protocolVersion"))?;
    let capabilities = params.object("capabilities")?;
    let capabilities = capabilities.ok_or_else(|| params.missing("capabilities"))?;
    let client = params.raw_object("clientInfo")?;
    client.ok_or_else(|| params.missing("clientInfo"))?;
    let revision = fixed.or_else(|| Revision::parse(&version));
    let revision = revision.unwrap_or(Revision::LATEST);
    Ok(Initialize {
        revision,
        capabilities: read_capabilities(&capabilities, revision)?,
    })
}

fn read_capabilities(declared: &Reader<'_>, revision: Revision) -> Result<Capabilities, JsonError> {
    let latest = revision >= Revision::V2025_11_25;
    let elicitation = declared.object("elicitation")?;
    let sampling = declared.object("sampling")?;
    let has = |declared: &Option<Reader<'_>>, name| -> Result<bool, JsonError> {
        let declared = declared.as_ref().map(|declared| declared.raw_object(name));
        Ok(declared.transpose()?.flatten().is_some())
    };
    let (form, url) = (has(&elicitation, "form")?, has(&elicitation, "url")?);
    let (tools, context) = (has(&sampling, "tools")?, has(&sampling, "context")?);
    let elicits = elicitation.is_some() && revision >= Revision::V2025_06_18;
    let url = latest && elicits && url;
    Ok(Capabilities {
        // An empty declaration means forms, because it predates URL asks.
        form: elicits && (form || !url),
        url,
        sampling: sampling.is_some(),
        sampling_tools: latest && tools,
        // Before 2025-11-25, every client with sampling supported context.
        sampling_context: sampling.is_some() && (!latest || context),
        roots: declared.raw_object("roots")?.is_some(),
        tasks: false,
    })
}

fn read_meta<'a>(params: &Reader<'a>, session: SessionSettings) -> Result<Meta<'a>, JsonError> {
    let (mut progress_token, mut trace) = (None::<ProgressToken<'a>>, RawTrace::default());
    let mut custom = None;
    if let Some(meta) = params.object("_meta")? {
        progress_token = meta.value(PROGRESS_TOKEN_KEY, EXPECTED_ID)?;
        trace = read_raw_trace(&meta)?;
        for (Text(key), value) in meta.members.0 {
            if !is_reserved(&key) {
                CustomMeta::add(&mut custom, key, value);
            }
        }
    }
    Ok(Meta {
        protocol_version: Cow::Borrowed(session.revision.as_str()),
        capabilities: session.capabilities,
        log_level: session.log_level,
        progress_token: progress_token.map(|token| token.0),
        trace: trace.read(),
        custom,
        ..Meta::default()
    })
}

/// Reads the trace context of a request, if its params are valid.
pub fn read_trace(raw: Option<&RawValue>) -> Option<Box<TraceContext<'_>>> {
    let meta = read_params(raw).ok()?.object("_meta").ok()??;
    read_raw_trace(&meta).ok()?.read()
}

fn read_raw_trace<'a>(meta: &Reader<'a>) -> Result<RawTrace<'a>, JsonError> {
    Ok(RawTrace {
        parent: meta.raw("traceparent")?,
        state: meta.raw("tracestate")?,
        baggage: meta.raw("baggage")?,
    })
}

/// Reads the params of a call.
pub fn decode_call<'a>(
    kind: CallKind,
    raw: Option<&'a RawValue>,
    session: SessionSettings,
) -> Result<Call<'a>, RpcError> {
    let params = read_params(raw)?;
    let member = kind.target_member();
    let target = params
        .text(member)?
        .ok_or_else(|| params.error(member, &format!("is missing; {} needs it", kind.method())))?;
    Ok(Call {
        kind,
        target,
        arguments: params.raw_object("arguments")?,
        answers: None,
        state: None,
        meta: read_meta(&params, session)?,
    })
}

/// Reads the params of a list method.
pub fn decode_list<'a>(
    raw: Option<&'a RawValue>,
    session: SessionSettings,
) -> Result<ListParams<'a>, RpcError> {
    let params = read_params(raw)?;
    Ok(ListParams {
        meta: read_meta(&params, session)?,
        cursor: params.text("cursor")?,
    })
}

/// Reads the params of `completion/complete`.
pub fn decode_complete<'a>(
    raw: Option<&'a RawValue>,
    session: SessionSettings,
) -> Result<CompleteParams<'a>, RpcError> {
    let params = read_params(raw)?;
    read_complete(&params, read_meta(&params, session)?)
}

/// Reads the level from the params of `logging/setLevel`.
pub fn decode_set_level(raw: Option<&RawValue>) -> Result<LogLevel, RpcError> {
    let params = read_params(raw)?;
    Ok(params
        .nested("level")?
        .ok_or_else(|| params.missing("level"))?)
}

/// Reads the URI from the params of `resources/subscribe` or `resources/unsubscribe`.
pub fn decode_uri<'a>(raw: Option<&'a RawValue>) -> Result<Cow<'a, str>, RpcError> {
    let params = read_params(raw)?;
    Ok(params.text("uri")?.ok_or_else(|| params.missing("uri"))?)
}

/// The messages of a batch, or `None` if the bytes are not a JSON array.
pub fn split_batch(bytes: &[u8]) -> Option<Vec<&RawValue>> {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if first != Some(&b'[') {
        return None;
    }
    serde_json::from_slice(bytes).ok()
}
