//! Sampling in a loop: the client's model writes a text and reviews it until it finds the text good. Then a
//! person decides.

use refrain::prelude::*;
use refrain::server::ServerBuilder;

const MAX_DRAFTS: usize = 4;

#[derive(Deserialize, JsonSchema)]
struct Product {
    /// The product to advertise.
    product: String,
}

#[derive(Deserialize, Elicit)]
struct Choice {
    /// Shall I use it?
    publish: bool,
}

/// Has the client's model write a slogan, review it and improve it.
#[tool]
async fn write_slogan(cx: Cx, args: Product) -> Result<String> {
    // Not every client has a model, and the newest revision of MCP deprecates sampling.
    if !cx.can_sample() {
        return Ok(format!("{}: simply good.", args.product));
    }
    let task = format!("Write a slogan for {}.", args.product);
    let mut slogan = sample(&cx, "draft", task.clone()).await?;
    for _ in 1..MAX_DRAFTS {
        let review = format!("Answer GOOD if this slogan is good, else say why not: {slogan}");
        let review = sample(&cx, "review", review).await?;
        if review.starts_with("GOOD") {
            break;
        }
        let better = format!("{task} Improve this one: {slogan}\nA reader said: {review}");
        slogan = sample(&cx, "draft", better).await?;
    }
    let Choice { publish } = cx.elicit("choice", slogan.clone()).await?;
    Ok(match publish {
        true => slogan,
        false => "No slogan was good enough.".into(),
    })
}

/// Asks the client's model. In a loop the keys are `draft`, `draft#2` and so on; no answer is asked for twice.
async fn sample(cx: &Cx, name: &'static str, question: String) -> Result<String> {
    let question = SamplingParams::new(60)
        .system("You write short texts. Answer with one sentence.")
        .user(question);
    Ok(cx.sample(name, question).await?.text())
}

pub(crate) fn server() -> ServerBuilder {
    Server::builder("slogans", "1.0").tool(write_slogan())
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_testkit::{Capability, Fleet, Script};
    use serde_json::json;

    #[tokio::test]
    async fn model_improves_the_slogan_until_it_is_good() {
        let script = Script::new()
            .sample("draft", "Lamps.")
            .sample("review", "It is too short.")
            .sample("draft#2", "Lamps for long nights.")
            .sample("review#2", "GOOD")
            .answer("choice", json!({"publish": true}));
        let fleet = Fleet::new(server);
        let call = fleet.call("write_slogan", json!({"product": "lamps"}));
        let outcome = call.script(script).run().await;
        assert_eq!(outcome.text(), "Lamps for long nights.");
        let improve = &outcome.rounds()[2].asks()[0];
        assert_eq!(improve.key(), "draft#2");
        assert!(
            improve
                .message()
                .ends_with("A reader said: It is too short.")
        );
    }

    #[tokio::test]
    async fn client_without_a_model_gets_a_plain_slogan() {
        let fleet = Fleet::new(server);
        let call = fleet.call("write_slogan", json!({"product": "Lamps"}));
        let script = Script::new().can([Capability::Form]);
        assert_eq!(
            call.script(script).run().await.text(),
            "Lamps: simply good."
        );
    }
}
