//! Signals: SIGTERM and SIGINT drain the instance, SIGHUP reloads the files with its keys, certificate and callers.

use crate::config::{Config, read_tokens};
use crate::servers::Servers;
use crate::tls::TlsFiles;
use crate::{AppError, keys, secret_file};
use refrain::auth::BearerTokens;
use refrain::server::{Server, TlsCertificate};
use std::future::pending;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};

/// How long a reload may read a file. The thread that reads is not stopped.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Resolves at the first SIGTERM or SIGINT.
pub(crate) type Shutdown = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Resolves at a further SIGTERM or SIGINT, more than a second later.
pub(crate) type Abort = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) fn shutdown() -> Result<(Shutdown, Abort), AppError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut next_signal = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let (sender, aborted) = oneshot::channel();
    let shutdown = Box::pin(async move {
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
            let _ = sender.send(());
        });
    });
    let abort = Box::pin(async move {
        // If the first signal has not arrived, the sender still exists.
        if aborted.await.is_err() {
            pending::<()>().await;
        }
    });
    Ok((shutdown, abort))
}

/// Reloads the key file, the certificate and the token file on SIGHUP. If one cannot be read, the old one stays in use.
pub(crate) fn reload_on_hangup(servers: &Servers, config: &Config) -> Result<(), AppError> {
    let mut hangup = signal(SignalKind::hangup())?;
    let keys = config.keys.clone().map(|keys| keys.0);
    let certificate = config.tls().zip(servers.tls.clone());
    let tokens = config.tokens.clone().map(|file| file.0);
    let tokens = tokens.zip(servers.tokens.clone());
    let servers = servers.all();
    tokio::spawn(async move {
        let mut reloads = JoinSet::new();
        while hangup.recv().await.is_some() {
            if keys.is_none() && certificate.is_none() && tokens.is_none() {
                tracing::warn!("SIGHUP ignored: no key file, certificate or token file is set");
            }
            // A reload that still reads must not replace newer contents.
            reloads.shutdown().await;
            if let Some(file) = &keys {
                reloads.spawn(reload_keys(servers.clone(), file.clone()));
            }
            if let Some((files, certificate)) = &certificate {
                reloads.spawn(reload_certificate(certificate.clone(), files.clone()));
            }
            if let Some((file, tokens)) = &tokens {
                reloads.spawn(reload_tokens(tokens.clone(), file.clone()));
            }
        }
    });
    Ok(())
}

async fn reload_keys(servers: Vec<Server>, file: PathBuf) {
    let name = file.display().to_string();
    let read = move || {
        secret_file::warn_if_exposed(&file);
        keys::read(&file)
    };
    match read_in_time(&name, read).await {
        Ok(ring) => {
            for server in servers {
                server.reload_keys(ring.clone());
            }
            // Logged last: from this line on the new keys are in use.
            let keys = ring.list().map(|(id, state)| format!("{id} {state}"));
            let keys = keys.collect::<Vec<_>>().join(", ");
            tracing::info!(file = name, keys, "keys reloaded");
        }
        Err(error) => tracing::error!(%error, "failed to reload keys; the old keys stay in use"),
    }
}

async fn reload_certificate(certificate: TlsCertificate, files: TlsFiles) {
    let file = files.cert.display().to_string();
    let names = format!("{file} and {}", files.key.display());
    let read = move || {
        secret_file::warn_if_exposed(&files.key);
        files.read()
    };
    match read_in_time(&names, read).await {
        Ok(new) => {
            certificate.replace(&new);
            tracing::info!(file, "certificate reloaded");
        }
        Err(error) => {
            tracing::error!(%error, "failed to reload the certificate; the old one stays in use");
        }
    }
}

async fn reload_tokens(tokens: BearerTokens, file: PathBuf) {
    let name = file.display().to_string();
    match read_in_time(&name, move || read_tokens(&file)).await {
        Ok(new) => {
            tokens.replace(&new);
            tracing::info!(file = name, "token file reloaded");
        }
        Err(error) => {
            tracing::error!(%error, "failed to reload the token file; the old one stays in use");
        }
    }
}

/// Reads files on another thread: a pipe or a network file system may block for ever.
async fn read_in_time<T: Send + 'static>(
    name: &str,
    read: impl FnOnce() -> Result<T, AppError> + Send + 'static,
) -> Result<T, AppError> {
    match tokio::time::timeout(READ_TIMEOUT, spawn_blocking(read)).await {
        Ok(done) => done?,
        Err(_) => {
            let seconds = READ_TIMEOUT.as_secs();
            Err(format!("reading {name} took longer than {seconds} s").into())
        }
    }
}
