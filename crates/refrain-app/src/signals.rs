//! Signals: SIGTERM and SIGINT drain the instance, SIGHUP reloads its keys.

use crate::{AppError, keys};
use refrain::server::Server;
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Resolves at the first SIGTERM or SIGINT. A further one, more than a second later, ends the process at once.
pub(crate) fn shutdown() -> Result<impl Future<Output = ()>, AppError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut next_signal = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    Ok(async move {
        next_signal().await;
        tokio::spawn(async move {
            // Some supervisors send each signal twice, to the process and to its group.
            tokio::time::sleep(Duration::from_secs(1)).await;
            while tokio::time::timeout(Duration::ZERO, next_signal())
                .await
                .is_ok()
            {}
            next_signal().await;
            tracing::warn!("second shutdown signal: aborting running calls");
            std::process::exit(1);
        });
    })
}

/// Reloads the key file on SIGHUP. If that fails, the current keys stay in use.
pub(crate) fn reload_on_hangup(
    servers: Vec<Server>,
    file: Option<PathBuf>,
) -> Result<(), AppError> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let Some(file) = &file else {
                tracing::warn!("SIGHUP ignored: no key file is set");
                continue;
            };
            match keys::read(file) {
                Ok(ring) => {
                    for server in &servers {
                        server.reload_keys(ring.clone());
                    }
                    // Logged last: from this line on the new keys are in use.
                    tracing::info!(keys = ?ring, "keys reloaded");
                }
                Err(error) => tracing::error!(%error, "failed to reload keys"),
            }
        }
    });
    Ok(())
}
