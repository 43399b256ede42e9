//! The open connections of a port: limits in total and per address, and idle connections.
//!
//! If the port is full, a connection of the address with the most connections is closed for a new client: an idle one, or
//! else an HTTP/2 connection on which most streams are stalled. So one address, or a few, cannot keep others out.

#[cfg(feature = "http2")]
use super::http2;
use super::idle::{Activity, ConnectionStream};
use super::listener::{Listener, Transport};
use super::serve::{PortRoutes, route};
#[cfg(feature = "tls")]
use super::tls::HANDSHAKE_TIMEOUT;
use crate::limits::{LimitKey, LimitReached, Limiter, Permit, PortKind, file_limit};
use crate::metrics::Refusal;
#[cfg(feature = "tls")]
use crate::timer::within;
use http::HeaderValue;
use http::header::CONNECTION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use refrain_core::limited_event;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Interval;

/// hyper panics if the buffer is smaller.
const MIN_BUFFER: usize = 8192;

pub(super) struct OpenConnections {
    routes: PortRoutes,
    idle_check: Interval,
    limiter: Arc<Limiter>,
    tasks: JoinSet<()>,
    open: Vec<Connection>,
}

struct Connection {
    key: LimitKey,
    activity: Weak<Activity>,
    /// The value of [`Activity::requests`] at the last idle check. `u64::MAX` before the first one.
    checked_requests: u64,
    task: AbortHandle,
}

impl OpenConnections {
    pub(super) fn new(routes: PortRoutes) -> Self {
        let limits = routes.server().limits();
        let kind = match routes.is_endpoint() {
            true => PortKind::Endpoint {
                relays: routes.server().0.relay.is_advertised(),
            },
            false => PortKind::Metrics,
        };
        let (total, each) = kind.connection_limits(limits, file_limit());
        if total < limits.connections && routes.is_endpoint() {
            let (files, connections) = (file_limit(), limits.connections);
            tracing::warn!(
                files,
                connections,
                reduced_to = total,
                "limit of connections reduced: too few open files are allowed"
            );
        }
        Self {
            // An interval of zero panics.
            idle_check: tokio::time::interval(limits.idle_time.max(Duration::from_millis(1))),
            limiter: Limiter::fixed("connections", total, each).reserve_for_principals(false),
            routes,
            tasks: JoinSet::new(),
            open: Vec::new(),
        }
    }

    /// Waits for one event: a connection is accepted or has ended, or idle ones are due to be closed.
    pub(super) async fn step(&mut self, listener: &Listener) {
        tokio::select! {
            accepted = listener.socket.accept() => match accepted {
                Ok((stream, address)) => self.open(stream, address.ip(), &listener.transport),
                Err(error) => self.accept_failed(&error).await,
            },
            _ = self.idle_check.tick() => self.close_idle(),
            Some(_) = self.tasks.join_next() => {}
        }
    }

    /// Closes every connection after its current request; idle ones immediately.
    pub(super) fn close(&self) {
        for connection in &self.open {
            if let Some(activity) = connection.activity.upgrade() {
                activity.close();
            }
        }
    }

    /// Waits until all connections are closed.
    pub(super) async fn closed(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Usually the process is out of files: closes a connection as on a full port. Its file is free when its task has ended.
    async fn accept_failed(&mut self, error: &io::Error) {
        limited_event!(WARN, %error, "failed to accept a connection");
        let Some(task) = self.close_one_of_largest(2) else {
            return tokio::time::sleep(Duration::from_millis(50)).await;
        };
        while !task.is_finished() && self.tasks.join_next().await.is_some() {}
    }

    fn open(&mut self, stream: TcpStream, address: IpAddr, transport: &Transport) {
        let key = LimitKey::address(address);
        let permit = match self.admit(&key) {
            Ok(permit) => permit,
            Err(reached) => {
                let metrics = &self.routes.server().0.services.metrics;
                metrics.request_refused(Refusal::Connections);
                limited_event!(WARN, %address, reason = %reached, "connection rejected");
                return;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "failed to set TCP_NODELAY");
        }
        let activity = Arc::new(Activity::new(address, permit));
        let context = ConnectionContext {
            routes: self.routes.clone(),
            activity: activity.clone(),
            limiter: self.limiter.clone(),
            key: key.clone(),
        };
        let connection = serve_connection(stream, transport.clone(), context);
        self.open.push(Connection {
            key,
            activity: Arc::downgrade(&activity),
            checked_requests: u64::MAX,
            task: self.tasks.spawn(connection),
        });
        // Removes closed connections before the list would grow.
        if self.open.len() == self.open.capacity() {
            self.open
                .retain(|connection| !connection.task.is_finished());
        }
    }

    fn admit(&mut self, key: &LimitKey) -> Result<Permit, LimitReached> {
        match self.limiter.acquire(key.clone()) {
            // Only if the other address then has at least as many connections as this one will have.
            Err(LimitReached::Total { .. })
                if self
                    .close_one_of_largest(self.limiter.in_use_by(key) + 2)
                    .is_some() =>
            {
                self.limiter.acquire(key.clone())
            }
            admitted => admitted,
        }
    }

    /// Closes an idle or stalled connection of the address with the most connections, if it has at least `least`. Returns the
    /// task of the connection.
    fn close_one_of_largest(&mut self, least: usize) -> Option<AbortHandle> {
        let (key, count) = self.limiter.largest()?;
        if count < least {
            return None;
        }
        let find = |is_unused: fn(&Activity) -> bool| {
            let mut open = self.open.iter().enumerate();
            open.find_map(|(index, connection)| {
                let activity = connection.activity.upgrade()?;
                (connection.key == key && is_unused(&activity)).then_some((index, activity))
            })
        };
        let idle = find(|activity| !activity.is_busy());
        let (index, activity) = idle.or_else(|| find(Activity::has_mostly_stalled_streams))?;
        let task = self.open.swap_remove(index).task;
        task.abort();
        // The aborted task ends later, so its permit is returned here.
        activity.return_permit();
        Some(task)
    }

    fn close_idle(&mut self) {
        self.open.retain_mut(|connection| {
            let Some(activity) = connection.activity.upgrade() else {
                return false;
            };
            let is_idle = activity.is_idle_since_check(&mut connection.checked_requests);
            if activity.writes.is_blocked_since_last_check() || is_idle {
                connection.task.abort();
            }
            !connection.task.is_finished()
        });
    }
}

/// The data that all requests of a connection share.
pub(super) struct ConnectionContext {
    pub(super) routes: PortRoutes,
    pub(super) activity: Arc<Activity>,
    /// The limiter of connections, which counts HTTP/2 streams too.
    #[cfg_attr(
        not(feature = "http2"),
        expect(dead_code, reason = "only HTTP/2 has streams")
    )]
    pub(super) limiter: Arc<Limiter>,
    pub(super) key: LimitKey,
}

