//! An rmcp server with the entries that the official suite expects.

use rmcp::model::{
    AudioContent, CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities,
    CompleteRequestParams, CompleteResult, CompletionInfo, ContentBlock, CreateMessageRequest,
    CreateMessageRequestParams, ElicitRequest, ElicitRequestParams, GetPromptRequestParams,
    GetPromptResponse, GetPromptResult, InputRequest, InputRequests, InputRequiredResult,
    InputResponses, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    ListRootsRequest, ListToolsResult, LoggingMessageNotificationParam, PaginatedRequestParams,
    ProgressNotificationParam, Prompt, PromptArgument, PromptMessage, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, Resource, ResourceContents, ResourceTemplate, Role,
    SamplingMessage, ServerCapabilities, ServerConfig, Tool, object,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};

const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

/// The tools with their descriptions. None of them has arguments.
pub(crate) const TOOLS: [(&str, &str); 20] = [
    ("test_simple_text", "Returns a text"),
    ("test_image_content", "Returns an image"),
    ("test_audio_content", "Returns a sound"),
    ("test_embedded_resource", "Returns a resource"),
    (
        "test_multiple_content_types",
        "Returns a text, an image and a resource",
    ),
    ("test_error_handling", "Fails"),
    ("test_tool_with_progress", "Reports progress"),
    ("test_logging_tool", "Logs a message"),
    ("test_missing_capability", "Needs a client that samples"),
    ("test_streaming_elicitation", "Asks for a value"),
    ("test_trigger_tool_change", "Announces changed tools"),
    ("test_trigger_prompt_change", "Announces changed prompts"),
    ("test_input_required_result_elicitation", "Asks for a name"),
    ("test_input_required_result_sampling", "Asks the model"),
    (
        "test_input_required_result_list_roots",
        "Asks for the roots",
    ),
    (
        "test_input_required_result_request_state",
        "Keeps state between rounds",
    ),
    (
        "test_input_required_result_multiple_inputs",
        "Asks three things at once",
    ),
    (
        "test_input_required_result_multi_round",
        "Asks in two rounds",
    ),
    (
        "test_input_required_result_tampered_state",
        "Keeps state that must not change",
    ),
    (
        "test_input_required_result_capabilities",
        "Asks what the client can answer",
    ),
];

#[derive(Default)]
pub(crate) struct Conformance;

fn form(field: &str, kind: &str) -> InputRequest {
    let schema = json!({
        "type": "object",
        "properties": {field: {"type": kind}},
        "required": [field],
    });
    let params = ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: format!("Please provide: {field}"),
        requested_schema: serde_json::from_value(schema).expect("a schema"),
    };
    InputRequest::Elicitation(ElicitRequest::new(params))
}

fn sampling() -> InputRequest {
    let messages = vec![SamplingMessage::user_text("Say something.")];
    let params = CreateMessageRequestParams::new(messages, 50);
    InputRequest::CreateMessage(CreateMessageRequest::new(params))
}

fn roots() -> InputRequest {
    InputRequest::ListRoots(ListRootsRequest::default())
}

fn require<const N: usize>(requests: [(&str, InputRequest); N], state: &str) -> CallToolResponse {
    InputRequiredResult::new(Some(named(requests)), Some(state.to_owned())).into()
}

fn named<const N: usize>(requests: [(&str, InputRequest); N]) -> InputRequests {
    requests
        .map(|(key, request)| (key.to_owned(), request))
        .into()
}

fn done(blocks: Vec<ContentBlock>) -> CallToolResponse {
    CallToolResult::success(blocks).into()
}

fn text(text: impl Into<String>) -> ContentBlock {
    ContentBlock::text(text)
}

fn resource(uri: &str) -> ContentBlock {
    ContentBlock::resource(ResourceContents::text("the content", uri))
}

/// A tool that asks. `state` is that of the round before.
fn ask(
    tool: &str,
    responses: &InputResponses,
    state: Option<&str>,
    client: &ClientCapabilities,
) -> CallToolResponse {
    match (tool, state) {
        ("streaming_elicitation", None) => require([("value", form("value", "string"))], "asked"),
        ("elicitation", None) => require([("user_name", form("name", "string"))], "asked"),
        ("elicitation", _) => {
            let name = responses["user_name"]["content"]["name"].as_str();
            done(vec![text(format!("Hello, {}!", name.unwrap_or("friend")))])
        }
        ("sampling", None) => require([("line", sampling())], "asked"),
        ("list_roots", None) => require([("client_roots", roots())], "asked"),
        ("request_state" | "tampered_state", None) => {
            require([("confirm", form("ok", "boolean"))], "confirming")
        }
        ("request_state" | "tampered_state", Some(state)) => {
            done(vec![text(format!("{state}: state-ok"))])
        }
        ("multiple_inputs", None) => {
            let name = ("user_name", form("name", "string"));
            require(
                [name, ("greeting", sampling()), ("client_roots", roots())],
                "gathering",
            )
        }
        ("multi_round", None) => require([("step1", form("name", "string"))], "1"),
        ("multi_round", Some("1")) => require([("step2", form("color", "string"))], "2"),
        ("capabilities", None) if client.elicitation.is_none() => {
            require([("greeting", sampling())], "asked")
        }
        ("capabilities", None) => require([("user_name", form("name", "string"))], "asked"),
        _ => done(vec![text("complete")]),
    }
}

