//! Completion of prompt arguments and resource template variables.

use super::{Catalog, CatalogEntry, Entries};
use crate::auth::{Auth, Caller, MissingScopes};
use crate::dispatch::Dispatch;
use crate::limits::InstanceLimits;
use crate::timer::within;
use refrain_core::{Principal, limited_event};
use refrain_wire::{
    CompleteParams, CompleteResult, Completion, Excerpt, Reference, Reply, RpcError,
};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// The input of a completion function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionInput {
    /// The text typed so far.
    pub value: String,
    /// Arguments that already have a value.
    pub arguments: BTreeMap<String, String>,
    /// The caller, who may be anonymous.
    pub principal: Principal,
    /// The account under which the caller is counted for limits. See [`Principal::account`].
    pub account: Principal,
}

type CompletionFuture = Pin<Box<dyn Future<Output = refrain_core::Result<Completion>> + Send>>;

pub(crate) type Completer = Arc<dyn Fn(CompletionInput) -> CompletionFuture + Send + Sync>;

pub(crate) type Completers = BTreeMap<String, Completer>;

pub(crate) fn completer<F, Fut, C>(suggest: F) -> Completer
where
    F: Fn(CompletionInput) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = refrain_core::Result<C>> + Send + 'static,
    C: Into<Completion>,
{
    Arc::new(move |input| {
        let future = suggest(input);
        Box::pin(async move { future.await.map(Into::into) })
    })
}

/// A completer for a fixed list: first the values that start with the text, then those that contain it. Ignores case.
pub(crate) fn from_list(values: Vec<String>) -> Completer {
    let values: Arc<[String]> = values.into();
    completer(move |input: CompletionInput| {
        let values = values.clone();
        async move { Ok(matching(&values, &input.value)) }
    })
}

fn matching(values: &[String], typed: &str) -> Completion {
    let typed = typed.to_lowercase();
    let position = |value: &String| value.to_lowercase().find(&typed);
    let ranked = values
        .iter()
        .filter_map(|value| Some((position(value)? > 0, value)));
    let mut matches: Vec<(bool, &String)> = ranked.collect();
    matches.sort_by_key(|(is_inner, _)| *is_inner);
    matches
        .into_iter()
        .map(|(_, value)| value.clone())
        .collect()
}

/// The reply of a request that is handled asynchronously.
pub(crate) type PendingReply = Pin<Box<dyn Future<Output = Result<Reply, MissingScopes>> + Send>>;

impl Catalog {
    /// Starts to suggest values for an argument. The request counts as a call in flight.
    pub(crate) fn complete(
        &self,
        params: CompleteParams<'_>,
        caller: Caller,
        auth: &Auth,
        limits: &InstanceLimits,
    ) -> Result<PendingReply, Dispatch> {
        let permit = limits.calls.acquire(caller.limit_key());
        let permit = permit.map_err(|reached| Dispatch::Busy(reached.into()))?;
        let Some(completer) = self.completer(&params, &caller, auth)? else {
            let completion = Vec::<String>::new().into();
            let none = Reply::complete(CompleteResult { completion });
            return Ok(Box::pin(std::future::ready(Ok(none))));
        };
        let arguments = params.context.into_iter();
        let input = CompletionInput {
            value: params.value.into_owned(),
            arguments: arguments
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect(),
            account: caller.limit_key().account(),
            principal: caller.principal,
        };
        let time = limits.round_time;
        Ok(Box::pin(async move {
            let _permit = permit;
            Ok(suggest(completer, input, time).await)
        }))
    }

    /// The completion function of an argument. `None` if the argument has no such function.
    fn completer(
        &self,
        params: &CompleteParams<'_>,
        caller: &Caller,
        auth: &Auth,
    ) -> Result<Option<Completer>, Dispatch> {
        let entries = self.entries();
        let found = find(&entries, &params.reference, &params.argument);
        // Checked first, so that the reply does not reveal what is registered.
        let needed = found.as_ref().map_or(&[][..], |(entry, _)| &entry.scopes);
        auth.allow(caller, needed).map_err(Dispatch::Forbidden)?;
        if !entries.completes() {
            let unknown = RpcError::method_not_found("completion/complete");
            return Err(Dispatch::Invalid(unknown));
        }
        let (entry, has_argument) = found.map_err(Dispatch::Invalid)?;
        if !has_argument {
            let argument = Excerpt(&params.argument);
            let reason = format!("argument.name: unknown argument {argument:?}");
            return Err(Dispatch::Invalid(RpcError::invalid_params(reason)));
        }
        Ok(entry.completers.get(params.argument.as_ref()).cloned())
    }
}

/// Runs the author's function, which may panic or never finish.
async fn suggest(completer: Completer, input: CompletionInput, time: Duration) -> Reply {
    let mut suggesting: CompletionFuture = Box::pin(async move { completer(input).await });
    let suggesting = poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| suggesting.as_mut().poll(cx)));
        polled.map_or(Poll::Ready(None), |polled| polled.map(Some))
    });
    Reply::Error(RpcError::internal(match within(time, suggesting).await {
        Some(Some(Ok(completion))) => {
            let completion = completion.bounded();
            return Reply::complete(CompleteResult { completion });
        }
        Some(Some(Err(error))) => {
            limited_event!(ERROR, %error, "completer failed");
            "Internal error"
        }
        Some(None) => {
            limited_event!(ERROR, "completer panicked");
            "Internal error"
        }
        None => "the completion timed out",
    }))
}

/// The prompt or resource template of a reference, and whether it has this argument.
fn find<'a>(
    entries: &'a Entries,
    reference: &Reference<'_>,
    argument: &str,
) -> Result<(&'a CatalogEntry, bool), RpcError> {
    match reference {
        Reference::Prompt(name) => {
            let prompt = entries.prompts.get(name);
            let prompt = prompt.ok_or_else(|| {
                let name = Excerpt(name);
                RpcError::invalid_params(format!("ref.name: unknown prompt: {name}"))
            })?;
            Ok((&prompt.entry, prompt.has_argument(argument)))
        }
        Reference::Resource(uri) => {
            let by_match = || entries.template_of(uri).map(|(_, template)| template);
            let registered = entries.templates.get(uri).or_else(by_match);
            let registered = registered.ok_or_else(|| {
                let uri = Excerpt(uri);
                RpcError::invalid_params(format!("ref.uri: unknown resource template: {uri}"))
            })?;
            let has_argument = registered.pattern.variables().contains(&argument);
            Ok((&registered.template.entry, has_argument))
        }
    }
}
