//! Suggestions for the arguments of prompts and the variables of resource templates.

use super::{Catalog, Entries, Entry};
use crate::auth::{Auth, Caller, MissingScopes};
use crate::dispatch::Dispatch;
use crate::limits::Limits;
use refrain_core::Principal;
use refrain_wire::{CompleteParams, CompleteResult, Completion, Reference, Reply, RpcError};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// The input of a function that suggests values for an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typed {
    /// The text typed so far.
    pub value: String,
    /// The other arguments that already have a value.
    pub given: BTreeMap<String, String>,
    /// The caller.
    pub principal: Principal,
}

type Suggesting = Pin<Box<dyn Future<Output = refrain_core::Result<Completion>> + Send>>;

pub(crate) type Completer = Arc<dyn Fn(Typed) -> Suggesting + Send + Sync>;

/// The functions that suggest values, by the name of the argument.
pub(crate) type Completers = BTreeMap<String, Completer>;

pub(crate) fn completer<F, Fut, C>(suggest: F) -> Completer
where
    F: Fn(Typed) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = refrain_core::Result<C>> + Send + 'static,
    C: Into<Completion>,
{
    Arc::new(move |typed| {
        let suggesting = suggest(typed);
        Box::pin(async move { suggesting.await.map(Into::into) })
    })
}

/// A completer for a fixed list: first the values that start with the text, then those that contain it; case is ignored.
pub(crate) fn from_list(values: Vec<String>) -> Completer {
    let values: Arc<[String]> = values.into();
    completer(move |typed| {
        let values = values.clone();
        async move { Ok(matching(&values, &typed.value)) }
    })
}

fn matching(values: &[String], typed: &str) -> Completion {
    let typed = typed.to_lowercase();
    let fits = |value: &String| value.to_lowercase().find(&typed);
    let ranked = values
        .iter()
        .filter_map(|value| Some((fits(value)? > 0, value)));
    let mut fitting: Vec<(bool, &String)> = ranked.collect();
    fitting.sort_by_key(|(within, _)| *within);
    fitting
        .into_iter()
        .map(|(_, value)| value.clone())
        .collect()
}

/// A reply that is awaited.
pub(crate) type Later = Pin<Box<dyn Future<Output = Result<Reply, MissingScopes>> + Send>>;

impl Catalog {
    /// Starts to suggest values for an argument. It takes the permit of a call.
    pub(crate) fn complete(
        &self,
        params: CompleteParams<'_>,
        caller: Caller,
        auth: &Auth,
        limits: &Limits,
    ) -> Result<Later, Dispatch> {
        let permit = limits.calls.acquire(None);
        let permit = permit.map_err(|reached| Dispatch::Busy(reached.into()))?;
        let Some(completer) = self.completer(&params, &caller, auth)? else {
            let completion = Vec::<String>::new().into();
            let none = Reply::complete(CompleteResult { completion });
            return Ok(Box::pin(std::future::ready(Ok(none))));
        };
        let given = params.given.into_iter();
        let typed = Typed {
            value: params.value.into_owned(),
            given: given
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect(),
            principal: caller.principal,
        };
        let time = limits.round_time;
        Ok(Box::pin(async move {
            let _permit = permit;
            Ok(suggest(completer, typed, time).await)
        }))
    }

    /// The function that suggests values; `None` for a known argument without one.
    fn completer(
        &self,
        params: &CompleteParams<'_>,
        caller: &Caller,
        auth: &Auth,
    ) -> Result<Option<Completer>, Dispatch> {
        let entries = self.entries();
        let found = find(&entries, &params.reference, &params.argument);
        // Checked before a reply reveals what is registered.
        let needed = found.as_ref().map_or(&[][..], |(entry, _)| &entry.scopes);
        auth.allow(caller, needed).map_err(Dispatch::Forbidden)?;
        if !entries.completes() {
            let unknown = RpcError::method_not_found("completion/complete");
            return Err(Dispatch::Invalid(unknown));
        }
        let (entry, has_argument) = found.map_err(Dispatch::Invalid)?;
        if !has_argument {
            let reason = format!("argument.name: there is no argument {:?}", params.argument);
            return Err(Dispatch::Invalid(RpcError::invalid_params(reason)));
        }
        Ok(entry.completers.get(params.argument.as_ref()).cloned())
    }
}

/// Runs an author's function, which may panic, before its future or in it, or never finish.
async fn suggest(completer: Completer, typed: Typed, time: Duration) -> Reply {
    let mut suggesting: Suggesting = Box::pin(async move { completer(typed).await });
    let suggesting = poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| suggesting.as_mut().poll(cx)));
        polled.map_or(Poll::Ready(None), |polled| polled.map(Some))
    });
    Reply::Error(RpcError::internal(
        match tokio::time::timeout(time, suggesting).await {
            Ok(Some(Ok(completion))) => {
                let completion = completion.bounded();
                return Reply::complete(CompleteResult { completion });
            }
            Ok(Some(Err(error))) => {
                tracing::error!(%error, "completer failed");
                "Internal error"
            }
            Ok(None) => {
                tracing::error!("completer panicked");
                "Internal error"
            }
            Err(_) => "the suggestions took too long",
        },
    ))
}

/// The prompt or resource template of a reference, and whether it has this argument.
fn find<'a>(
    entries: &'a Entries,
    reference: &Reference<'_>,
    argument: &str,
) -> Result<(&'a Entry, bool), RpcError> {
    let unknown = |reason| RpcError::invalid_params(reason);
    match reference {
        Reference::Prompt(name) => {
            let prompt = entries.prompts.get(name);
            let prompt =
                prompt.ok_or_else(|| unknown(format!("ref.name: unknown prompt: {name}")))?;
            Ok((&prompt.entry, prompt.has_argument(argument)))
        }
        Reference::Resource(uri) => {
            let by_match = || entries.template_of(uri).map(|(_, template)| template);
            let known = entries.templates.get(uri).or_else(by_match);
            let known = known
                .ok_or_else(|| unknown(format!("ref.uri: unknown resource template: {uri}")))?;
            let has_argument = known.pattern.variables().contains(&argument);
            Ok((&known.template.entry, has_argument))
        }
    }
}
