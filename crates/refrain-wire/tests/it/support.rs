//! Helpers that several tests share.

use refrain_wire::{ErrorCode, ResultBody, RpcError};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

/// JSON text as a raw value.
pub(crate) fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

/// A value as a raw value.
pub(crate) fn to_raw(value: impl Serialize) -> Box<RawValue> {
    to_raw_value(&value).unwrap()
}

/// Params with these members and the standard `_meta`.
pub(crate) fn with_meta(members: &str) -> Box<RawValue> {
    raw(&format!("{{{members},{META}}}"))
}

/// The message of an "invalid params" error.
pub(crate) fn rejection_text<T: std::fmt::Debug>(result: Result<T, RpcError>) -> String {
    let error = result.expect_err("the request is invalid");
    assert_eq!(error.code, ErrorCode::InvalidParams);
    error.message.into_owned()
}

/// The message that a function writes, which must be one line.
pub(crate) fn written(write: impl FnOnce(&mut Vec<u8>)) -> Value {
    let mut out = Vec::new();
    write(&mut out);
    assert!(!out.contains(&b'\n'));
    serde_json::from_slice(&out).unwrap()
}

/// The members of a body as JSON.
pub(crate) fn members(body: &ResultBody) -> Value {
    serde_json::from_str(&format!("{{{}}}", body.members())).unwrap()
}
