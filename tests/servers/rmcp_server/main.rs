//! A server written with the Rust SDK (rmcp 3.8.0), revision 2026-07-28.
//!
//! ```text
//! rmcp_server --http     on a port of 127.0.0.1 that is free; prints `listening on URL`
//! rmcp_server --stdio    over standard input and output, until the input ends
//! ```
//!
//! What it offers is what every server in this folder offers: see README.md. It is an example of `refrain-client`, so
//! that `cargo test` builds it.

#![expect(
    deprecated,
    reason = "rmcp marks what this revision deprecates, and servers still do: sampling and roots"
)]

mod asks;
mod plain;

use asks::{Answers, ask, ask_on, form, model, model_with_tool, one_text, roots};
use plain::{
    add, complete, counter, fail, log, missing, slow, structured, structured_tool, text, tool,
};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, ElicitRequest,
    ElicitRequestParams, ErrorData, GetPromptRequestParams, GetPromptResponse, GetPromptResult,
    Implementation, InputRequest, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, Prompt, PromptArgument,
    PromptMessage, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
    ReadResourceResult, Resource, ResourceContents, ResourceTemplate, Role, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService, stdio};
use rmcp::{ServerHandler, ServiceExt};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;

/// The restaurant, and how often something was done in it that must not be done twice.
#[derive(Clone, Default)]
struct Restaurant {
    effects: Arc<AtomicUsize>,
}

impl Restaurant {
    async fn call(
        &self,
        params: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(params.arguments.unwrap_or_default());
        let answers = Answers(params.input_responses.unwrap_or_default());
        let state = params.request_state.as_deref();
        match &*params.name {
            "add" => add(&arguments),
            "echo" => match arguments["text"].as_str() {
                Some(said) => Ok(text(said)),
                None => Err(missing("text")),
            },
            "slow" => slow(&arguments, context).await,
            "log" => log(context).await,
            "counter" => Ok(counter()),
            "fail" => Ok(fail()),
            "structured" => Ok(structured()),
            "effects" => Ok(text(self.effects.load(Ordering::SeqCst).to_string())),
            "book_table" => self.book_table(&answers),
            "plan_trip" => self.plan_trip(&answers, state),
            "order_dinner" => self.order_dinner(&answers),
            "sign_in" => Ok(sign_in(&answers)),
            "suggest" => suggest(&arguments, &answers),
            "suggest_with_tools" => suggest_with_tools(&arguments, &answers),
            "list_places" => match answers.names("places") {
                Some(names) => Ok(text(names)),
                None => Ok(ask([("places", roots())]).into()),
            },
            unknown => Err(ErrorData::invalid_params(
                format!("no tool {unknown:?}"),
                None,
            )),
        }
    }

    fn did_something(&self) {
        self.effects.fetch_add(1, Ordering::SeqCst);
    }

    fn book_table(&self, answers: &Answers) -> Result<CallToolResponse, ErrorData> {
        let Some(booking) = answers.content("booking") else {
            return match answers.action("booking") {
                Some(action) => Ok(text(format!("no table was booked: {action}"))),
                None => {
                    let fields = json!({
                        "date": { "type": "string", "title": "Day", "format": "date" },
                        "guests": { "type": "integer", "minimum": 1, "maximum": 8 },
                        "seating": { "type": "string", "enum": ["inside", "outside"], "default": "inside" },
                    });
                    let ask_booking = form("When, and for how many?", &fields, &["date", "guests"]);
                    Ok(ask([("booking", ask_booking?)]).into())
                }
            };
        };
        let date = booking["date"].as_str().ok_or_else(|| missing("date"))?;
        let guests = booking["guests"]
            .as_i64()
            .ok_or_else(|| missing("guests"))?;
        let seating = booking["seating"].as_str().unwrap_or("inside");
        let booked = format!("a table for {guests} on {date}, {seating}");
        self.did_something();
        Ok(text(booked))
    }

    /// The state says what was asked, and what was answered before that.
    fn plan_trip(
        &self,
        answers: &Answers,
        state: Option<&str>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(state) = state else {
            let city = one_text("city", "Where to?", "city")?;
            return Ok(ask_on(city, &json!({ "asked": "city" })));
        };
        let state: Value = serde_json::from_str(state)
            .map_err(|_| ErrorData::invalid_params("that is not our state", None))?;
        if state["asked"] == "nights" {
            return Ok(self.book_trip(answers, &state));
        }
        let Some(city) = answers.field("city") else {
            return Ok(text("no trip"));
        };
        let fields = json!({ "nights": { "type": "integer", "minimum": 1 } });
        let nights = form(&format!("How many nights in {city}?"), &fields, &["nights"])?;
        let state = json!({ "asked": "nights", "city": city });
        Ok(ask_on(("nights", nights), &state))
    }

    fn book_trip(&self, answers: &Answers, state: &Value) -> CallToolResponse {
        let nights = answers.content("nights").map(|nights| &nights["nights"]);
        let (Some(nights), Some(city)) = (nights, state["city"].as_str()) else {
            return text("no trip");
        };
        self.did_something();
        text(format!("{nights} nights in {city}"))
    }

    fn order_dinner(&self, answers: &Answers) -> Result<CallToolResponse, ErrorData> {
        if answers.0.is_empty() {
            return Ok(ask([
                one_text("dish", "What would you like?", "dish")?,
                ("wine", model("Which wine?")),
                ("places", roots()),
            ])
            .into());
        }
        let dish = answers.field("dish").ok_or_else(|| missing("dish"))?;
        let wine = answers.said("wine").ok_or_else(|| missing("wine"))?;
        let places = answers.names("places").ok_or_else(|| missing("places"))?;
        self.did_something();
        Ok(text(format!("{dish} with {wine} in {places}")))
    }
}

