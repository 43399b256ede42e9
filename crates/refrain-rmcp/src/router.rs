//! Refrain's tools inside an rmcp server.

use crate::adapter::block_on;
use crate::asks::{convert, server_request};
use refrain::auth::{Caller, Principal};
use refrain::runtime::PROTOCOL_VERSION;
use refrain::runtime::wire::TASKS_EXTENSION;
use refrain::server::Server;
use rmcp::handler::server::router::tool::{ToolRoute, ToolRouter};
use rmcp::handler::server::tool::ToolCallContext;
use rmcp::model::{
    CallToolResponse, ErrorData, InputRequest, InputRequests, InputResponses, ProtocolVersion,
    ServerNotification, Tool,
};
use rmcp::service::{Peer, RequestContext, RoleServer, ServiceError};
use serde_json::{Map, Value, json};

/// The tools of a Refrain server as a router, to be added to the router of an rmcp server.
///
/// A client of the revision 2026-07-28 answers in rounds, with sealed tokens; an older client is asked through its peer.
/// Progress and logs reach the client. Tasks are not offered: a call runs inline. Tokens are bound to the
/// [`Principal`](refrain::auth::Principal) in the extensions of the request, otherwise to the anonymous caller.
///
/// ```
/// use refrain::prelude::*;
/// use rmcp::handler::server::router::tool::ToolRouter;
/// use rmcp::{ServerHandler, tool, tool_handler, tool_router};
///
/// #[derive(Deserialize, Elicit)]
/// struct Sure { sure: bool }
///
/// /// Deletes everything, after a question.
/// #[refrain::tool]
/// async fn wipe(cx: Cx) -> Result<&'static str> {
///     let answer: Sure = cx.elicit("sure", "Delete everything?").await?;
///     Ok(if answer.sure { "deleted" } else { "kept" })
/// }
///
/// struct Files { tools: ToolRouter<Self> }
///
/// #[tool_router]
/// impl Files {
///     fn new(server: &Server) -> Self {
///         Self { tools: Self::tool_router() + refrain_rmcp::router(server) }
///     }
///
///     #[tool(description = "Counts the files")]
///     async fn count(&self) -> String {
///         "3".into()
///     }
/// }
///
/// #[tool_handler(router = self.tools)]
/// impl ServerHandler for Files {}
///
/// let server = Server::builder("files", "1.0").tool(wipe()).build()?;
/// let files = Files::new(&server);
/// assert!(files.tools.has_route("wipe") && files.tools.has_route("count"));
/// # Ok::<(), refrain::server::BuildError>(())
/// ```
pub fn router<S: Send + Sync + 'static>(server: &Server) -> ToolRouter<S> {
    let mut router = ToolRouter::new();
    for tool in block_on(list_tools(server)) {
        let server = server.clone();
        let route = ToolRoute::new_dyn(tool, move |context: ToolCallContext<'_, S>| {
            let call = RoutedCall::new(&server, context);
            Box::pin(call.run())
        });
        router.add_route(route);
    }
    router
}

async fn list_tools(server: &Server) -> Vec<Tool> {
    let mut tools = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let mut params = json!({"_meta": {
            "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
            "io.modelcontextprotocol/clientCapabilities": {},
        }});
        if !cursor.is_null() {
            params["cursor"] = cursor;
        }
        let list = to_request("tools/list", &params);
        let mut response = server.handle(&list, Principal::anonymous()).await;
        let page = response.next().await.unwrap_or_default();
        let mut page: Value = serde_json::from_slice(&page).unwrap_or_default();
        let listed: Vec<Tool> = convert(&page["result"]["tools"]).unwrap_or_default();
        tools.extend(listed);
        cursor = page["result"]["nextCursor"].take();
        if cursor.is_null() {
            return tools;
        }
    }
}

fn to_request(method: &str, params: &Value) -> Vec<u8> {
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    message.to_string().into_bytes()
}

/// A call of a tool through a router.
struct RoutedCall {
    server: Server,
    params: Map<String, Value>,
    context: RequestContext<RoleServer>,
}

