//! Tools and a prompt that need input.

use crate::samples::Name;
use refrain::prelude::*;
use refrain::runtime::wire::Root;
use refrain::server::ServerBuilder;

pub(crate) fn register(server: ServerBuilder) -> ServerBuilder {
    server
        .tool(elicitation())
        .tool(sampling())
        .tool(list_roots())
        .tool(request_state())
        .tool(multiple_inputs())
        .tool(multi_round())
        .tool(tampered_state())
        .tool(capabilities())
        .tool(streaming_elicitation())
        .prompt(with_context())
}

#[derive(Deserialize, Elicit)]
struct Color {
    color: String,
}

#[derive(Deserialize, Elicit)]
struct Confirmation {
    ok: bool,
}

#[derive(Deserialize, Elicit)]
struct Context {
    context: String,
}

/// Asks for a name and greets.
#[tool(name = "test_input_required_result_elicitation")]
async fn elicitation(cx: Cx) -> Result<String> {
    let Name { name } = cx.elicit("user_name", "What is your name?").await?;
    Ok(format!("Hello, {name}!"))
}

/// Asks the client's model for a capital.
#[tool(name = "test_input_required_result_sampling")]
async fn sampling(cx: Cx) -> Result<String> {
    let question = SamplingParams::new(100).user("What is the capital of France?");
    let answer = cx.sample("capital_question", question).await?;
    Ok(answer.text())
}

/// Asks for the client's roots and lists them.
#[tool(name = "test_input_required_result_list_roots")]
async fn list_roots(cx: Cx) -> Result<String> {
    let roots = cx.roots("client_roots").await?;
    Ok(format!("Your roots: {}", uris(&roots)))
}

/// Keeps a word while it asks for a confirmation.
#[tool(name = "test_input_required_result_request_state")]
async fn request_state(cx: Cx) -> Result<String> {
    // In the second round this is in the state that the client sent back.
    let word = cx.step("word", async { ok("state-ok".to_owned()) }).await?;
    let Confirmation { ok: confirmed } = cx.elicit("confirm", "Please confirm").await?;
    Ok(format!("{word}, confirmed: {confirmed}"))
}

/// Asks for a name, a greeting and the roots, all in one round.
#[tool(name = "test_input_required_result_multiple_inputs")]
async fn multiple_inputs(cx: Cx) -> Result<String> {
    let (Name { name }, greeting, roots) = tokio::try_join!(
        cx.elicit("user_name", "What is your name?"),
        cx.sample("greeting", greeting_question()),
        cx.roots("client_roots"),
    )?;
    let (greeting, roots) = (greeting.text(), uris(&roots));
    Ok(format!("{name}: {greeting} Your roots: {roots}"))
}

/// Asks for a name, and then for a color: a round each.
#[tool(name = "test_input_required_result_multi_round")]
async fn multi_round(cx: Cx) -> Result<String> {
    let Name { name } = cx.elicit("step1", "Step 1: What is your name?").await?;
    let Color { color } = cx
        .elicit("step2", "Step 2: What is your favorite color?")
        .await?;
    Ok(format!("{name} likes {color}."))
}

/// Asks for a confirmation.
#[tool(name = "test_input_required_result_tampered_state")]
async fn tampered_state(cx: Cx) -> Result<String> {
    // State that was tampered with reaches no handler.
    let Confirmation { ok: confirmed } = cx.elicit("confirm", "Please confirm").await?;
    Ok(format!("confirmed: {confirmed}"))
}

/// Asks what the client can be asked, all in one round.
#[tool(name = "test_input_required_result_capabilities")]
async fn capabilities(cx: Cx) -> Result<String> {
    let (name, greeting, roots) = tokio::join!(
        cx.elicit::<Name>("user_name", "What is your name?"),
        cx.sample("greeting", greeting_question()),
        cx.roots("client_roots"),
    );
    let answers = [
        if_supported(name)?.map(|Name { name }| format!("name: {name}")),
        if_supported(greeting)?.map(|greeting| format!("greeting: {}", greeting.text())),
        if_supported(roots)?.map(|roots| format!("roots: {}", uris(&roots))),
    ];
    let answers: Vec<String> = answers.into_iter().flatten().collect();
    Ok(answers.join("; "))
}

/// Says that it is at work, and then asks for a name.
#[tool(name = "test_streaming_elicitation")]
async fn streaming_elicitation(cx: Cx) -> Result<String> {
    cx.progress(1.0, Some(2.0), "A name is needed.");
    let Name { name } = cx.elicit("user_name", "What is your name?").await?;
    cx.progress(2.0, Some(2.0), "There it is.");
    Ok(format!("Hello, {name}!"))
}

/// Asks what the prompt should be about.
#[prompt(name = "test_input_required_result_prompt")]
async fn with_context(cx: Cx) -> Result<String> {
    let Context { context } = cx
        .elicit("user_context", "What context should the prompt use?")
        .await?;
    Ok(format!("Use this context: {context}"))
}

fn greeting_question() -> SamplingParams {
    SamplingParams::new(50).user("Generate a greeting")
}

/// The answer; `None` if the client lacks the capability.
fn if_supported<T>(answer: Result<T, AskError>) -> Result<Option<T>, AskError> {
    match answer {
        Err(AskError::Unsupported { .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

fn uris(roots: &[Root]) -> String {
    let uris: Vec<&str> = roots.iter().map(|root| root.uri.as_str()).collect();
    uris.join(", ")
}
