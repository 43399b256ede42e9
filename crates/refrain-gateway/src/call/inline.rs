//! Calls that keep their connection: the backend asks while the call runs, or the client sends its next rounds there.

use super::{CallTimer, acquire, call_error, members};
use crate::asks::AskForwarder;
use crate::backend::Backend;
use crate::metrics::CallOutcome;
use crate::pool::Owner;
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
    let (lease, support) = acquired.inspect_err(|_| timer.outcome = CallOutcome::Unavailable)?;
    let asks = AskForwarder::new(cx, backend);
    let client = lease
        .client()
        .scoped(|builder| asks.handle(builder, support));
    let called = client.call(spec).await;
    drop(client);
    // If this future is dropped before, the call is abandoned, and so is its connection.
    match called {
        Ok(result) => {
            lease.finish();
            timer.outcome = CallOutcome::Result;
            members(result)
        }
        Err(error) => {
            timer.outcome = CallOutcome::Lost;
            if matches!(error.kind, ErrorKind::Rpc(_)) {
                lease.finish();
                timer.outcome = CallOutcome::Error;
            }
            Err(call_error(backend, &error))
        }
    }
}
