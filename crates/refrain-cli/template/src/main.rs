//! An MCP server. `cargo run -- serve` starts it, `cargo run -- --help` lists its other commands.

use refrain::prelude::*;
use refrain::server::ServerBuilder;
use std::process::ExitCode;

#[cfg(test)]
mod tests;

/// A form: clients show one input for each field, with its doc comment as the description.
#[derive(Deserialize, Elicit)]
struct Caller {
    /// Your name
    name: String,
}

/// Greets the caller.
#[tool]
async fn hello(cx: Cx) -> Result<String> {
    // The round ends here. With the answer, the function runs again from the top, perhaps in
    // another process.
    let caller: Caller = cx.elicit("caller", "What should I call you?").await?;
    Ok(format!("Hello, {}.", caller.name))
}

#[derive(Deserialize, JsonSchema)]
struct Order {
    /// The item to order.
    item: String,
}

#[derive(Deserialize, Elicit)]
struct Confirmation {
    /// Shall I order it?
    confirm: bool,
}

#[derive(Deserialize, Elicit)]
struct Delivery {
    /// Has it arrived?
    arrived: bool,
}

/// Orders an item, pays for it, and asks later whether it arrived.
#[tool(detaches)] // `cx.detach()` then works for clients of draft protocols, too
async fn order(cx: Cx, payments: State<Payments>, args: Order) -> Result<String> {
    let item = args.item;
    let question = format!("Order one {item}?");
    let Confirmation { confirm } = cx.elicit("confirmation", question).await?;
    if !confirm {
        return Ok("Nothing was ordered.".into());
    }
    // Later rounds use the saved value of this step, and do not charge again. If the work of a step
    // is an async block, end it with `ok(value)`: with `Ok(value)` the error type is not inferred.
    let receipt = cx
        .step_with_key("charge", |key| payments.charge(&item, key))
        .await?;
    // From here on the call is a task, if its client supports tasks: it survives a restart, and the
    // client need not wait for it.
    cx.detach().await?;
    cx.status(format!("The {item} is on its way."));
    let message = format!("The {item} was sent.");
    let Delivery { arrived } = cx.elicit("delivery", message).await?;
    Ok(match arrived {
        true => format!("Delivered: {receipt}."),
        false => format!("Lost: {receipt} is refunded."),
    })
}

/// Stands in for a payment service. A real one charges once for each idempotency key.
struct Payments;

impl Payments {
    async fn charge(&self, item: &str, key: String) -> Result<String> {
        eprintln!("charging for one {item}, idempotency key {key}");
        Ok(format!("receipt for one {item}"))
    }
}

/// The server, for `main` and for the tests.
fn server() -> ServerBuilder {
    Server::builder(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
        .state(Payments)
        .tool(hello())
        .tool(order())
}

fn main() -> ExitCode {
    refrain_app::run(server())
}
