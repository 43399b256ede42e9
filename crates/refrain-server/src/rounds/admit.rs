//! Second stage of a round: checks scopes and arguments.

use super::resolve::ResolvedCall;
use super::target::Target;
use super::{CallRequest, Home, RoundRejection, Rounds};
use crate::limits::Permit;
use http::{HeaderMap, HeaderValue};
use jsonschema::Validator;
use refrain_core::Binding;
use refrain_wire::{Call, Excerpt, Reply, RpcError, ToolResult, check_values, parse_value};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum number of schema violations in one reply.
const MAX_VIOLATIONS: usize = 8;
/// Maximum size of arguments whose violations are listed.
const MAX_EXPLAINED_BYTES: usize = 256 << 10;
/// Maximum number of JSON values in arguments whose violations are listed.
const MAX_EXPLAINED_VALUES: usize = 1000;

/// A call after the second stage.
pub(super) struct AdmittedCall<'a> {
    pub(super) rounds: &'a Arc<Rounds>,
    pub(super) request: CallRequest<'a>,
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
        let (call, caller) = (request.call, request.caller);
        let allowed = rounds.auth.allow(caller, &target.entry().scopes);
        allowed.map_err(RoundRejection::Forbidden)?;
        let arguments = match variables {
            Some(variables) => Some(variables),
            None => parse_arguments(call)?,
        };
        let arguments = target.check(call, arguments, request.headers)?;
        let sealer = &rounds.services.sealer;
        let binding = sealer.bind(
            &caller.principal,
            call.kind,
            &call.target,
            arguments.as_ref(),
        );
        Ok(AdmittedCall {
            rounds,
            request,
            permit,
            target,
            arguments: arguments.unwrap_or_else(|| json!({})),
            binding,
        })
    }
}

impl AdmittedCall<'_> {
    /// Whether this is a live call of a client that sends rounds.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.request.home, Home::Client) && self.target.is_live()
    }
}

fn parse_arguments(call: &Call<'_>) -> Result<Option<Value>, RpcError> {
    let arguments = call.arguments.map(|raw| parse_value(raw.get()));
    let invalid = |reason| RpcError::invalid_params(format!("arguments: {reason}"));
    arguments.transpose().map_err(invalid)
}

impl Target {
    /// Checks the arguments, and the HTTP headers that repeat some of them. Returns `Some` for every tool.
    fn check(
        &self,
        call: &Call<'_>,
        arguments: Option<Value>,
        headers: Option<&HeaderMap>,
    ) -> Result<Option<Value>, RoundRejection> {
        match self {
            Self::Tool(tool) => {
                if let Some(headers) = headers {
                    let values =
                        |name: &str| headers.get_all(name).iter().map(HeaderValue::as_bytes);
                    let checked = tool.headers.check(arguments.as_ref(), values);
                    checked.map_err(RoundRejection::Malformed)?;
                }
                let arguments = arguments.unwrap_or_else(|| json!({}));
                let schema = match &tool.arguments {
                    Some(schema) if !schema.is_valid(&arguments) => schema,
                    _ => return Ok(Some(arguments)),
                };
                let reasons = match call.arguments {
                    Some(raw) if !is_explainable(raw) => {
                        "they do not match the input schema, and are too large to show the mismatch"
                            .to_owned()
                    }
                    _ => violations(schema, &arguments),
                };
                let result = ToolResult::error(invalid_arguments(&call.target, &reasons));
                Err(RoundRejection::Reply(Reply::of_tool(result)))
            }
            Self::Prompt(_) => {
                let members = arguments.as_ref().and_then(Value::as_object);
                let members = members.into_iter().flatten();
                let invalid = members.filter(|(_, value)| !value.is_string());
                let invalid: Vec<String> = invalid
                    .take(MAX_VIOLATIONS)
                    .map(|(key, _)| format!("{:?}", Excerpt(key)))
                    .collect();
                if invalid.is_empty() {
                    return Ok(arguments);
                }
                let invalid = invalid.join(", ");
                let message = format!("arguments of a prompt must be strings: {invalid}");
                Err(RpcError::invalid_params(message).into())
            }
            Self::Resource(_) | Self::Template(_) => Ok(arguments),
        }
    }
}

/// Whether the violations of these arguments can be listed. That is expensive for large arguments: the validator collects all
/// violations, and if a value matches no alternative of the schema, copies it for each alternative.
fn is_explainable(raw: &RawValue) -> bool {
    let json = raw.get().as_bytes();
    json.len() <= MAX_EXPLAINED_BYTES && check_values(json, MAX_EXPLAINED_VALUES).is_ok()
}

fn violations(schema: &Validator, arguments: &Value) -> String {
    let violations = schema.iter_errors(arguments).take(MAX_VIOLATIONS);
    let violations: Vec<String> = violations
        .map(|error| match error.instance_path().as_str() {
            "" => Excerpt(error).to_string(),
            path => Excerpt(format_args!("{}: {error}", path.trim_start_matches('/'))).to_string(),
        })
        .collect();
    violations.join("; ")
}

/// The text of the tool error for invalid arguments.
pub(super) fn invalid_arguments(tool: &str, reason: impl std::fmt::Display) -> String {
    format!("Invalid arguments for tool {tool}: {reason}")
}
