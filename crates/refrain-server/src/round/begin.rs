//! The beginning of a round: find the handler, check the caller and the arguments, open the token.

use super::parks::Parks;
use super::resumed::Resumed;
use super::single_use::Claim;
use super::target::{Target, find};
use super::{Round, Stage, Tally, span};
use crate::auth::Caller;
use crate::catalog::RegisteredTool;
use crate::dispatch::{Begin, no_place};
use crate::handler::Run;
use crate::live::{LiveCaller, LiveFlow, LivePlace, NoLivePlace, Recipe, Wishes};
use crate::server::Server;
use crate::tasks::Seed;
use http::{HeaderMap, HeaderValue};
use refrain_core::{
    Cx, Env, Error, Flow, HandlerFuture, Keep, LogKey, OpenError, Outcome, Pressure, Principal,
    Sealer, Snapshot, Start, Stats,
};
use refrain_wire::{
    Call, CallKind, Capability, LogLevel, Reply, ResultBody, RpcError, ToolResult, parse_value,
};
use serde_json::{Value, json};
use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

impl From<RpcError> for Begin {
    /// An error that comes out of a call is a reply like any other.
    fn from(error: RpcError) -> Self {
        Self::Reply(Reply::Error(error))
    }
}

/// Where the token of a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The client sent it.
    Sent,
    /// It waited in the store.
    Fetched,
}

/// Where a flow waits while its client is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Home<'a> {
    /// With the client: each round is a request of its own.
    Client,
    /// In memory: what is asked goes out while the round goes on, as [`RoundEvent::Asks`](super::RoundEvent::Asks). The key is
    /// that of the client's session.
    Memory(&'a Arc<str>),
}

/// Begins a round of a call.
pub(crate) fn begin(
    server: &Server,
    call: &Call<'_>,
    token: Token,
    home: Home<'_>,
    caller: Caller,
    headers: Option<&HeaderMap>,
) -> Begin {
    let mut tally = Tally::begin(call.kind, &caller.principal);
    match try_begin(server, call, token, home, caller, headers, &mut tally) {
        Ok(mut round) => {
            round.tally = Some(tally);
            Begin::Round(round)
        }
        Err(begin) => {
            tally.end_early(&server.0.metrics, &begin);
            begin
        }
    }
}