impl ServerHandler for Conformance {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_completions()
            .enable_logging()
            .build();
        ServerConfig::new(capabilities)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = || object(json!({"type": "object", "properties": {}}));
        let tools = TOOLS.map(|(name, description)| Tool::new(name, description, schema()));
        Ok(ListToolsResult::with_all_items(tools.into()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let peer = &context.peer;
        let client = context.client_capabilities().unwrap_or_default();
        let name = request.name.strip_prefix("test_").unwrap_or_default();
        let blocks = match name {
            "simple_text" => vec![text("a text")],
            "image_content" => vec![ContentBlock::image(PNG, "image/png")],
            "audio_content" => vec![ContentBlock::Audio(AudioContent::new(WAV, "audio/wav"))],
            "embedded_resource" => vec![resource("test://embedded")],
            "multiple_content_types" => vec![
                text("several"),
                ContentBlock::image(PNG, "image/png"),
                resource("test://mixed"),
            ],
            "error_handling" => return Ok(CallToolResult::error(vec![text("failed")]).into()),
            "tool_with_progress" => {
                let token = context.meta.get_progress_token().expect("a token");
                for done in [0.0, 50.0, 100.0] {
                    let progress = ProgressNotificationParam::new(token.clone(), done);
                    let _ = peer.notify_progress(progress.with_total(100.0)).await;
                }
                vec![text("done")]
            }
            "logging_tool" => {
                if let Some(level) = context.meta.log_level() {
                    let log = LoggingMessageNotificationParam::new(level, json!("a message"));
                    let _ = peer.notify_logging_message(log).await;
                }
                vec![text("done")]
            }
            "missing_capability" if client.sampling.is_none() => {
                let required = ClientCapabilities::builder().enable_sampling().build();
                return Err(ErrorData::missing_required_client_capability(required));
            }
            "trigger_tool_change" => {
                let _ = peer.notify_tool_list_changed().await;
                vec![text("announced")]
            }
            "trigger_prompt_change" => {
                let _ = peer.notify_prompt_list_changed().await;
                vec![text("announced")]
            }
            _ => {
                let name = name.strip_prefix("input_required_result_").unwrap_or(name);
                let responses = request.input_responses.unwrap_or_default();
                return Ok(ask(
                    name,
                    &responses,
                    request.request_state.as_deref(),
                    &client,
                ));
            }
        };
        Ok(done(blocks))
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let argument = |name: &str| PromptArgument::new(name).with_required(true);
        let prompt = |name: &str, arguments: Option<Vec<PromptArgument>>| {
            Prompt::new(name, Some("A prompt"), arguments)
        };
        let two = vec![argument("arg1"), argument("arg2")];
        Ok(ListPromptsResult::with_all_items(vec![
            prompt("test_simple_prompt", None),
            prompt("test_prompt_with_arguments", Some(two)),
            prompt(
                "test_prompt_with_embedded_resource",
                Some(vec![argument("resourceUri")]),
            ),
            prompt("test_prompt_with_image", None),
            prompt("test_input_required_result_prompt", None),
        ]))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let argument = |name: &str| {
            arguments
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let said = |text: String| PromptMessage::new_text(Role::User, text);
        let message = match request.name.as_str() {
            "test_prompt_with_arguments" => said(format!(
                "arg1='{}', arg2='{}'",
                argument("arg1"),
                argument("arg2")
            )),
            "test_prompt_with_embedded_resource" => {
                PromptMessage::new(Role::User, resource(argument("resourceUri")))
            }
            "test_prompt_with_image" => {
                PromptMessage::new(Role::User, ContentBlock::image(PNG, "image/png"))
            }
            "test_input_required_result_prompt" if request.input_responses.is_none() => {
                let requests = named([("user_context", form("context", "string"))]);
                return Ok(InputRequiredResult::from_input_requests(requests).into());
            }
            _ => said("a simple prompt".into()),
        };
        Ok(GetPromptResult::new(vec![message]).into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(vec![
            Resource::new("test://static-text", "text").with_mime_type("text/plain"),
            Resource::new("test://static-binary", "image").with_mime_type("image/png"),
        ]))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let template = ResourceTemplate::new("test://template/{id}/data", "data");
        Ok(ListResourceTemplatesResult::with_all_items(vec![template]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri;
        let contents = match uri.as_str() {
            "test://static-text" => ResourceContents::text("the text", &uri),
            "test://static-binary" => ResourceContents::blob(PNG, &uri).with_mime_type("image/png"),
            other => {
                let id = other
                    .trim_start_matches("test://template/")
                    .trim_end_matches("/data");
                let data = json!({"id": id, "templateTest": true});
                ResourceContents::text(data.to_string(), &uri)
            }
        };
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let found = CompletionInfo::new(vec!["paris".into(), "park".into()]);
        Ok(CompleteResult::new(found.expect("few values")))
    }
}
