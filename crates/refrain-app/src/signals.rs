//! Signals: SIGTERM and SIGINT drain the instance, SIGHUP reloads the files with its keys, certificate and callers.

use crate::config::{Config, read_tokens};
use crate::servers::Servers;
use crate::tls::TlsFiles;
use crate::{AppError, keys, secret_file};
use refrain::auth::BearerTokens;
use refrain::server::{Server, TlsCertificate};
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Resolves at the first SIGTERM or SIGINT. A further one, more than a second later, ends the process at once.
pub(crate) type Shutdown = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) fn shutdown() -> Result<Shutdown, AppError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut next_signal = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    Ok(Box::pin(async move {
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
    }))
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
        while hangup.recv().await.is_some() {
            if keys.is_none() && certificate.is_none() && tokens.is_none() {
                tracing::warn!("SIGHUP ignored: no key file, certificate or token file is set");
            }
            if let Some(file) = &keys {
                reload_keys(&servers, file);
            }
            if let Some((files, certificate)) = &certificate {
                reload_certificate(certificate, files);
            }
            if let Some((file, tokens)) = &tokens {
                reload_tokens(tokens, file);
            }
        }
    });
    Ok(())
}

fn reload_keys(servers: &[Server], file: &Path) {
    secret_file::warn_if_exposed(file);
    match keys::read(file) {
        Ok(ring) => {
            for server in servers {
                server.reload_keys(ring.clone());
            }
            // Logged last: from this line on the new keys are in use.
            tracing::info!(keys = ?ring, "keys reloaded");
        }
        Err(error) => tracing::error!(%error, "failed to reload keys; the old keys stay in use"),
    }
}

fn reload_certificate(certificate: &TlsCertificate, files: &TlsFiles) {
    secret_file::warn_if_exposed(&files.key);
    match files.read() {
        Ok(new) => {
            certificate.replace(&new);
            tracing::info!(file = %files.cert.display(), "certificate reloaded");
        }
        Err(error) => {
            tracing::error!(%error, "failed to reload the certificate; the old one stays in use");
        }
    }
}

fn reload_tokens(tokens: &BearerTokens, file: &Path) {
    match read_tokens(file) {
        Ok(new) => {
            tokens.replace(&new);
            tracing::info!(file = %file.display(), "token file reloaded");
        }
        Err(error) => {
            tracing::error!(%error, "failed to reload the token file; the old one stays in use");
        }
    }
}
