//! A server in this process, on a free port.

use super::wait::Serving;
use super::{Connection, Request, Response, http, until};
use refrain_server::{AllowedHosts, Server, ServerBuilder, serve};
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// A listener on a free port of the loopback interface.
pub async fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a free port")
}

/// A running server. Dropping it stops it.
pub struct Instance {
    pub address: SocketAddr,
    pub server: Server,
    serving: Serving,
}

pub async fn start(builder: ServerBuilder) -> Instance {
    start_for(builder, AllowedHosts::local()).await
}

pub async fn start_for(builder: ServerBuilder, hosts: AllowedHosts) -> Instance {
    start_on(listen().await, builder, hosts)
}

/// Serves a server that advertises its URL. It needs keys.
pub async fn start_advertised(builder: ServerBuilder) -> Instance {
    let listener = listen().await;
    let url = url_of(&listener);
    start_on(listener, builder.advertise(url), AllowedHosts::local())
}

/// The URL of the endpoint on this listener.
pub fn url_of(listener: &TcpListener) -> String {
    format!("http://{}/mcp", listener.local_addr().expect("an address"))
}

/// Serves a server on a free port until the runtime ends, and returns its URL.
pub async fn serve_forever(builder: ServerBuilder) -> String {
    let instance = start(builder).await;
    let url = instance.url();
    std::mem::forget(instance);
    url
}

pub fn start_on(listener: TcpListener, builder: ServerBuilder, hosts: AllowedHosts) -> Instance {
    let server = builder.build().expect("a usable server");
    Instance {
        address: listener.local_addr().expect("an address"),
        server: server.clone(),
        serving: Serving::start(|stopped| serve(listener, server, hosts, stopped)),
    }
}

impl Instance {
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub async fn send(&self, request: &Request) -> Response {
        http::send(self.address, request).await
    }

    pub async fn send_bytes(&self, bytes: &[u8]) -> Response {
        let mut connection = self.connect().await;
        connection.write(bytes).await;
        connection.response().await
    }

    pub async fn get(&self, path: &str) -> Response {
        self.send(&Request::get(path)).await
    }

    pub async fn connect(&self) -> Connection {
        Connection::open(self.address).await
    }

    /// Tells the server to stop.
    pub fn stop(&mut self) {
        self.serving.stop();
    }

    pub fn has_stopped(&self) -> bool {
        self.serving.has_ended()
    }

    /// Waits until the server has stopped.
    pub async fn stopped(mut self) {
        self.serving.ended().await;
    }

    /// Stops the server, and waits until it has stopped.
    pub async fn stopped_now(mut self) {
        self.stop();
        self.stopped().await;
    }

    /// Waits until no call is running.
    pub async fn at_rest(&self) {
        until("the calls to end", || self.server.running() == 0).await;
    }
}
