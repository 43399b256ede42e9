//! An rmcp server as its author writes it. Nothing in it knows Refrain, except for one step.

use refrain_testkit::Effects;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{
    CallToolResult, CompleteRequestParams, CompleteResult, CompletionInfo, ContentBlock,
    CreateMessageRequestParams, GetPromptRequestParams, GetPromptResponse, GetPromptResult,
    Implementation, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    LoggingLevel, LoggingMessageNotificationParam, PaginatedRequestParams,
    ProgressNotificationParam, Prompt, PromptArgument, PromptMessage, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, Resource, ResourceContents, ResourceTemplate, Role,
    SamplingMessage, ServerCapabilities, ServerConfig,
};
use rmcp::service::{ElicitationError, RequestContext};
use rmcp::{ErrorData, Peer, RoleServer, ServerHandler};
use rmcp::{elicit_safe, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Table {
    /// The number of guests.
    seats: u32,
}

#[derive(Deserialize, JsonSchema)]
struct Guest {
    /// The name for the reservation.
    name: String,
}

#[derive(Deserialize, JsonSchema)]
struct Arrival {
    /// The hour of the day.
    hour: u8,
}

elicit_safe!(Guest, Arrival);

/// Takes reservations.
#[derive(Default)]
pub(crate) struct Restaurant {
    pub(crate) effects: Effects,
}

#[tool_router]
impl Restaurant {
    #[tool(description = "Reserves a table")]
    async fn reserve(
        &self,
        peer: Peer<RoleServer>,
        Parameters(table): Parameters<Table>,
    ) -> Result<CallToolResult, ErrorData> {
        self.effects.record("run");
        let guest = match peer.elicit::<Guest>("For whom is the table?").await {
            Ok(Some(guest)) => guest,
            Ok(None) | Err(ElicitationError::UserDeclined | ElicitationError::UserCancelled) => {
                let text = "Nothing was reserved.";
                return Ok(CallToolResult::success(vec![ContentBlock::text(text)]));
            }
            Err(error) => return Err(ErrorData::internal_error(error.to_string(), None)),
        };
        let effects = self.effects.clone();
        let note = async move { Ok::<_, ErrorData>(effects.record("kitchen told")) };
        let count: usize = refrain_rmcp::step("tell the kitchen", note).await?;
        let arrival = peer.elicit::<Arrival>("When will you arrive?").await;
        let hour = arrival.ok().flatten().map_or(19, |arrival| arrival.hour);
        let text = format!(
            "{} seats for {} at {hour}, note {count}",
            table.seats, guest.name
        );
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]))
    }

    #[tool(description = "Asks two questions at once")]
    async fn invite(&self, peer: Peer<RoleServer>) -> Result<String, String> {
        let (one, two) = tokio::join!(
            peer.elicit::<Guest>("Who is the first guest?"),
            peer.elicit::<Guest>("Who is the second guest?"),
        );
        match (one, two) {
            (Ok(Some(one)), Ok(Some(two))) => Ok(format!("{} and {}", one.name, two.name)),
            other => Err(format!("{:?}", other.0.err())),
        }
    }

    #[tool(description = "Takes a payment")]
    async fn pay(&self, peer: Peer<RoleServer>) -> Result<String, String> {
        let url = url::Url::parse("https://example.com/pay").expect("a URL");
        let action = peer.elicit_url("Please pay.", url, "payment-1").await;
        action
            .map(|action| format!("{action:?}"))
            .map_err(|error| error.to_string())
    }

    #[tool(description = "Asks the client's model for a wine")]
    async fn wine(&self, peer: Peer<RoleServer>) -> Result<String, String> {
        let messages = vec![SamplingMessage::user_text("Which wine goes with fish?")];
        let params = CreateMessageRequestParams::new(messages, 100);
        let answer = peer
            .create_message(params)
            .await
            .map_err(|error| error.to_string())?;
        let text = answer
            .message
            .content
            .first()
            .and_then(|content| content.as_text());
        Ok(text.map(|text| text.text.clone()).unwrap_or_default())
    }

    #[tool(description = "Lists the client's roots")]
    async fn roots(&self, peer: Peer<RoleServer>) -> Result<String, String> {
        let listed = peer.list_roots().await.map_err(|error| error.to_string())?;
        let uris = listed.roots.iter().map(|root| root.uri.as_str());
        Ok(uris.collect::<Vec<_>>().join(" "))
    }

    #[tool(description = "Cooks, and reports progress")]
    async fn cook(&self, context: RequestContext<RoleServer>) -> Result<String, ErrorData> {
        let token = context.meta.get_progress_token().expect("a progress token");
        for done in 1..=3 {
            let progress = ProgressNotificationParam::new(token.clone(), f64::from(done));
            let _ = context.peer.notify_progress(progress.with_total(3.0)).await;
        }
        let log = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!("cooked"));
        let _ = context.peer.notify_logging_message(log).await;
        Ok("done".into())
    }

    #[tool(description = "Burns the food")]
    async fn burn(&self) -> Result<String, String> {
        Err("the food is burnt".into())
    }

    #[tool(description = "Closes the kitchen")]
    async fn close(&self) -> Result<String, ErrorData> {
        let code = rmcp::model::ErrorCode(-32050);
        Err(ErrorData::new(
            code,
            "the kitchen is closed",
            Some(json!({"until": 12})),
        ))
    }

    #[tool(description = "Waits for an answer, or for the end of the call")]
    async fn wait(&self, context: RequestContext<RoleServer>) -> Result<String, String> {
        let (ct, effects) = (context.ct.clone(), self.effects.clone());
        tokio::spawn(async move {
            ct.cancelled().await;
            effects.record("cancelled");
        });
        let guest = context.peer.elicit::<Guest>("Who is waiting?").await;
        guest
            .map(|_| "served".into())
            .map_err(|error| error.to_string())
    }
}