/// Serves a connection. The futures of HTTP/2 and TLS are boxed, so that they do not enlarge the task of every connection.
async fn serve_connection(stream: TcpStream, transport: Transport, context: ConnectionContext) {
    #[cfg(feature = "http2")]
    let is_http2 = matches!(transport, Transport::Plain)
        && context.routes.is_endpoint()
        && tokio::select! {
            biased;
            is_http2 = http2::is_http2(&stream) => is_http2,
            () = context.activity.closing() => return,
        };
    let stream = ConnectionStream {
        stream,
        activity: context.activity.clone(),
    };
    match transport {
        #[cfg(feature = "http2")]
        Transport::Plain if is_http2 => Box::pin(http2::serve(stream, context)).await,
        Transport::Plain => serve_http1(stream, context).await,
        #[cfg(feature = "tls")]
        Transport::Tls(acceptor) => Box::pin(serve_tls(stream, acceptor, context)).await,
    }
}

#[cfg(feature = "tls")]
async fn serve_tls(
    stream: ConnectionStream,
    acceptor: tokio_rustls::TlsAcceptor,
    context: ConnectionContext,
) {
    let handshake = tokio::select! {
        biased;
        handshake = within(HANDSHAKE_TIMEOUT, acceptor.accept(stream)) => handshake,
        () = context.activity.closing() => return,
    };
    let stream = match handshake {
        Some(Ok(stream)) => stream,
        Some(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        None => return tracing::debug!("TLS handshake timed out"),
    };
    match stream.get_ref().1.alpn_protocol() {
        #[cfg(feature = "http2")]
        Some(b"h2") => http2::serve(stream, context).await,
        _ => serve_http1(stream, context).await,
    }
}

async fn serve_http1<I>(io: I, context: ConnectionContext)
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let ConnectionContext {
        routes, activity, ..
    } = &context;
    let service = service_fn(async |request| {
        // Metrics are expensive to collect, so all requests for them take turns.
        if activity.is_next_request_pipelined() || !routes.is_endpoint() {
            Box::pin(wait_for_turn(&context)).await;
        }
        let mut response = route(routes, activity, request).await;
        // After `connection: close`, proxies no longer use the connection.
        if let Ok(response) = &mut response
            && routes.server().is_draining()
        {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        activity.response_ready();
        response
    });
    let head = routes.server().limits().head.max(MIN_BUFFER);
    // No header timeout: the idle check closes connections that send their headers slowly.
    let connection = http1::Builder::new()
        .max_buf_size(head)
        // hyper's buffer may exceed `max_buf_size`.
        .max_header_size(head)
        .serve_connection(TokioIo::new(io), service);
    drive(connection, activity, http1::Connection::graceful_shutdown).await;
}

/// Waits until a request in the queue may start: one starts in each turn of the scheduler, and addresses take turns. So the
/// cost of other requests does not depend on the number of connections with queued requests.
async fn wait_for_turn(context: &ConnectionContext) {
    let queue = &context.routes.server().0.services.limits.pipelined_requests;
    // `acquire` itself holds the permit for a turn of the scheduler.
    drop(queue.acquire(context.key.clone()).await);
}

/// Runs a connection until it ends. `shutdown` starts to close it, when [`Activity::close`] is called.
pub(super) async fn drive<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    activity: &Activity,
    shutdown: fn(Pin<&mut C>),
) {
    let mut connection = pin!(connection);
    let mut closing = false;
    let result = poll_fn(|cx| {
        if !closing && activity.is_closing(cx.waker()) {
            closing = true;
            shutdown(connection.as_mut());
        }
        connection.as_mut().poll(cx)
    });
    if let Err(error) = result.await {
        tracing::debug!(%error, "connection failed");
    }
}

#[cfg(test)]
mod tests;