fn try_begin(
    server: &Server,
    call: &Call<'_>,
    from: Token,
    home: Home<'_>,
    caller: Caller,
    headers: Option<&HeaderMap>,
    tally: &mut Tally,
) -> Result<Box<Round>, Begin> {
    let place = server
        .0
        .load
        .enter()
        .ok_or_else(|| Begin::Busy(no_place(server.0.limits.concurrent_calls, "calls")))?;
    let found = find(server, call);
    let (counts, needed) = match &found {
        Ok((target, _)) => (target.counts().cloned(), target.scopes()),
        Err(_) => (None, &[][..]),
    };
    tally.counts = counts;
    // Before anything else is said, so that a caller who may not does not learn what there is.
    let access = &server.0.access;
    access.allow(&caller, needed).map_err(Begin::Forbidden)?;
    let (target, variables) = found?;
    let mut arguments = match variables {
        Some(variables) => Some(variables),
        None => call
            .arguments
            .map(|raw| parse_value(raw.get()))
            .transpose()
            .map_err(|reason| RpcError::invalid_params(format!("arguments: {reason}")))?,
    };
    check(&target, &call.target, &mut arguments, headers)?;
    let sealer = &server.0.sealer;
    let binding = sealer.bind(
        &caller.principal,
        call.kind,
        &call.target,
        arguments.as_ref(),
    );
    let parks = matches!(home, Home::Client) && target.is_live();
    let mut start = match &call.state {
        None => {
            let first = sealer.first(&binding, call.meta.call_id.as_deref());
            let again = parks && call.meta.call_id.is_some();
            if again && let Some(attached) = server.0.live.again(first.flow())? {
                let round = Resumed {
                    target: &target,
                    binding,
                    place,
                    at: first,
                };
                return Ok(round.attach(server, call, attached));
            }
            tally.call(&server.0.metrics);
            Start::first(first, call.answers.as_ref())
        }
        Some(token) if Sealer::looks_live(token) => {
            let opened = sealer.open_live(&binding, token);
            let held = opened.map_err(|reason| refuse(server, tally, reason))?;
            let round = Resumed {
                target: &target,
                binding,
                place,
                at: Snapshot::first(held.flow, held.deadline).at_round(held.round),
            };
            return round.resume(server, call, held, caller);
        }
        Some(token) => {
            let opened = match from {
                Token::Sent => sealer.open(&binding, token),
                Token::Fetched => sealer.open_of_any_length(&binding, token),
            };
            let snapshot = opened.map_err(|reason| refuse(server, tally, reason))?;
            Start::resumed(snapshot, call.answers.as_ref())
                .map_err(|error| RpcError::invalid_params(error.to_string()))?
        }
    };
    let principal = caller.principal;
    let (once, single_use, version, output) = match &target {
        Target::Tool(tool) => (
            tool.tool.once,
            tool.tool.single_use,
            tool.tool.version.clone(),
            tool.output.clone(),
        ),
        _ => (false, false, Arc::from("1"), None),
    };
    if let Some(trace) = &call.meta.trace {
        if let Some(key) = trace.ignored {
            tracing::debug!(
                key,
                "a trace context is malformed or too long, and was ignored"
            );
        }
        start.receive_trace(trace);
    }
    let span = span::open(server, call, target.uri(), &mut start);
    let number = start.round();
    let deadline = start.deadline();
    // The first round of a live tool cannot be repeated elsewhere: where there is a log, that is noted.
    let noted = parks && call.meta.call_id.is_some() && server.0.replay_log.is_some();
    let single_use = (single_use || noted).then(|| LogKey::round(start.flow(), number));
    let seed = match &target {
        Target::Tool(tool) => seed(server, call, tool, &principal)?,
        _ => None,
    };
    let in_memory = parks || matches!(home, Home::Memory(_));
    let seed = seed.filter(|_| !in_memory);
    let parks = parks.then(|| Parks {
        flow: start.flow(),
        deadline: start.deadline(),
        has_call_id: call.meta.call_id.is_some(),
        wishes: wishes(call),
    });
    let live_place = match in_memory {
        true => Some(enter_live(server, home, &principal)?),
        false => None,
    };
    let env = Env {
        principal,
        uri: matches!(call.kind, CallKind::Resource).then(|| call.target.to_string()),
        capabilities: call.meta.capabilities,
        extensions: call.meta.extensions.map(ToOwned::to_owned),
        // A handler that is parked says it all: each of its rounds hears what it wants to.
        log_level: parks.map_or(call.meta.log_level, |_| Some(LogLevel::Debug)),
        wants_progress: parks.is_some() || call.meta.progress_token.is_some(),
        source: server.0.source.clone(),
        limits: server.0.limits.flow.clone(),
        pressure: Some(server.0.load.clone() as Arc<dyn Pressure>),
        replay_log: server.0.replay_log.clone().filter(|_| once),
        can_detach: seed.is_some(),
    };
    let arguments = arguments.unwrap_or_else(|| json!({}));
    let (flow, live, place) = if let Some(live_place) = live_place {
        let recipe = Recipe {
            target,
            name: call.target.to_string(),
            arguments,
            env,
        };
        // One that is parked lets go of the place with its request.
        let (mine, place) = match parks {
            Some(_) => (None, Some(place)),
            None => (Some(place), None),
        };
        let live = span.in_scope(|| LiveFlow::new(server, recipe, start, mine, live_place));
        (None, Some(Box::new(live)), place)
    } else {
        let handler = |cx| run_handler(server, &target, &call.target, cx, arguments);
        let flow = span.in_scope(|| Flow::new(env, start, handler));
        (Some(flow), None, Some(place))
    };
    let stage = match (&single_use, &server.0.replay_log) {
        (Some(key), Some(log)) => {
            let keep = Keep::for_flow(server.0.source.unix_seconds(), deadline);
            Stage::Claim(match parks {
                Some(_) => Claim::parking(server, log, key, keep),
                None => Claim::new(log, key, keep),
            })
        }
        _ => Stage::Run,
    };
    let claims = matches!(stage, Stage::Claim(_));
    let mut round = Box::new(Round {
        server: server.clone(),
        flow,
        live,
        parks,
        stage,
        binding,
        kind: call.kind,
        version,
        output,
        number,
        progress_token: call.meta.progress_token.map(ToOwned::to_owned),
        single_use,
        timer: None,
        seed,
        stats: Stats::default(),
        handed_on: false,
        tally: None,
        span,
        place,
    });
    if !claims {
        round.start();
    }
    Ok(round)
}

/// What the client wants to hear in this round.
pub(super) fn wishes(call: &Call<'_>) -> Wishes {
    Wishes {
        progress: call.meta.progress_token.is_some(),
        log: call.meta.log_level,
    }
}

/// A token did not open: counts that, and gives the one and only answer to it.
fn refuse(server: &Server, tally: &Tally, reason: OpenError) -> RpcError {
    tracing::warn!(%reason, target = tally.target(), "a token was refused");
    server.0.metrics.token_refused(reason);
    refused()
}

