//! Tools with other kinds of asks: sampling, roots, a URL.

use super::ledger::Ledger;
use super::proposals::{GITHUB_QUESTION, GetWeather, LoginForm, weather};
use refrain::prelude::*;

#[derive(Deserialize, JsonSchema)]
struct AnalyzeData {
    /// The data to analyse.
    data: String,
}

/// Asks the client's model to analyse some data.
#[tool]
pub(super) async fn analyze_data(cx: Cx, args: AnalyzeData) -> Result<String> {
    let question = SamplingParams::new(500).user(format!("Analyze this data:\n{}", args.data));
    let answer = cx.sample("analysis", question).await?;
    Ok(answer.text())
}

/// Returns the weather and the capital of France, after asking for a form and a model's answer in one round.
#[tool]
pub(super) async fn weather_and_capital(cx: Cx, args: GetWeather) -> Result<String> {
    let capital = login_and_capital(&cx).await?;
    Ok(format!("{}\n{capital}", weather(&args.location)))
}

/// Asks for a GitHub username and the capital of France at once, and returns the capital.
pub(super) async fn login_and_capital(cx: &Cx) -> Result<String> {
    let question = SamplingParams::new(100)
        .user("What is the capital of France?")
        .hint("claude-3-sonnet")
        .intelligence(0.8)
        .speed(0.5)
        .system("You are a helpful assistant.");
    let (_login, capital) = tokio::try_join!(
        cx.elicit::<LoginForm>("github_login", GITHUB_QUESTION),
        cx.sample("capital_of_france", question),
    )?;
    Ok(capital.text())
}

/// Lists the roots of the client's project.
#[tool]
pub(super) async fn project_roots(cx: Cx) -> Result<String> {
    let roots = cx.roots("roots").await?;
    let lines: Vec<String> = roots.iter().map(|root| root.uri.clone()).collect();
    Ok(format!("{} roots:\n{}", lines.len(), lines.join("\n")))
}

#[derive(Deserialize, JsonSchema)]
struct ConnectAccount {
    /// The service to connect to.
    #[schemars(regex(pattern = "^[A-Za-z0-9.-]+$"))]
    service: String,
}

/// Connects an account at another service in the browser.
#[tool]
pub(super) async fn connect_account(
    cx: Cx,
    ledger: State<Ledger>,
    args: ConnectAccount,
) -> Result<String> {
    let service = &args.service;
    let visit = format!("{:016x}", cx.random());
    let url = format!("https://example.com/connect/{service}?visit={visit}");
    let message = format!("Please connect your {service} account");
    // Agreeing to open the page is not a connection yet: the service reports a connection at the
    // second check.
    cx.elicit_url("connect", message, url, || {
        ledger.is_visit_completed(&visit)
    })
    .await?;
    Ok(format!("Connected to {service}."))
}
