//! Second stage of a round: checks scopes and arguments.

use super::resolve::ResolvedCall;
use super::target::Target;
use super::{CallRequest, Home, RoundRejection, Rounds, TokenSource};
use crate::auth::Caller;
use crate::limits::Permit;
use http::{HeaderMap, HeaderValue};
use jsonschema::Validator;
use refrain_core::Binding;
use refrain_wire::{Call, Reply, RpcError, ToolResult, parse_value};
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum number of schema violations in one reply.
const MAX_VIOLATIONS: usize = 8;

pub(super) struct AdmittedCall<'a> {
    pub(super) rounds: &'a Arc<Rounds>,
    pub(super) call: &'a Call<'a>,
    pub(super) token: TokenSource,
    pub(super) home: Home,
    pub(super) caller: Caller,
    pub(super) permit: Permit,
    pub(super) target: Target,
    pub(super) arguments: Value,
    /// The context that the call's tokens are bound to.
    pub(super) binding: Binding,
}

impl<'a> ResolvedCall<'a> {
    #[inline]
    pub(super) fn admit(self, permit: Permit) -> Result<AdmittedCall<'a>, RoundRejection> {
        let Self {
            rounds,
            request,
            target,
            variables,
        } = self;
        let CallRequest {
            call,
            token,
            home,
            caller,
            headers,
        } = request;
        let allowed = rounds.auth.allow(&caller, &target.entry().scopes);
        allowed.map_err(RoundRejection::Forbidden)?;
        let arguments = match variables {
            Some(variables) => Some(variables),
            None => parse_arguments(call)?,
        };
        let arguments = target.check(&call.target, arguments, headers)?;
        let sealer = &rounds.services.sealer;
        let binding = sealer.bind(
            &caller.principal,
            call.kind,
            &call.target,
            arguments.as_ref(),
        );
        Ok(AdmittedCall {
            rounds,
            call,
            token,
            home,
            caller,
            permit,
            target,
            arguments: arguments.unwrap_or_else(|| json!({})),
            binding,
        })
    }
}

impl AdmittedCall<'_> {
    /// Whether the handler stays in memory between rounds.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.home, Home::Client) && self.target.is_live()
    }
}

fn parse_arguments(call: &Call<'_>) -> Result<Option<Value>, RpcError> {
    let parsed = call.arguments.map(|raw| parse_value(raw.get()));
    let parsed = parsed.transpose();
    parsed.map_err(|reason| RpcError::invalid_params(format!("arguments: {reason}")))
}

impl Target {
    /// Checks the arguments and the headers that repeat them. Returns `Some` for every tool.
    fn check(
        &self,
        name: &str,
        arguments: Option<Value>,
        headers: Option<&HeaderMap>,
    ) -> Result<Option<Value>, RoundRejection> {
        match self {
            Self::Tool(tool) => {
                if let Some(headers) = headers {
                    let sent = |name: &str| headers.get_all(name).iter().map(HeaderValue::as_bytes);
                    let checked = tool.headers.check(arguments.as_ref(), sent);
                    checked.map_err(RoundRejection::Malformed)?;
                }
                let arguments = arguments.unwrap_or_else(|| json!({}));
                if tool.arguments.is_valid(&arguments) {
                    return Ok(Some(arguments));
                }
                let reasons = violations(&tool.arguments, &arguments);
                let result = ToolResult::error(invalid_arguments(name, &reasons));
                Err(RoundRejection::Reply(Reply::of_tool(result)))
            }
            Self::Prompt(_) => {
                let members = arguments.as_ref().and_then(Value::as_object);
                let mut members = members.into_iter().flatten();
                match members.find(|(_, value)| !value.is_string()) {
                    None => Ok(arguments),
                    Some((key, _)) => Err(RpcError::invalid_params(format!(
                        "arguments[{key:?}] of a prompt must be a string"
                    ))
                    .into()),
                }
            }
            Self::Resource(_) | Self::Template(_) => Ok(arguments),
        }
    }
}

fn violations(schema: &Validator, arguments: &Value) -> String {
    let violations = schema.iter_errors(arguments).take(MAX_VIOLATIONS);
    let violations: Vec<String> = violations
        .map(|error| match error.instance_path().as_str() {
            "" => error.to_string(),
            path => format!("{}: {error}", path.trim_start_matches('/')),
        })
        .collect();
    violations.join("; ")
}

/// The text of the tool error for invalid arguments.
pub(super) fn invalid_arguments(tool: &str, reason: impl std::fmt::Display) -> String {
    format!("Invalid arguments for tool {tool}: {reason}")
}
