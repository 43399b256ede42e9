//! Calls to backends that speak 2026-07-28 over HTTP.
//!
//! The value of each step is the pending call with the backend's request state, so any gateway can send the next round.

use super::encode::{self, BackendResult};
use super::{CallConnection, CallTimer, ProxiedTarget, call_error};
use crate::asks::AskForwarder;
use crate::metrics::BackendOutcome;
use crate::pool::{CallEnd, Owner};
use futures_util::future::try_join_all;
use refrain::client::{CallSpec, Client, ErrorKind, PendingCall, RoundOutcome};
use refrain::{Cx, Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::sleep;

/// How often the task of a backend is polled.
const TASK_POLL: Duration = Duration::from_secs(1);

/// The outcome of a backend's round, as it is journaled.
#[derive(Serialize, Deserialize)]
enum BackendRound {
    Complete(Box<RawValue>),
    Pending(Box<PendingCall>),
    Failed {
        code: i64,
        message: String,
        data: Value,
    },
}

pub(super) async fn run(
    cx: &Cx,
    target: &ProxiedTarget,
    owner: Owner,
    spec: CallSpec,
) -> Result<BackendResult> {
    let backend = &*target.backend;
    let mut timer = CallTimer::new(backend);
    if !backend.has_portable_rounds() {
        timer.outcome = BackendOutcome::Unavailable;
        let name = &backend.spec.name;
        return Err(Error::msg(format!(
            "backend {name} has changed its protocol; list its tools again"
        )));
    }
    let connection = CallConnection::acquire(cx, owner, &mut timer).await?;
    let CallConnection {
        mut connection,
        client,
        asks,
    } = connection;
    let mut pending = None;
    loop {
        // Applies if this future is dropped during the round.
        connection.set_end(CallEnd::Abandoned);
        // A round that may run twice is a step; any other runs at most once.
        let sent = match target.is_repeatable {
            true => {
                let send = |key: String| send_next(target, &client, pending.take(), &spec, key);
                cx.step_with_key("round", send).await
            }
            false => {
                let id = format!("{:016x}", cx.random());
                let sent = send_next(target, &client, pending.take(), &spec, id);
                cx.once("round", sent).await
            }
        };
        let sent = sent.inspect_err(|_| {
            connection.set_end(CallEnd::Broken);
            timer.outcome = BackendOutcome::Lost;
        })?;
        // Between two rounds the connection has no request in flight.
        connection.set_end(CallEnd::Finished);
        let mut next = match sent {
            BackendRound::Complete(result) => {
                timer.outcome = BackendOutcome::Result;
                return Ok(BackendResult::Json(result));
            }
            BackendRound::Failed {
                code,
                message,
                data,
            } => {
                timer.outcome = BackendOutcome::Error;
                return Err(Error::rpc(code, message, data));
            }
            BackendRound::Pending(next) => *next,
        };
        if next.task_id().is_some() {
            // The caller's call becomes a task too, if its client supports tasks.
            cx.detach().await?;
        }
        answer_asks(&asks, &mut next).await?;
        pending = Some(next);
    }
}

/// Forwards the open asks of the backend to the caller, and adds the answers to the call.
async fn answer_asks(asks: &AskForwarder, call: &mut PendingCall) -> Result<()> {
    let open = call.unanswered();
    let answers = open.iter().map(async |ask| {
        let answered = asks.ask(ask).await;
        answered.map(|answer| (ask.key().to_owned(), answer))
    });
    let answers = try_join_all(answers).await.map_err(Error::msg)?;
    for (key, answer) in answers {
        call.answer(&key, answer)?;
    }
    Ok(())
}

/// Sends the first round with this call id, or the next round of a pending call.
async fn send_next(
    target: &ProxiedTarget,
    client: &Client,
    pending: Option<PendingCall>,
    spec: &CallSpec,
    id: String,
) -> Result<BackendRound> {
    let next = match pending {
        Some(next) => Ok(next),
        None => client.prepare_with_id(spec.clone(), id),
    };
    let next = next.map_err(|error| call_error(&target.backend, &error))?;
    send(target, client, next).await
}

/// Sends one round to the backend. If an earlier round made the call a task, polls until the task asks or ends.
async fn send(
    target: &ProxiedTarget,
    client: &Client,
    mut pending: PendingCall,
) -> Result<BackendRound> {
    let backend = &*target.backend;
    let is_task = pending.task_id().is_some();
    // The task of a repeatable call is not cancelled: if the round runs again, it continues with this task.
    let task = pending.task_id().filter(|_| !target.is_repeatable);
    let mut task = task.map(|id| BackendTaskGuard::new(client, id));
    loop {
        let resumed = client.resume(pending).await;
        let is_working =
            matches!(&resumed, Ok(RoundOutcome::Pending(next)) if next.unanswered().is_empty());
        if !is_working && let Some(task) = &mut task {
            task.is_armed = false;
        }
        let error = match resumed {
            Ok(RoundOutcome::Complete(result)) => {
                return encode::to_json(result).await.map(BackendRound::Complete);
            }
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

/// Cancels the task of a backend if its call is abandoned, for example because the caller cancelled it.
struct BackendTaskGuard {
    client: Client,
    id: String,
    is_armed: bool,
}

impl BackendTaskGuard {
    fn new(client: &Client, id: &str) -> Self {
        Self {
            client: client.clone(),
            id: id.to_owned(),
            is_armed: true,
        }
    }
}

impl Drop for BackendTaskGuard {
    fn drop(&mut self) {
        if !self.is_armed {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let (client, id) = (self.client.clone(), std::mem::take(&mut self.id));
        runtime.spawn(async move {
            if let Err(error) = client.cancel_task(&id).await {
                tracing::debug!(%error, "failed to cancel the task of a backend");
            }
        });
    }
}
