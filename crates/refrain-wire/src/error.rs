//! JSON-RPC errors of the protocol.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::capabilities::{Capabilities, Capability};
use crate::excerpt::Excerpt;
use crate::write;

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The message is not JSON (-32700).
    Parse,
    /// The JSON is not a request or a notification (-32600).
    InvalidRequest,
    /// The method does not exist (-32601).
    MethodNotFound,
    /// The params are invalid (-32602).
    InvalidParams,
    /// The resource does not exist (-32602; -32002 for legacy clients).
    ResourceNotFound,
    /// Internal error (-32603).
    Internal,
    /// A header contradicts the body (-32020).
    HeaderMismatch,
    /// The client did not declare a required capability (-32021).
    MissingCapability,
    /// The server does not support the protocol version (-32022).
    UnsupportedVersion,
    /// A code without a meaning in the protocol, from a handler or another server.
    Other(i32),
}

impl ErrorCode {
    /// The JSON-RPC error code.
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
            Self::Other(code) => code,
        }
    }

    /// The kind of error with this JSON-RPC error code.
    pub const fn from_i32(code: i32) -> Self {
        match code {
            -32700 => Self::Parse,
            -32600 => Self::InvalidRequest,
            -32601 => Self::MethodNotFound,
            -32602 => Self::InvalidParams,
            -32603 => Self::Internal,
            -32020 => Self::HeaderMismatch,
            -32021 => Self::MissingCapability,
            -32022 => Self::UnsupportedVersion,
            code => Self::Other(code),
        }
    }

    /// The HTTP status of the response.
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
    /// The problem, and how to fix it.
    pub message: Cow<'static, str>,
    /// Machine-readable details.
    pub data: Option<Box<RawValue>>,
}

impl RpcError {
    /// An error of this kind.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    /// The message is not JSON.
    pub fn parse(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::Parse, message)
    }

    /// The JSON is not a request or a notification.
    pub fn invalid_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    /// The message is a response, but no request was sent to the client.
    pub fn unexpected_response() -> Self {
        Self::invalid_request(crate::envelope::UNEXPECTED_RESPONSE)
    }

    /// The method does not exist.
    pub fn method_not_found(method: &str) -> Self {
        let message = format!("method not found: {}", Excerpt(method));
        Self::new(ErrorCode::MethodNotFound, message)
    }

    /// The params are invalid.
    pub fn invalid_params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InvalidParams, message)
    }

    /// The resource does not exist. The data has its URI.
    pub fn resource_not_found(uri: &str) -> Self {
        let message = format!(
            "unknown resource {}; resources/list and resources/templates/list show the available ones",
            Excerpt(uri)
        );
        Self::new(ErrorCode::ResourceNotFound, message).with_data(&json!({"uri": uri}))
    }

    /// Internal error.
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::Internal, message)
    }

    /// The call has ended and cannot be continued by another request. The data has `callOver: true`.
    pub fn call_over(message: impl Into<Cow<'static, str>>) -> Self {
        Self::internal(message).with_data(&json!({"callOver": true}))
    }

    /// A header contradicts the body.
    pub fn header_mismatch(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::HeaderMismatch, message)
    }

    /// The client did not declare the required capabilities, which the data lists.
    pub fn missing_capability(missing: &[Capability]) -> Self {
        let names: Vec<&str> = missing.iter().map(|missing| missing.as_str()).collect();
        let names = names.join(", ");
        let message = format!(
            "this request requires the client capabilities {names}, which the client did not declare"
        );
        let required: Capabilities = missing.iter().copied().collect();
        Self::new(ErrorCode::MissingCapability, message)
            .with_data(&json!({"requiredCapabilities": required}))
    }

    /// `initialize` is not supported, or only without `_meta` if the server has legacy sessions. The message names the
    /// supported versions, because legacy clients show only the message.
    pub fn initialize_unsupported(supported: &[&str], has_legacy_sessions: bool) -> Self {
        let versions = supported.join(", ");
        let message = match has_legacy_sessions {
            true => format!(
                "method not found: initialize is not part of {versions}; leave out _meta to open a legacy session"
            ),
            false => {
                format!("method not found: initialize; this server supports only {versions}")
            }
        };
        Self::new(ErrorCode::MethodNotFound, message).with_data(&json!({"supported": supported}))
    }

    /// The server does not support the requested version. The data lists the supported ones.
    pub fn unsupported_version(requested: &str, supported: &[&str]) -> Self {
        let version = Excerpt(requested);
        let message = format!("unsupported protocol version {version:?}; use one of {supported:?}");
        Self::new(ErrorCode::UnsupportedVersion, message)
            .with_data(&json!({"supported": supported, "requested": requested}))
    }

    /// Sets the data. Ignores a value that cannot be serialized.
    #[must_use]
    pub fn with_data(mut self, data: &impl Serialize) -> Self {
        let text = serde_json::to_string(data).map(write::one_line);
        if let Ok(raw) = text.and_then(RawValue::from_string) {
            self.data = Some(raw);
        }
        self
    }
}
