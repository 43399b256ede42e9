//! Response bodies, and the metering of the request that they answer.

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

/// A response body. Dropping it discards the unread rest.
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

    /// Reads the next chunk; `None` at the end of the body.
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
            meter.credit_chunk(data.len());
        }
        polled.map_err(|error| match self.in_flight.is_over_budget() {
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

/// A request in flight. Dropping it credits the meter of its connection with the allowance of one request.
#[derive(Debug)]
pub(crate) struct InFlight(CaptureConnection);

impl InFlight {
    pub(crate) fn new<B>(request: &mut Request<B>) -> Self {
        Self(capture_connection(request))
    }

    /// The meter of the connection; `None` before the request is assigned to a connection.
    fn meter(&self) -> Option<Arc<Meter>> {
        let mut extras = Extensions::new();
        self.0
            .connection_metadata()
            .as_ref()?
            .get_extras(&mut extras);
        extras.remove()
    }

    pub(crate) fn is_over_budget(&self) -> bool {
        self.meter().is_some_and(|meter| meter.is_over_budget())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(meter) = self.meter() {
            meter.credit_request();
        }
    }
}