impl RoutedCall {
    fn new<S>(server: &Server, call: ToolCallContext<'_, S>) -> Self {
        let mut params = Map::new();
        params.insert("name".into(), call.name.into());
        params.insert(
            "arguments".into(),
            call.arguments.unwrap_or_default().into(),
        );
        if let Some(responses) = call.input_responses {
            let responses = responses.into_iter().collect();
            params.insert("inputResponses".into(), Value::Object(responses));
        }
        if let Some(state) = call.request_state {
            params.insert("requestState".into(), state.into());
        }
        let context = call.request_context;
        params.insert("_meta".into(), meta(&context).into());
        Self {
            server: server.clone(),
            params,
            context,
        }
    }

    /// Runs the call until it ends or is cancelled.
    async fn run(mut self) -> Result<CallToolResponse, ErrorData> {
        let version = self.context.protocol_version();
        let supports_rounds =
            version.is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        let cancelled = self.context.ct.clone();
        tokio::select! {
            result = self.run_rounds(supports_rounds) => result,
            () = cancelled.cancelled() => {
                Err(ErrorData::internal_error("the call was cancelled", None))
            }
        }
    }

    /// Runs rounds until the call ends, or until a client that supports rounds must answer.
    async fn run_rounds(&mut self, supports_rounds: bool) -> Result<CallToolResponse, ErrorData> {
        loop {
            let result = self.run_round().await?;
            match result["resultType"].as_str() {
                Some("input_required") if supports_rounds => {
                    return convert(&result).map(CallToolResponse::InputRequired);
                }
                Some("input_required") => self.ask_peer(&result).await?,
                _ => return convert(&result).map(CallToolResponse::Complete),
            }
        }
    }

    /// Sends one round to the server, and passes its notifications on.
    async fn run_round(&self) -> Result<Value, ErrorData> {
        let principal = self.context.extensions.get::<Principal>().cloned();
        let caller: Caller = principal.unwrap_or_else(Principal::anonymous).into();
        let message = to_request("tools/call", &Value::Object(self.params.clone()));
        let mut response = self.server.handle(&message, caller).await;
        while let Some(sent) = response.next().await {
            let mut sent: Value = serde_json::from_slice(&sent)
                .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
            if sent.get("method").is_some() {
                let notification: ServerNotification = convert(&sent)?;
                // A client that is gone does not end the call.
                let _ = self.context.peer.send_notification(notification).await;
                continue;
            }
            return match sent.get_mut("error") {
                Some(error) => Err(convert(error)?),
                None => Ok(with_elicitation_ids(sent["result"].take())),
            };
        }
        Err(ErrorData::internal_error("the call has no response", None))
    }

    /// Asks a client of an older revision, and puts its answers into the next request.
    async fn ask_peer(&mut self, result: &Value) -> Result<(), ErrorData> {
        let requests: InputRequests = convert(&result["inputRequests"])?;
        let peer = &self.context.peer;
        let asks = requests.into_iter().map(async |(key, request)| {
            let answer = send(peer, request).await?;
            Ok::<_, ErrorData>((key, answer))
        });
        let answers = futures_util::future::try_join_all(asks).await?;
        let answers: InputResponses = answers.into_iter().collect();
        self.params.insert("inputResponses".into(), json!(answers));
        let state = result["requestState"].clone();
        self.params.insert("requestState".into(), state);
        Ok(())
    }
}

async fn send(peer: &Peer<RoleServer>, request: InputRequest) -> Result<Value, ErrorData> {
    match peer.send_request(server_request(request)?).await {
        Ok(answer) => convert(&answer),
        Err(ServiceError::McpError(error)) => Err(error),
        Err(error) => Err(ErrorData::internal_error(error.to_string(), None)),
    }
}

/// Adds the ids that rmcp requires of URL requests. 2026-07-28 has none.
fn with_elicitation_ids(mut result: Value) -> Value {
    let requests = result.get_mut("inputRequests");
    let requests = requests.and_then(Value::as_object_mut);
    for (key, request) in requests.into_iter().flatten() {
        if request["params"]["mode"] == "url" {
            request["params"]["elicitationId"] = json!(key);
        }
    }
    result
}

/// The `_meta` of a request to the Refrain server: that of the client, as if it spoke 2026-07-28 without tasks.
fn meta(context: &RequestContext<RoleServer>) -> Map<String, Value> {
    let mut meta = context.meta.clone();
    let mut capabilities = context.client_capabilities().unwrap_or_default();
    if let Some(extensions) = &mut capabilities.extensions {
        extensions.remove(TASKS_EXTENSION);
    }
    meta.set_protocol_version(ProtocolVersion::V_2026_07_28);
    meta.set_client_capabilities(capabilities);
    meta.0.0
}
