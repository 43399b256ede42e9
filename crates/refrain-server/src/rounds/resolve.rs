//! First stage of a round: looks up the target of the call in the catalog.

use super::target::Target;
use super::{CallRequest, RoundRejection, Rounds};
use refrain_wire::{Call, CallKind, Excerpt, RpcError, did_you_mean};
use serde_json::Value;
use std::sync::Arc;

/// Maximum number of registered names that an unknown name is compared with.
const MAX_COMPARED: usize = 1000;

/// A call after the first stage.
pub(super) struct ResolvedCall<'a> {
    pub(super) rounds: &'a Arc<Rounds>,
    pub(super) request: CallRequest<'a>,
    pub(super) target: Target,
    /// The URI variables, if the target is a resource template.
    pub(super) variables: Option<Value>,
}

impl<'a> ResolvedCall<'a> {
    #[inline]
    pub(super) fn resolve(
        rounds: &'a Arc<Rounds>,
        request: CallRequest<'a>,
    ) -> Result<Self, RoundRejection> {
        match look_up(rounds, request.call) {
            Ok((target, variables)) => Ok(Self {
                rounds,
                request,
                target,
                variables,
            }),
            Err(error) => {
                // A caller without the server's scopes must not learn which names exist.
                let allowed = rounds.auth.allow(request.caller, &[]);
                allowed.map_err(RoundRejection::Forbidden)?;
                Err(with_suggestion(error, rounds, &request).into())
            }
        }
    }
}

/// Adds similar names that the caller may use.
fn with_suggestion(mut error: RpcError, rounds: &Rounds, request: &CallRequest<'_>) -> RpcError {
    let catalog = rounds.catalog.entries();
    let is_allowed = |scopes: &[String]| rounds.auth.allow(request.caller, scopes).is_ok();
    let name = request.call.target.as_ref();
    let suggestion = match request.call.kind {
        CallKind::Tool => {
            let tools = catalog.tools.iter().take(MAX_COMPARED);
            let tools = tools.map(|registered| &registered.tool);
            let tools = tools.filter(|tool| is_allowed(&tool.entry.scopes));
            did_you_mean(name, tools.map(|tool| tool.info.name.as_str()))
        }
        CallKind::Prompt => {
            let prompts = catalog.prompts.iter().take(MAX_COMPARED);
            let prompts = prompts.filter(|prompt| is_allowed(&prompt.entry.scopes));
            did_you_mean(name, prompts.map(|prompt| prompt.info.name.as_str()))
        }
        CallKind::Resource => None,
    };
    if let Some(suggestion) = suggestion {
        error.message = format!("{}; {suggestion}", error.message).into();
    }
    error
}

fn look_up(rounds: &Rounds, call: &Call<'_>) -> Result<(Target, Option<Value>), RpcError> {
    let name = call.target.as_ref();
    let catalog = rounds.catalog.entries();
    let unknown = |kind| RpcError::invalid_params(format!("Unknown {kind}: {}", Excerpt(name)));
    match call.kind {
        CallKind::Tool => match catalog.tools.get(name) {
            Some(tool) => Ok((Target::Tool(tool.clone()), None)),
            None => Err(unknown("tool")),
        },
        CallKind::Prompt => match catalog.prompts.get(name) {
            Some(prompt) => Ok((Target::Prompt(prompt.clone()), None)),
            None => Err(unknown("prompt")),
        },
        CallKind::Resource => {
            if let Some(resource) = catalog.resource(name) {
                return Ok((Target::Resource(resource.clone()), None));
            }
            let Some((variables, template)) = catalog.template_of(name) else {
                return Err(RpcError::resource_not_found(name));
            };
            Ok((Target::Template(template.clone()), Some(variables)))
        }
    }
}