/// Takes a place for a call whose home is memory. One that would be parked is not begun by an instance that is on its way
/// out; one of an older client is drained as any call that runs.
fn enter_live(server: &Server, home: Home<'_>, principal: &Principal) -> Result<LivePlace, Begin> {
    let parks = matches!(home, Home::Client);
    if parks && (server.is_draining() || server.0.live.is_closed()) {
        return Err(Begin::Busy(RpcError::internal(
            "this instance is stopping, and takes no live calls on; call again",
        )));
    }
    let caller = match (principal.id(), home) {
        (Some(id), _) => Some(LiveCaller::Principal(id.into())),
        (None, Home::Memory(session)) => Some(LiveCaller::Session(session.clone())),
        (None, Home::Client) => None,
    };
    let place = server.0.live_places.enter(caller);
    place.map_err(|none| {
        Begin::Busy(match none {
            NoLivePlace::Full(most) => no_place(most, "live calls"),
            NoLivePlace::FullForCaller(most) => no_place(most, "live calls of one caller"),
        })
    })
}

/// What a task is made of, if the client knows tasks and the server has a store for them.
fn seed(
    server: &Server,
    call: &Call<'_>,
    tool: &Arc<RegisteredTool>,
    owner: &Principal,
) -> Result<Option<Seed>, RpcError> {
    if server.0.tasks.is_none() || !call.meta.capabilities.has(Capability::Tasks) {
        if tool.tool.task.required {
            return Err(RpcError::missing_capability(&[Capability::Tasks]));
        }
        return Ok(None);
    }
    Ok(Some(Seed {
        tool: tool.clone(),
        owner: owner.clone(),
        arguments: call.arguments.map(ToOwned::to_owned),
        capabilities: call.meta.capabilities,
        extensions: call.meta.extensions.map(ToOwned::to_owned),
        ttl: call.meta.task_ttl,
    }))
}

/// The one and only answer to a token that does not open, whatever the reason.
fn refused() -> RpcError {
    RpcError::invalid_params(
        "requestState is not valid for this request; send the call again without requestState",
    )
}

/// Do the arguments fit, and the headers that repeat them?
fn check(
    target: &Target,
    name: &str,
    arguments: &mut Option<Value>,
    headers: Option<&HeaderMap>,
) -> Result<(), Begin> {
    match target {
        Target::Tool(tool) => {
            if let Some(headers) = headers {
                let sent = |name: &str| headers.get_all(name).iter().map(HeaderValue::as_bytes);
                let checked = tool.headers.check(arguments.as_ref(), sent);
                checked.map_err(Begin::Refused)?;
            }
            let given = arguments.get_or_insert_with(|| json!({}));
            if !tool.arguments.is_valid(given) {
                let misfits: Vec<String> = tool
                    .arguments
                    .iter_errors(given)
                    .take(8)
                    .map(|error| match error.instance_path().as_str() {
                        "" => error.to_string(),
                        path => format!("{}: {error}", path.trim_start_matches('/')),
                    })
                    .collect();
                return Err(Begin::Reply(misfit(name, &misfits.join("; "))));
            }
        }
        Target::Prompt(_) => {
            let given = arguments.as_ref().and_then(Value::as_object);
            let wrong = given.and_then(|given| given.iter().find(|(_, value)| !value.is_string()));
            if let Some((key, _)) = wrong {
                let reason = format!("arguments[{key:?}] of a prompt must be a string");
                return Err(RpcError::invalid_params(reason).into());
            }
        }
        Target::Resource(_) | Target::Template(_) => {}
    }
    Ok(())
}

fn misfit(tool: &str, reason: &str) -> Reply {
    Reply::of_tool(ToolResult::error(format!(
        "Invalid arguments for tool {tool}: {reason}"
    )))
}

/// Starts the handler of a call.
pub(crate) fn run_handler(
    server: &Server,
    target: &Target,
    name: &str,
    cx: Cx,
    mut arguments: Value,
) -> HandlerFuture {
    target.read_texts(&mut arguments);
    let run = Run {
        server,
        arguments,
        to: target.reply_to(name),
    };
    let started = catch_unwind(AssertUnwindSafe(|| target.handler()(cx, run)));
    let reason = match started {
        Ok(Ok(future)) => return future,
        Ok(Err(reason)) => reason,
        // A plain function that returns a future, or the reading of its arguments, may panic before there is one.
        Err(panic) => return Box::pin(async move { resume_unwind(panic) }),
    };
    let outcome = match target {
        Target::Tool(_) => {
            let text = format!("Invalid arguments for tool {name}: {reason}");
            ResultBody::from_tool(ToolResult::error(text))
                .map(Outcome::Complete)
                .map_err(Error::internal)
        }
        Target::Prompt(_) => Err(Error::invalid_params(format!("arguments: {reason}"))),
        Target::Resource(_) | Target::Template(_) => Err(Error::invalid_params(format!(
            "the variables of the URI: {reason}"
        ))),
    };
    Box::pin(ready(outcome))
}
