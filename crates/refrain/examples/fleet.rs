//! A server of one's own, as an instance of a fleet: keys from a file, callers' tokens, logs, draining on SIGTERM, new
//! keys on SIGHUP, metrics. Run it with
//! `cargo run -p refrain --example fleet -- 127.0.0.1:8080 fleet.keys callers.txt 127.0.0.1:9464`.

use refrain::prelude::*;
use refrain::{AllowedHosts, BearerTokens, KeyRing, serve, serve_metrics};
use std::fs::read_to_string;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Deserialize, Elicit)]
struct Login {
    name: String,
}

/// Says hello to whoever is calling.
#[tool]
async fn hello(cx: Cx) -> Result<String> {
    let login: Login = cx.elicit("login", "What should I call you?").await?;
    Ok(format!("Hello, {}.", login.name))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Without a subscriber the server is silent: refused tokens, panics and draining are only logged.
    tracing_subscriber::fmt().init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, keys, callers, metrics @ ..] = &arguments[..] else {
        return Err("give an address, a key file (`refrain keys new FILE`), a file with lines of PRINCIPAL TOKEN, and \
                    an address for the metrics if you want them"
            .into());
    };

    let server = Server::builder("hello", "1.0")
        .tool(hello())
        .keys(read_to_string(keys)?.parse::<KeyRing>()?)
        .authenticator(BearerTokens::parse(&read_to_string(callers)?)?)
        .build()?;

    let mut hangup = signal(SignalKind::hangup())?;
    let (reloading, file) = (server.clone(), keys.clone());
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            match read_to_string(&file).map(|text| text.parse()) {
                Ok(Ok(ring)) => {
                    reloading.reload_keys(ring);
                    tracing::info!("the keys were read again");
                }
                other => tracing::error!(?other, "the keys stay as they are"),
            }
        }
    });

    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        terminate.recv().await;
    };
    if let Some(address) = metrics.first() {
        let listener = TcpListener::bind(address).await?;
        // Until the process ends, so that draining can be watched.
        tokio::spawn(serve_metrics(
            listener,
            server.clone(),
            std::future::pending(),
        ));
    }
    let listener = TcpListener::bind(address).await?;
    serve(listener, server, AllowedHosts::local(), stop).await?;
    Ok(())
}
