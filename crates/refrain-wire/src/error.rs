//! The errors of the protocol, as they travel in a response.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::meta::{Capabilities, Capability};
use crate::write;

/// The kind of an error, which fixes its number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The bytes are not JSON (-32700).
    Parse,
    /// The JSON is not a request or a notification (-32600).
    InvalidRequest,
    /// The server has no such method (-32601).
    MethodNotFound,
    /// The parameters do not fit the method (-32602).
    InvalidParams,
    /// There is no resource of that URI (-32602; -32002 for older clients).
    ResourceNotFound,
    /// The server failed (-32603).
    Internal,
    /// A header contradicts the body (-32020).
    HeaderMismatch,
    /// The request needs a capability the client did not declare (-32021).
    MissingCapability,
    /// The server does not speak the requested protocol version (-32022).
    UnsupportedVersion,
}

impl ErrorCode {
    /// The number on the wire.
    pub const fn as_i32(self) -> i32 {
        match self {
            Self::Parse => -32700,
            Self::InvalidRequest => -32600,
            Self::MethodNotFound => -32601,
            Self::InvalidParams | Self::ResourceNotFound => -32602,
            Self::Internal => -32603,
            Self::HeaderMismatch => -32020,
            Self::MissingCapability => -32021,
            Self::UnsupportedVersion => -32022,
        }
    }

    /// The HTTP status of a response that carries this error.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::MethodNotFound => 404,
            Self::Internal => 500,
            _ => 400,
        }
    }
}

/// A JSON-RPC error.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message} ({})", .code.as_i32())]
pub struct RpcError {
    /// The kind of error.
    pub code: ErrorCode,
    /// The problem, and what to do about it.
    pub message: Cow<'static, str>,
    /// Further facts for a program to read.
    pub data: Option<Box<RawValue>>,
}

impl RpcError {
    fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    /// The bytes are not JSON.
    pub fn parse(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::Parse, message)
    }

    /// The JSON is not a request or a notification.
    pub fn invalid_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    /// The message is a response, and no request was sent to its sender.
    pub fn unexpected_response() -> Self {
        Self::invalid_request(crate::envelope::UNEXPECTED_RESPONSE)
    }

    /// The server has no method of this name.
    pub fn method_not_found(method: &str) -> Self {
        let message = format!("method not found: {method}");
        Self::new(ErrorCode::MethodNotFound, message)
    }

    /// The parameters do not fit the method.
    pub fn invalid_params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InvalidParams, message)
    }

    /// There is no resource of this URI, which is repeated in the data.
    pub fn resource_not_found(uri: &str) -> Self {
        let message = format!("Unknown resource: {uri}");
        Self::new(ErrorCode::ResourceNotFound, message).with_data(&json!({"uri": uri}))
    }

    /// The server failed.
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::Internal, message)
    }

    /// The server has given up a call, so that no request can continue it; the data says so.
    pub fn call_over(message: impl Into<Cow<'static, str>>) -> Self {
        Self::internal(message).with_data(&json!({"callOver": true}))
    }

    /// A header contradicts the body.
    pub fn header_mismatch(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::HeaderMismatch, message)
    }

    /// The request needs capabilities the client did not declare; they are listed in the data.
    pub fn missing_capability(missing: &[Capability]) -> Self {
        let names: Vec<&str> = missing.iter().map(|missing| missing.as_str()).collect();
        let names = names.join(", ");
        let message = format!("this request needs a client that declares {names}");
        let required: Capabilities = missing.iter().copied().collect();
        Self::new(ErrorCode::MissingCapability, message)
            .with_data(&json!({"requiredCapabilities": required}))
    }

    /// `initialize` is not supported. The message names the supported versions, because an older client can only show
    /// it to its user.
    pub fn unknown_handshake(supported: &[&str]) -> Self {
        let versions = supported.join(", ");
        let message = format!("method not found: initialize; this server speaks only {versions}");
        Self::new(ErrorCode::MethodNotFound, message).with_data(&json!({"supported": supported}))
    }

    /// The server does not support the requested version; the data lists those it does.
    pub fn unsupported_version(requested: &str, supported: &[&str]) -> Self {
        let message =
            format!("unsupported protocol version {requested:?}; use one of {supported:?}");
        Self::new(ErrorCode::UnsupportedVersion, message)
            .with_data(&json!({"supported": supported, "requested": requested}))
    }

    /// The same error with data; a value that JSON cannot hold leaves it as it was.
    #[must_use]
    pub fn with_data(mut self, data: &impl Serialize) -> Self {
        let text = serde_json::to_string(data).map(write::one_line);
        if let Ok(raw) = text.and_then(RawValue::from_string) {
            self.data = Some(raw);
        }
        self
    }
}
