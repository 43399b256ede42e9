//! An expense report, collected in several rounds: one form for each item, a question if the sum is high, and a review.

use refrain::prelude::*;
use refrain::server::ServerBuilder;

/// Above this sum the report needs a reason.
const LIMIT: f64 = 500.0;

#[derive(Deserialize, Elicit)]
struct Item {
    /// What did you pay for?
    purpose: String,
    /// How much was it?
    #[elicit(min = 0.01)]
    amount: f64,
    /// Is there another item?
    #[elicit(default = false)]
    more: bool,
}

#[derive(Deserialize, Elicit)]
struct Reason {
    /// Why was it so much?
    reason: String,
}

#[derive(Deserialize, Elicit)]
struct Review {
    /// Shall I send the report?
    send: bool,
}

/// Collects expenses item by item, and sends the report.
#[tool]
async fn report_expenses(cx: Cx, accounting: State<Accounting>) -> Result<String> {
    let mut items: Vec<Item> = Vec::new();
    // An ask in a loop keeps its name. The client sees the keys `item`, `item#2` and so on.
    loop {
        let question = format!("Item {} of your report", items.len() + 1);
        let item: Item = cx.elicit("item", question).await?;
        let more = item.more;
        items.push(item);
        if !more {
            break;
        }
    }
    let sum: f64 = items.iter().map(|item| item.amount).sum();
    let mut lines: Vec<String> = items
        .iter()
        .map(|item| format!("{}: {:.2}", item.purpose, item.amount))
        .collect();
    if sum > LIMIT {
        let question = format!("{sum:.2} is more than {LIMIT:.2}.");
        let Reason { reason } = cx.elicit("reason", question).await?;
        lines.push(format!("Reason: {reason}"));
    }
    let question = format!("{}\nSum: {sum:.2}", lines.join("\n"));
    // `ask` instead of `elicit`: a declined form is an answer here, not an error.
    match cx.ask::<Review>("review", question).await? {
        Answer::Accepted(Review { send: true }) => {}
        _ => return Ok("The report was thrown away.".into()),
    }
    let number = cx
        .step_with_key("send", |key| accounting.send(&lines, key))
        .await?;
    Ok(format!("Sent {} items, {sum:.2}: {number}.", items.len()))
}

/// Stands in for an accounting system that accepts idempotency keys.
struct Accounting;

impl Accounting {
    async fn send(&self, lines: &[String], key: String) -> Result<String> {
        eprintln!("report {key}: {lines:?}");
        Ok("report 17".into())
    }
}

pub(crate) fn server() -> ServerBuilder {
    Server::builder("expenses", "1.0")
        .state(Accounting)
        .tool(report_expenses())
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain_testkit::{Fleet, Script};
    use serde_json::json;

    #[tokio::test]
    async fn high_sum_needs_a_reason() {
        let script = Script::new()
            .answer(
                "item",
                json!({"purpose": "Train", "amount": 120, "more": true}),
            )
            .answer(
                "item#2",
                json!({"purpose": "Hotel", "amount": 480.5, "more": false}),
            )
            .answer("reason", json!({"reason": "Trade fair"}))
            .answer("review", json!({"send": true}));
        let fleet = Fleet::new(server);
        let call = fleet.call("report_expenses", json!({})).script(script);
        let report = call.crash_everywhere().await;
        let outcome = report.undisturbed();
        assert_eq!(outcome.text(), "Sent 2 items, 600.50: report 17.");
        assert_eq!(outcome.rounds().len(), 5);
        report.assert_same();
    }

    #[tokio::test]
    async fn declined_review_sends_nothing() {
        let script = Script::new()
            .answer(
                "item",
                json!({"purpose": "Taxi", "amount": 20, "more": false}),
            )
            .decline("review");
        let fleet = Fleet::new(server);
        let call = fleet.call("report_expenses", json!({})).script(script);
        assert_eq!(call.run().await.text(), "The report was thrown away.");
    }
}
