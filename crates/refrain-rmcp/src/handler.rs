//! An rmcp handler and its calls.
//!
//! | the handler | how it is served |
//! | --- | --- |
//! | sends a request to its peer | the request is an ask of the call; the handler's future waits in memory, or is dropped and run again |
//! | returns `InputRequiredResult` | the adapter asks, and calls the handler with the responses and the state, as a client would |

use crate::asks::{ask_all, call_failed};
use crate::catalog::OfferedNames;
use crate::connection::{Connection, capabilities_of};
use crate::forward::Forwarder;
use crate::step::CALL;
use refrain::runtime::wire::CallKind;
use refrain::server::{RawResult, Server, Tool};
use refrain::{Cx, Error, Result};
use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, GetPromptRequest,
    GetPromptRequestParams, InputRequests, InputResponses, ReadResourceRequest,
    ReadResourceRequestParams, ServerResult,
};
use rmcp::service::{DynService, RoleServer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::sleep;

/// The pause after a handler returned a state without requests, before it is called again.
const STATE_ONLY_PAUSE: Duration = Duration::from_millis(200);

/// Changes the registration of a tool.
pub(crate) type Configure = Box<dyn Fn(Tool) -> Tool + Send + Sync>;

/// A served handler.
pub(crate) struct RmcpHandler {
    pub(crate) service: Box<dyn DynService<RoleServer>>,
    /// The tools that run again in each round.
    pub(crate) replay: BTreeSet<String>,
    pub(crate) configure: Vec<Configure>,
    pub(crate) offered: OfferedNames,
    /// Held while lists are read again.
    pub(crate) refresh: Mutex<()>,
    /// Set when watching for changes outside of calls starts. The value becomes true when the subscription has had time to
    /// begin.
    pub(crate) watched: OnceLock<watch::Receiver<bool>>,
}

impl RmcpHandler {
    pub(crate) fn new(service: Box<dyn DynService<RoleServer>>) -> Self {
        Self {
            service,
            replay: BTreeSet::new(),
            configure: Vec::new(),
            offered: OfferedNames::default(),
            refresh: Mutex::default(),
            watched: OnceLock::new(),
        }
    }
}

/// A tool, prompt or resource of a handler.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) handler: Arc<RmcpHandler>,
    pub(crate) kind: CallKind,
}

/// The input that the last round of the handler required.
#[derive(Default, Serialize, Deserialize)]
struct RequiredInput {
    /// The number of rounds of the handler so far.
    rounds: u32,
    requests: InputRequests,
    state: Option<String>,
}

/// The name of the checkpoint that contains the [`RequiredInput`].
const REQUIRED_INPUT: &str = "rmcp";

impl Target {
    /// Calls the handler until it returns a result.
    pub(crate) async fn call(
        &self,
        cx: Cx,
        server: &Server,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<RawResult> {
        self.handler.watch(server).await;
        let mut input: RequiredInput = cx.resume(REQUIRED_INPUT)?.unwrap_or_default();
        loop {
            let round_cx = match input.rounds {
                0 => cx.clone(),
                rounds => cx.scope(format!("round {rounds}")),
            };
            let responses = match std::mem::take(&mut input.requests) {
                requests if requests.is_empty() => None,
                requests => Some(ask_all(&round_cx, requests).await.map_err(call_failed)?),
            };
            let request = self.request(name, arguments, responses, input.state.take());
            match self.run(&round_cx, server, request).await {
                Ok(ServerResult::InputRequiredResult(required)) => {
                    input = RequiredInput {
                        rounds: input.rounds + 1,
                        requests: required.input_requests.unwrap_or_default(),
                        state: required.request_state,
                    };
                    if input.requests.is_empty() {
                        sleep(STATE_ONLY_PAUSE).await;
                    }
                    // Later rounds continue here and do not repeat this round of the handler.
                    cx.checkpoint(REQUIRED_INPUT, &input).await?;
                }
                Ok(result) => match serde_json::to_value(result)? {
                    Value::Object(members) => return Ok(RawResult(members)),
                    _ => return Err(Error::internal("the handler's result is not an object")),
                },
                Err(error) => return Err(call_failed(error)),
            }
        }
    }

    fn request(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
        responses: Option<InputResponses>,
        state: Option<String>,
    ) -> ClientRequest {
        match self.kind {
            CallKind::Tool => {
                let mut params = CallToolRequestParams::new(name.to_owned());
                params.arguments = Some(arguments.clone());
                params.input_responses = responses;
                params.request_state = state;
                ClientRequest::CallToolRequest(CallToolRequest::new(params))
            }
            CallKind::Prompt => {
                let mut params = GetPromptRequestParams::new(name);
                params.arguments = Some(arguments.clone());
                params.input_responses = responses;
                params.request_state = state;
                ClientRequest::GetPromptRequest(GetPromptRequest::new(params))
            }
            CallKind::Resource => {
                let mut params = ReadResourceRequestParams::new(name);
                params.input_responses = responses;
                params.request_state = state;
                ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params))
            }
        }
    }

    /// Runs the handler once, and forwards its messages meanwhile. Dropping this future drops the
    /// handler's future, and cancels the cancellation token of its request.
    async fn run(
        &self,
        cx: &Cx,
        server: &Server,
        request: ClientRequest,
    ) -> Result<ServerResult, ErrorData> {
        let connection = Connection::open(capabilities_of(cx));
        let context = connection.context_of(cx);
        let _cancel = context.ct.clone().drop_guard();
        let mut messages = Forwarder::new(connection, cx, server, &self.handler);
        let running = self.handler.service.handle_request(request, context);
        let mut running = pin!(CALL.scope(cx.clone(), running));
        let result = poll_fn(|task| match running.as_mut().poll(task) {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => {
                messages.poll(task);
                Poll::Pending
            }
        });
        let result = result.await;
        messages.finish();
        result
    }
}
