//! The open connections of a port: limits in total and per address, and idle connections.
//!
//! If the port is full, a new client takes the place of an idle connection of the address with the most connections. So
//! one address, or a few, cannot keep others out.

use super::idle::{Activity, ConnectionStream};
use super::serve::{PortRoutes, route};
use crate::limits::{LimitKey, LimitReached, Limiter, Permit};
use crate::metrics::Refusal;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use refrain_core::limited_event;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Interval;

/// hyper requires a buffer of at least this size.
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
    /// The request count at the last check.
    seen: u64,
    task: AbortHandle,
}

impl OpenConnections {
    pub(super) fn new(routes: PortRoutes) -> Self {
        let limits = routes.server().limits();
        Self {
            // An interval of zero panics.
            idle_check: tokio::time::interval(limits.idle_time.max(Duration::from_millis(1))),
            limiter: Limiter::fixed("connections", limits.connections, limits.connections_each),
            routes,
            tasks: JoinSet::new(),
            open: Vec::new(),
        }
    }

    /// Accepts one connection, or closes idle ones.
    pub(super) async fn step(&mut self, listener: &TcpListener) {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => self.open(stream, address.ip()),
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

    async fn accept_failed(&mut self, error: &io::Error) {
        // Usually out of file descriptors: make room, and wait before the next attempt.
        self.close_one_of_largest(2);
        limited_event!(WARN, %error, "failed to accept a connection");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    fn open(&mut self, stream: TcpStream, address: IpAddr) {
        let key = LimitKey::address(address);
        let permit = match self.admit(&key) {
            Ok(permit) => permit,
            Err(reached) => {
                let metrics = &self.routes.server().0.services.metrics;
                metrics.request_refused(Refusal::Connections);
                limited_event!(WARN, %address, reason = %reached, "connection closed");
                return;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "failed to set TCP_NODELAY");
        }
        let activity = Arc::new(Activity::new(address, permit));
        self.open.push(Connection {
            key,
            activity: Arc::downgrade(&activity),
            seen: u64::MAX,
            task: self
                .tasks
                .spawn(serve_connection(stream, self.routes.clone(), activity)),
        });
        // Removes closed connections before the list grows.
        if self.open.len() == self.open.capacity() {
            self.open
                .retain(|connection| !connection.task.is_finished());
        }
    }

    fn admit(&mut self, key: &LimitKey) -> Result<Permit, LimitReached> {
        match self.limiter.acquire(key.clone()) {
            // Only if the other address has more connections than this one then has.
            Err(LimitReached::Total { .. })
                if self.close_one_of_largest(self.limiter.in_use_by(key) + 2) =>
            {
                self.limiter.acquire(key.clone())
            }
            admitted => admitted,
        }
    }

    /// Closes an idle connection of the address with the most connections, if it has at least `least`.
    fn close_one_of_largest(&mut self, least: usize) -> bool {
        let Some((key, _)) = self.limiter.largest().filter(|(_, count)| *count >= least) else {
            return false;
        };
        let idle = |connection: &Connection| {
            let activity = connection
                .activity
                .upgrade()
                .filter(|_| connection.key == key);
            activity.filter(|activity| !activity.is_busy())
        };
        let mut open = self.open.iter().enumerate();
        let Some((at, activity)) = open.find_map(|(at, it)| Some((at, idle(it)?))) else {
            return false;
        };
        self.open.swap_remove(at).task.abort();
        // The task ends later.
        activity.return_permit();
        true
    }

    fn close_idle(&mut self) {
        self.open.retain_mut(|connection| {
            let Some(activity) = connection.activity.upgrade() else {
                return false;
            };
            let is_idle = activity.is_idle_since(&mut connection.seen);
            if activity.is_blocked_since_last_check() || is_idle {
                connection.task.abort();
            }
            !connection.task.is_finished()
        });
    }
}

async fn serve_connection(stream: TcpStream, routes: PortRoutes, activity: Arc<Activity>) {
    let service = service_fn(|request| route(&routes, &activity, request));
    let stream = ConnectionStream {
        stream,
        activity: activity.clone(),
    };
    // Slow heads are left to the idle check.
    let connection = http1::Builder::new()
        .max_buf_size(routes.server().limits().head.max(MIN_BUFFER))
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let mut closing = false;
    let ended = poll_fn(|cx| {
        if !closing && activity.is_closing(cx.waker()) {
            closing = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    });
    if let Err(error) = ended.await {
        tracing::debug!(%error, "connection failed");
    }
}
