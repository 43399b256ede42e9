//! Calls of backends that speak 2026-07-28 over HTTP.
//!
//! The value of each step is the pending call with the backend's request state, so any gateway can send the next round.

use super::{CallTimer, acquire, call_error, members};
use crate::asks::AskForwarder;
use crate::backend::Backend;
use crate::metrics::CallOutcome;
use crate::pool::Owner;
use futures_util::future::try_join_all;
use refrain::client::{CallSpec, Client, ErrorKind, PendingCall, RoundOutcome};
use refrain::{Cx, Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::time::sleep;

/// How often the task of a backend is polled.
const TASK_POLL: Duration = Duration::from_secs(1);

/// The outcome of a backend's round, as it is journaled.
#[derive(Serialize, Deserialize)]
enum BackendRound {
    Complete(Value),
    Pending(Box<PendingCall>),
    Failed {
        code: i64,
        message: String,
        data: Value,
    },
}

pub(super) async fn run(
    cx: &Cx,
    backend: &Backend,
    owner: Owner,
    spec: CallSpec,
) -> Result<Map<String, Value>> {
    let mut timer = CallTimer::new(backend);
    let acquired = acquire(backend, cx, owner).await;
    let (mut lease, support) =
        acquired.inspect_err(|_| timer.outcome = CallOutcome::Unavailable)?;
    let asks = AskForwarder::new(cx, backend);
    let client = lease
        .client()
        .scoped(|builder| asks.clone().handle(builder, support));
    let mut pending = None;
    loop {
        let sent = cx.step_with_key("round", |key| {
            let next = match pending.take() {
                Some(next) => Ok(next),
                None => client.prepare_with_id(spec.clone(), key),
            };
            async {
                let next = next.map_err(|error| call_error(backend, &error))?;
                send(backend, &client, next).await
            }
        });
        lease.set_reusable(false);
        let sent = sent.await;
        // Between two rounds the connection has no request in flight.
        lease.set_reusable(true);
        let mut next = match sent.inspect_err(|_| timer.outcome = CallOutcome::Lost)? {
            BackendRound::Complete(result) => {
                timer.outcome = CallOutcome::Result;
                return members(result);
            }
            BackendRound::Failed {
                code,
                message,
                data,
            } => {
                timer.outcome = CallOutcome::Error;
                return Err(Error::rpc(code, message, data));
            }
            BackendRound::Pending(next) => *next,
        };
        if next.task_id().is_some() {
            // The caller gets a handle too, if its client supports tasks.
            cx.detach().await?;
        }
        let open = next.unanswered();
        let answering = open.iter().map(async |ask| {
            let answered = asks.ask(ask).await;
            answered.map(|answer| (ask.key().to_owned(), answer))
        });
        let answers = try_join_all(answering).await.map_err(Error::msg)?;
        for (key, answer) in answers {
            next.answer(&key, answer)?;
        }
        pending = Some(next);
    }
}

/// Sends one round to the backend. If the backend has made the call a task, waits until the task asks or ends.
async fn send(
    backend: &Backend,
    client: &Client,
    mut pending: PendingCall,
) -> Result<BackendRound> {
    let is_task = pending.task_id().is_some();
    loop {
        let error = match client.resume(pending).await {
            Ok(RoundOutcome::Complete(result)) => return Ok(BackendRound::Complete(result)),
            Ok(RoundOutcome::Pending(next)) if is_task && next.unanswered().is_empty() => {
                pending = next;
                sleep(TASK_POLL).await;
                continue;
            }
            Ok(RoundOutcome::Pending(next)) => return Ok(BackendRound::Pending(Box::new(next))),
            Err(error) => error,
        };
        return match error.kind {
            ErrorKind::Rpc(failure) => Ok(BackendRound::Failed {
                code: failure.code,
                message: failure.message,
                data: failure.data,
            }),
            _ => Err(call_error(backend, &error)),
        };
    }
}
