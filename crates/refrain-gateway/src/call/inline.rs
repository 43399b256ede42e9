//! Calls that keep their connection: the backend asks while the call runs, or the client sends its next rounds there.

use super::{CallTimer, acquire, call_error, is_answered, members};
use crate::asks::AskForwarder;
use crate::backend::Backend;
use crate::metrics::CallOutcome;
use crate::pool::{LeaseEnd, Owner};
use refrain::client::{CallSpec, ErrorKind};
use refrain::{Cx, Result};
use serde_json::{Map, Value};

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
    let budget = backend.pool.response_budget(cx.account());
    let client = lease
        .client()
        .scoped(|builder| asks.handle(builder, support).response_budget(budget));
    let called = client.call(spec).await;
    drop(client);
    // If this future is dropped before, the call is abandoned, and so is its connection.
    lease.set_end(match is_answered(&called) {
        true => LeaseEnd::Finished,
        false => LeaseEnd::Broken,
    });
    timer.outcome = match &called {
        Ok(_) => CallOutcome::Result,
        Err(error) if matches!(error.kind, ErrorKind::Rpc(_)) => CallOutcome::Error,
        Err(_) => CallOutcome::Lost,
    };
    match called {
        Ok(result) => members(backend, result),
        Err(error) => Err(call_error(backend, &error)),
    }
}
