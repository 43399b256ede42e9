//! The body of a response.

use crate::HttpError;
use crate::meter::Meter;
use bytes::Bytes;
use http::{Extensions, Request};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The body of a response. If it is dropped, the rest is not read.
#[derive(Debug)]
pub struct ResponseBody {
    body: Incoming,
    meter: Option<Arc<Meter>>,
    in_flight: InFlight,
}

impl ResponseBody {
    pub(crate) fn new(body: Incoming, in_flight: InFlight) -> Self {
        let meter = in_flight.meter();
        Self {
            body,
            meter,
            in_flight,
        }
    }

    /// The next part of the body; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        while let Some(frame) = self.frame().await {
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let (Poll::Ready(Some(Ok(frame))), Some(meter)) = (&polled, &self.meter)
            && let Some(data) = frame.data_ref()
        {
            meter.deliver(data.len());
        }
        polled.map_err(|error| match self.in_flight.is_exceeded() {
            true => HttpError::Excess,
            false => HttpError::Body(error),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request until its response was read or the request was cancelled.
#[derive(Debug)]
pub(crate) struct InFlight(CaptureConnection);

impl InFlight {
    pub(crate) fn new<B>(request: &mut Request<B>) -> Self {
        Self(capture_connection(request))
    }

    /// The meter of the connection, once there is one.
    fn meter(&self) -> Option<Arc<Meter>> {
        let mut extras = Extensions::new();
        self.0
            .connection_metadata()
            .as_ref()?
            .get_extras(&mut extras);
        extras.remove()
    }

    pub(crate) fn is_exceeded(&self) -> bool {
        self.meter().is_some_and(|meter| meter.is_exceeded())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(meter) = self.meter() {
            meter.end_request();
        }
    }
}