#[tool_handler]
impl ServerHandler for Restaurant {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_prompts()
            .enable_resources()
            .enable_completions()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("restaurant", "2.1"))
            .with_instructions("Reserve before you cook.")
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let dish = PromptArgument::new("dish").with_required(true);
        let prompt = Prompt::new("review", Some("Writes a review"), Some(vec![dish]));
        Ok(ListPromptsResult::with_all_items(vec![prompt]))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let guest = context
            .peer
            .elicit::<Guest>("Who writes?")
            .await
            .ok()
            .flatten();
        let guest = guest.map_or("nobody".to_owned(), |guest| guest.name);
        let dish = &request.arguments.unwrap_or_default()["dish"];
        let text = format!("Review {} as {guest}", dish.as_str().unwrap_or_default());
        let messages = vec![PromptMessage::new_text(Role::User, text)];
        Ok(GetPromptResult::new(messages).into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let menu = Resource::new("menu://today", "menu").with_mime_type("text/plain");
        Ok(ListResourcesResult::with_all_items(vec![menu]))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let dish = ResourceTemplate::new("dish://{name}", "dish");
        Ok(ListResourceTemplatesResult::with_all_items(vec![dish]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let text = match request.uri.strip_prefix("dish://") {
            Some("stone") => {
                let data = json!({"uri": request.uri});
                return Err(ErrorData::resource_not_found("no such dish", Some(data)));
            }
            Some(dish) => format!("{dish} with salt"),
            None => "soup, fish".to_owned(),
        };
        let contents = ResourceContents::text(text, request.uri);
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let dishes = ["soup", "salmon", "cake"].map(str::to_owned).into_iter();
        let found = dishes.filter(|dish| dish.starts_with(&request.argument.value));
        let found = CompletionInfo::new(found.collect()).expect("few values");
        Ok(CompleteResult::new(found))
    }
}
