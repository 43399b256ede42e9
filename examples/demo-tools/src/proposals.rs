//! The example tools of the proposals that became MCP 2026-07-28, with their messages, schemas and
//! result texts.

use refrain::prelude::*;
use serde_json::{Map, Value};

#[derive(Deserialize, JsonSchema)]
pub(super) struct Echo {
    /// The text to echo; asked for if missing.
    pub(super) text: Option<String>,
}

#[derive(Deserialize, Elicit)]
struct EchoInput {
    input: String,
}

/// The text to echo; asks for it if missing.
pub(super) async fn echo_text(cx: &Cx, text: Option<String>) -> Result<String> {
    match text {
        Some(text) => Ok(text),
        None => {
            let message = "Please provide the input string to echo back";
            Ok(cx.elicit::<EchoInput>("echo_input", message).await?.input)
        }
    }
}

/// Echoes a text; asks for it if missing.
#[tool]
pub(super) async fn echo(cx: Cx, args: Echo) -> Result<String> {
    let text = echo_text(&cx, args.text).await?;
    Ok(format!("Echo: {text}"))
}

#[derive(Deserialize, JsonSchema)]
pub(super) struct GetWeather {
    /// The city.
    pub(super) location: String,
}

#[derive(Deserialize, Elicit)]
pub(super) struct LoginForm {
    #[serde(rename = "name")]
    _name: String,
}

pub(super) const GITHUB_QUESTION: &str = "Please provide your GitHub username";

pub(super) fn weather(location: &str) -> String {
    format!("Current weather in {location}:\nTemperature: 72°F\nConditions: Partly cloudy")
}

/// Returns the weather, after asking for a GitHub username.
#[tool]
pub(super) async fn get_weather(cx: Cx, args: GetWeather) -> Result<String> {
    let _login: LoginForm = cx.elicit("github_login", GITHUB_QUESTION).await?;
    Ok(weather(&args.location))
}

/// The same as get_weather, in the explicit style: reads the answers, returns the missing asks.
#[tool]
pub(super) async fn get_weather_explicit(cx: Cx, args: GetWeather) -> Result<Reply<String>> {
    let Some(answer) = cx.answer("github_login") else {
        let asks = Incomplete::new().form("github_login", GITHUB_QUESTION, LoginForm::form());
        return Ok(Reply::Incomplete(asks.state(&args.location)?));
    };
    #[derive(Deserialize)]
    struct FormResult {
        action: String,
    }
    let result: FormResult = serde_json::from_str(answer.get())?;
    if result.action != "accept" {
        return Err(Error::msg("a GitHub username is required"));
    }
    // The arguments are the same in all rounds, so the state is only an example.
    let location: String = cx.state()?.unwrap_or(args.location);
    Ok(Reply::Complete(weather(&location)))
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct UpdateWorkItem {
    /// The number of the work item.
    work_item_id: u64,
    /// The fields to set.
    fields: Map<String, Value>,
}

#[derive(Deserialize, Elicit)]
struct ResolutionForm {
    /// Resolution type for this bug
    resolution: Resolution,
}

#[derive(Deserialize, Elicit, Clone, Copy, PartialEq, Eq)]
enum Resolution {
    Fixed,
    #[serde(rename = "Won't Fix")]
    WontFix,
    Duplicate,
    #[serde(rename = "By Design")]
    ByDesign,
}

impl Resolution {
    fn name(self) -> &'static str {
        match self {
            Self::Fixed => "Fixed",
            Self::WontFix => "Won't Fix",
            Self::Duplicate => "Duplicate",
            Self::ByDesign => "By Design",
        }
    }
}

#[derive(Deserialize, Elicit)]
#[serde(rename_all = "camelCase")]
struct DuplicateOf {
    /// Work item ID of the original bug
    duplicate_of_id: f64,
}

/// Changes a work item, and asks for the fields that the project's rules require.
#[tool]
pub(super) async fn update_work_item(cx: Cx, args: UpdateWorkItem) -> Result<String> {
    let id = args.work_item_id;
    if args.fields.get("System.State").and_then(Value::as_str) != Some("Resolved") {
        return Ok(format!("Bug #{id} updated."));
    }
    // Rule 1: a resolved bug needs a resolution.
    let message = format!("Resolving Bug #{id} requires a resolution. How was this bug resolved?");
    let ResolutionForm { resolution } = cx.elicit("resolution", message).await?;
    if resolution != Resolution::Duplicate {
        let name = resolution.name();
        return Ok(format!(
            "Bug #{id} resolved as {name}. State set to Resolved."
        ));
    }
    // Rule 2: a duplicate needs its original.
    let message = "Since this is a duplicate, which work item is the original?";
    let original: DuplicateOf = cx.elicit("duplicate_of", message).await?;
    Ok(format!(
        "Bug #{id} resolved as Duplicate of Bug #{}. State set to Resolved and duplicate link created.",
        original.duplicate_of_id
    ))
}

#[derive(Deserialize, Elicit)]
struct Account {
    name: String,
}

/// Version 1: GitHub and Google.
#[tool(
    name = "accounts",
    version = "1",
    description = "Links the accounts of the caller."
)]
pub(super) async fn accounts_v1(cx: Cx) -> Result<String> {
    link_accounts_v1(&cx).await
}

pub(super) async fn link_accounts_v1(cx: &Cx) -> Result<String> {
    let (github, google) = tokio::try_join!(
        cx.elicit::<Account>("github_login", GITHUB_QUESTION),
        cx.elicit::<Account>("google_login", "Please provide your Google account"),
    )?;
    Ok(format!(
        "Linked GitHub {} and Google {}.",
        github.name, google.name
    ))
}

/// Version 2: GitHub and Microsoft.
#[tool(
    name = "accounts",
    version = "2",
    description = "Links the accounts of the caller."
)]
pub(super) async fn accounts_v2(cx: Cx) -> Result<String> {
    link_accounts_v2(&cx).await
}

pub(super) async fn link_accounts_v2(cx: &Cx) -> Result<String> {
    let (github, microsoft) = tokio::try_join!(
        cx.elicit::<Account>("github_login", GITHUB_QUESTION),
        cx.elicit::<Account>("microsoft_login", "Please provide your Microsoft account"),
    )?;
    Ok(format!(
        "Linked GitHub {} and Microsoft {}.",
        github.name, microsoft.name
    ))
}
