//! Calls that hold their backend connection until they end: a legacy backend asks while the call runs; a 2026-07-28
//! backend without HTTP gets the next rounds on the same connection.

use super::encode::BackendResult;
use super::{CallConnection, CallTimer, call_error, is_answered};
use crate::backend::Backend;
use crate::metrics::BackendOutcome;
use crate::pool::{CallEnd, Owner};
use refrain::client::{CallSpec, ErrorKind};
use refrain::{Cx, Result};

pub(super) async fn run(
    cx: &Cx,
    backend: &Backend,
    owner: Owner,
    spec: CallSpec,
) -> Result<BackendResult> {
    let mut timer = CallTimer::new(backend);
    let connection = CallConnection::acquire(cx, owner, &mut timer).await?;
    let CallConnection {
        mut connection,
        client,
        ..
    } = connection;
    let called = client.call(spec).await;
    drop(client);
    // If this future is dropped before this line, no end is set: call and connection are then abandoned.
    connection.set_end(match is_answered(&called) {
        true => CallEnd::Finished,
        false => CallEnd::Broken,
    });
    timer.outcome = match &called {
        Ok(_) => BackendOutcome::Result,
        Err(error) if matches!(error.kind, ErrorKind::Rpc(_)) => BackendOutcome::Error,
        Err(_) => BackendOutcome::Lost,
    };
    match called {
        Ok(result) => Ok(BackendResult::Parsed(result)),
        Err(error) => Err(call_error(backend, &error)),
    }
}
