//! The errors of the protocol, as they travel in a response.

use std::borrow::Cow;

use serde::Serialize;
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
    /// A header says something else than the body (-32020).
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
            Self::Parse
            | Self::InvalidRequest
            | Self::InvalidParams
            | Self::ResourceNotFound
            | Self::HeaderMismatch
            | Self::MissingCapability
            | Self::UnsupportedVersion => 400,
        }
    }
}

/// A JSON-RPC error: what went wrong, in a number, a sentence and, where it helps, data.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message} ({})", .code.as_i32())]
pub struct RpcError {
    /// The kind of error.
    pub code: ErrorCode,
    /// What was wrong and what to do about it.
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
        Self::new(
            ErrorCode::MethodNotFound,
            format!("method not found: {method}"),
        )
    }

    /// The parameters do not fit the method.
    pub fn invalid_params(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InvalidParams, message)
    }

    /// There is no resource of this URI, which is repeated in the data.
    pub fn resource_not_found(uri: &str) -> Self {
        #[derive(Serialize)]
        struct Data<'a> {
            uri: &'a str,
        }
        Self::new(
            ErrorCode::ResourceNotFound,
            format!("Unknown resource: {uri}"),
        )
        .with_data(&Data { uri })
    }

    /// The server failed.
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::Internal, message)
    }

    /// The server has given a call up, and no request goes on with it, which the data says to programs.
    pub fn call_over(message: impl Into<Cow<'static, str>>) -> Self {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Data {
            call_over: bool,
        }
        Self::internal(message).with_data(&Data { call_over: true })
    }

    /// A header says something else than the body.
    pub fn header_mismatch(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::HeaderMismatch, message)
    }

    /// The request needs capabilities the client did not declare; they are listed in the data.
    pub fn missing_capability(missing: &[Capability]) -> Self {
        let mut message = String::from("this request needs a client that declares ");
        for (i, capability) in missing.iter().enumerate() {
            message.push_str(if i == 0 { "" } else { ", " });
            message.push_str(capability.as_str());
        }
        Self::new(ErrorCode::MissingCapability, message).with_data(&RequiredData {
            required_capabilities: missing.iter().copied().collect(),
        })
    }

    /// `initialize` is not spoken; the message and the data name the versions that are, since an older client can only
    /// show them to its user.
    pub fn unknown_handshake(supported: &[&str]) -> Self {
        #[derive(Serialize)]
        struct Data<'a> {
            supported: &'a [&'a str],
        }
        Self::new(
            ErrorCode::MethodNotFound,
            format!(
                "method not found: initialize; this server speaks only {}",
                supported.join(", ")
            ),
        )
        .with_data(&Data { supported })
    }

    /// The server does not speak the requested version; the data lists those it does.
    pub fn unsupported_version(requested: &str, supported: &[&str]) -> Self {
        #[derive(Serialize)]
        struct Data<'a> {
            supported: &'a [&'a str],
            requested: &'a str,
        }
        Self::new(
            ErrorCode::UnsupportedVersion,
            format!("unsupported protocol version {requested:?}; use one of {supported:?}"),
        )
        .with_data(&Data {
            supported,
            requested,
        })
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

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequiredData {
    required_capabilities: Capabilities,
}
