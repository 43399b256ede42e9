//! Tools and a prompt that ask for input.

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
struct StateConfirmation {
    ok: bool,
}

#[derive(Deserialize, Elicit)]
struct PromptContext {
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

/// Asks for a confirmation and keeps the result of a step.
#[tool(name = "test_input_required_result_request_state")]
async fn request_state(cx: Cx) -> Result<String> {
    // The second round reads the result from the client's requestState.
    let word = cx.step("word", async { ok("state-ok".to_owned()) }).await?;
    let StateConfirmation { ok: confirmed } = cx.elicit("confirm", "Please confirm").await?;
    Ok(format!("{word}, confirmed: {confirmed}"))
}

/// Asks for a name, a greeting and the roots in one round.
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

/// Asks for a name, then for a color, in two rounds.
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
    // The server rejects a tampered state before it calls the handler.
    let StateConfirmation { ok: confirmed } = cx.elicit("confirm", "Please confirm").await?;
    Ok(format!("confirmed: {confirmed}"))
}

/// Asks everything that the client supports, in one round.
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

/// Reports progress, then asks for a name.
#[tool(name = "test_streaming_elicitation")]
async fn streaming_elicitation(cx: Cx) -> Result<String> {
    cx.progress(1.0, Some(2.0), "A name is needed.");
    let Name { name } = cx.elicit("user_name", "What is your name?").await?;
    cx.progress(2.0, Some(2.0), "The name was received.");
    Ok(format!("Hello, {name}!"))
}

/// Asks for the context of the prompt.
#[prompt(name = "test_input_required_result_prompt")]
async fn with_context(cx: Cx) -> Result<String> {
    let PromptContext { context } = cx
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
