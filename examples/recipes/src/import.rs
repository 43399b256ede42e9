//! A long import with progress. Each batch is a step, so an instance that continues the import does not repeat
//! the batches before.

use refrain::prelude::*;
use refrain::server::ServerBuilder;
use std::time::Duration;

const BATCH: u64 = 1000;

#[derive(Deserialize, JsonSchema)]
struct Import {
    /// The number of rows to import.
    #[schemars(range(max = 1_000_000))]
    rows: u64,
}

#[derive(Deserialize, Elicit)]
struct Duplicates {
    /// Shall rows that exist already be replaced?
    replace: bool,
}

/// Imports rows into the database, and reports progress.
#[tool]
async fn import_rows(cx: Cx, database: State<Database>, args: Import) -> Result<String> {
    let question = format!("{} rows will be imported.", args.rows);
    let Duplicates { replace } = cx.elicit("duplicates", question).await?;
    let mut skipped = 0;
    for start in (0..args.rows).step_by(BATCH as usize) {
        let batch = start..args.rows.min(start + BATCH);
        // A client that asked for progress gets a notification; in a task, it becomes the status message.
        let message = format!("rows {} to {}", batch.start + 1, batch.end);
        cx.progress(start as f64, Some(args.rows as f64), &message);
        // An instance that shuts down hands the call on between two steps.
        let insert = database.insert(batch.end - batch.start, replace);
        skipped += cx.step("insert", insert).await?;
    }
    cx.progress(args.rows as f64, Some(args.rows as f64), "done");
    Ok(format!(
        "Imported {} rows, skipped {skipped}.",
        args.rows - skipped
    ))
}

/// Stands in for a database in which every hundredth row exists already.
struct Database;

impl Database {
    /// Returns the number of rows that were skipped.
    async fn insert(&self, rows: u64, replace: bool) -> Result<u64> {
        tokio::time::sleep(Duration::from_millis(rows / 20)).await;
        Ok(if replace { 0 } else { rows / 100 })
    }
}

pub(crate) fn server() -> ServerBuilder {
    Server::builder("imports", "1.0")
        .state(Database)
        .tool(import_rows())
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_client::{AskAnswer, Client};
    use refrain_testkit::net;
    use serde_json::json;
    use std::sync::mpsc::channel;

    #[tokio::test]
    async fn progress_reaches_the_client() {
        let instance = net::start(server()).await;
        let (sender, progress) = channel();
        let client = Client::builder()
            .on_form(|_| async { Ok(AskAnswer::accept(json!({"replace": false}))?) })
            .on_progress(move |progress| _ = sender.send((progress.progress, progress.message)));
        let client = client.connect(&instance.url()).await.expect("a server");
        let result = client.call_tool("import_rows", json!({"rows": 2500})).await;
        assert_eq!(crate::text(result), "Imported 2475 rows, skipped 25.");
        let texts = [
            (0.0, "rows 1 to 1000"),
            (1000.0, "rows 1001 to 2000"),
            (2000.0, "rows 2001 to 2500"),
            (2500.0, "done"),
        ];
        let texts = texts.map(|(done, text)| (done, Some(text.to_owned())));
        assert_eq!(Vec::from_iter(progress.try_iter()), texts);
    }
}
