//! A wizard: the next form depends on the last answer. It is a `match` with an ask in each arm.

use refrain::prelude::*;
use refrain::server::ServerBuilder;

#[derive(Deserialize, Elicit)]
struct Kind {
    /// What shall I set up?
    kind: Resource,
}

#[derive(Deserialize, Elicit)]
#[serde(rename_all = "snake_case")]
enum Resource {
    Database,
    #[elicit(title = "Storage bucket")]
    Bucket,
    #[elicit(title = "Nothing, thank you")]
    Nothing,
}

#[derive(Deserialize, Elicit)]
struct Database {
    engine: Engine,
    /// Gigabytes of disk
    #[elicit(min = 10, max = 1000, default = 20)]
    disk: u32,
    /// Shall I make a copy every night?
    #[elicit(default = true)]
    backups: bool,
}

#[derive(Deserialize, Elicit, Debug)]
enum Engine {
    Postgres,
    Sqlite,
}

#[derive(Deserialize, Elicit)]
struct Backups {
    /// For how many days shall copies be kept?
    #[elicit(min = 1, max = 90)]
    days: u8,
}

#[derive(Deserialize, Elicit)]
struct Bucket {
    /// Can everyone read it?
    public: bool,
}

#[derive(Deserialize, Elicit)]
struct Sure {
    /// Type the word PUBLIC
    word: String,
}

/// Sets up a database or a storage bucket, step by step.
#[tool]
async fn set_up(cx: Cx) -> Result<String> {
    let Kind { kind } = cx.elicit("kind", "Welcome.").await?;
    let plan = match kind {
        Resource::Database => database(&cx).await?,
        Resource::Bucket => bucket(&cx).await?,
        Resource::Nothing => return Ok("Nothing was set up.".into()),
    };
    let plan = cx.step("create", async { ok(plan) }).await?;
    Ok(format!("Set up {plan}."))
}

/// A part of the wizard is an ordinary function.
async fn database(cx: &Cx) -> Result<String> {
    let form: Database = cx.elicit("database", "Which database?").await?;
    let mut plan = format!("{:?} with {} GB", form.engine, form.disk);
    if form.backups {
        let Backups { days } = cx.elicit("backups", "About the copies").await?;
        plan.push_str(&format!(", copies for {days} days"));
    }
    Ok(plan)
}

async fn bucket(cx: &Cx) -> Result<String> {
    // To go back to the previous form, ask it again: the second use of a name is another ask.
    loop {
        let Bucket { public } = cx.elicit("bucket", "Which bucket?").await?;
        if !public {
            return Ok("a private bucket".into());
        }
        let Sure { word } = cx.elicit("sure", "Everyone will see the files.").await?;
        if word == "PUBLIC" {
            return Ok("a public bucket".into());
        }
    }
}

pub(crate) fn server() -> ServerBuilder {
    Server::builder("wizard", "1.0").tool(set_up())
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_testkit::{Fleet, Script};
    use serde_json::json;

    /// The result, and the keys of the forms in their order.
    async fn run(script: Script) -> (String, Vec<String>) {
        let fleet = Fleet::new(server);
        let outcome = fleet.call("set_up", json!({})).script(script).run().await;
        let rounds = outcome.rounds().iter();
        let keys = rounds.flat_map(|round| round.keys().into_iter().map(str::to_owned));
        (outcome.text().to_owned(), keys.collect())
    }

    #[tokio::test]
    async fn answers_choose_the_next_form() {
        let script = Script::new()
            .answer("kind", json!({"kind": "database"}))
            .answer(
                "database",
                json!({"engine": "Postgres", "disk": 50, "backups": true}),
            )
            .answer("backups", json!({"days": 7}));
        let (text, keys) = run(script).await;
        assert_eq!(text, "Set up Postgres with 50 GB, copies for 7 days.");
        assert_eq!(keys, ["kind", "database", "backups"]);

        let script = Script::new()
            .answer("kind", json!({"kind": "bucket"}))
            .answer("bucket", json!({"public": true}))
            .answer("sure", json!({"word": "public"}))
            .answer("bucket#2", json!({"public": false}));
        let (text, keys) = run(script).await;
        assert_eq!(text, "Set up a private bucket.");
        assert_eq!(keys, ["kind", "bucket", "sure", "bucket#2"]);
    }
}