fn sign_in(answers: &Answers) -> CallToolResponse {
    match answers.action("login") {
        Some("accept") => text("signed in"),
        Some(action) => text(format!("not signed in: {action}")),
        None => {
            let params = ElicitRequestParams::UrlElicitationParams {
                meta: None,
                message: "Please sign in.".into(),
                url: "https://example.com/login?for=you".into(),
                elicitation_id: "login-1".into(),
            };
            let login = InputRequest::Elicitation(ElicitRequest::new(params));
            ask([("login", login)]).into()
        }
    }
}

fn suggest(arguments: &Value, answers: &Answers) -> Result<CallToolResponse, ErrorData> {
    let about = arguments["about"]
        .as_str()
        .ok_or_else(|| missing("about"))?;
    let Some(said) = answers.said("opinion") else {
        return Ok(ask([("opinion", model(&format!("What about {about}?")))]).into());
    };
    let model = answers.0["opinion"]["model"]
        .as_str()
        .ok_or_else(|| missing("model"))?;
    Ok(text(format!("the model {model} said: {said}")))
}

fn suggest_with_tools(arguments: &Value, answers: &Answers) -> Result<CallToolResponse, ErrorData> {
    let about = arguments["about"]
        .as_str()
        .ok_or_else(|| missing("about"))?;
    let Some(opinion) = answers.0.get("opinion") else {
        let list_wines = tool("list_wines", &[("country", "string")]);
        let opinion = model_with_tool(&format!("What about {about}?"), list_wines);
        return Ok(ask([("opinion", opinion)]).into());
    };
    // One block, or a list of them.
    let used = opinion["content"].get(0).unwrap_or(&opinion["content"]);
    let (Some(name), Some(country)) = (used["name"].as_str(), used["input"]["country"].as_str())
    else {
        return Err(missing("a use of the tool"));
    };
    Ok(text(format!("the model called {name}({country})")))
}

impl ServerHandler for Restaurant {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_prompts()
            .enable_resources()
            .enable_completions()
            .enable_logging()
            .build();
        let mut info = ServerConfig::new(capabilities);
        info.protocol_version = ProtocolVersion::V_2026_07_28;
        info.server_info = Implementation::new("rmcp-restaurant", "1");
        info
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![
            tool("add", &[("a", "integer"), ("b", "integer")]),
            tool("effects", &[]),
            tool("book_table", &[]),
            tool("plan_trip", &[]),
            tool("order_dinner", &[]),
            tool("sign_in", &[]),
            tool("suggest", &[("about", "string")]),
            tool("suggest_with_tools", &[("about", "string")]),
            tool("list_places", &[]),
            tool("echo", &[("text", "string")]),
            tool("slow", &[("seconds", "number")]),
            tool("log", &[]),
            tool("counter", &[]),
            tool("fail", &[]),
            structured_tool(),
        ]))
    }

    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.call(params, &context).await
    }

    async fn complete(
        &self,
        params: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        complete(&params)
    }

    async fn list_prompts(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let style = PromptArgument::new("style").with_required(true);
        let greeting = Prompt::new("greeting", Some("Greets"), Some(vec![style]));
        Ok(ListPromptsResult::with_all_items(vec![greeting]))
    }

    async fn get_prompt(
        &self,
        params: GetPromptRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = Value::Object(params.arguments.unwrap_or_default());
        let style = arguments["style"]
            .as_str()
            .ok_or_else(|| missing("style"))?;
        let answers = Answers(params.input_responses.unwrap_or_default());
        let Some(name) = answers.field("name") else {
            return Ok(ask([one_text("name", "Who is to be greeted?", "name")?]).into());
        };
        let message = PromptMessage::new_text(Role::User, format!("Greet {name}, {style}."));
        Ok(GetPromptResult::new(vec![message]).into())
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let menu = Resource::new("restaurant://menu", "menu");
        Ok(ListResourcesResult::with_all_items(vec![menu]))
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let diary = ResourceTemplate::new("restaurant://diary/{day}", "diary");
        Ok(ListResourceTemplatesResult::with_all_items(vec![diary]))
    }

    async fn read_resource(
        &self,
        params: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let contents = match params.uri.strip_prefix("restaurant://diary/") {
            None if params.uri == "restaurant://menu" => "fish, cheese".to_owned(),
            None => return Err(ErrorData::resource_not_found(params.uri, None)),
            Some(day) => {
                let answers = Answers(params.input_responses.unwrap_or_default());
                let Some(name) = answers.field("name") else {
                    return Ok(ask([one_text("name", "Whose diary?", "name")?]).into());
                };
                format!("{name} on {day}")
            }
        };
        Ok(ReadResourceResult::new(vec![ResourceContents::text(contents, params.uri)]).into())
    }
}

async fn serve_stdio() -> Result<(), Box<dyn Error>> {
    Restaurant::default()
        .serve(stdio())
        .await?
        .waiting()
        .await?;
    Ok(())
}

async fn serve_http() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}/mcp", listener.local_addr()?);
    let restaurant = Restaurant::default();
    let service = StreamableHttpService::new(
        move || Ok(restaurant.clone()),
        Arc::new(NeverSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    loop {
        let (stream, _) = listener.accept().await?;
        let service = service.clone();
        let serve = service_fn(move |request| {
            let service = service.clone();
            async move { Ok::<_, Infallible>(service.handle(request).await) }
        });
        tokio::spawn(async move {
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), serve);
            // A client that has what it wanted may go away.
            let _ = connection.await;
        });
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let served = match std::env::args().nth(1).as_deref() {
        Some("--stdio") => serve_stdio().await,
        Some("--http") => serve_http().await,
        _ => Err("usage: rmcp_server --http | --stdio".into()),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
