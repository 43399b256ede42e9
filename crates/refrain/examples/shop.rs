//! A tool with a step, application state and a declined form, mounted in axum.
//! Run it with `cargo run -p refrain --example shop`.

use refrain::prelude::*;
use refrain::server::{AllowedHosts, HttpService};
use std::sync::atomic::{AtomicU64, Ordering};

/// Simulates a payment provider that knows idempotency keys.
#[derive(Default)]
struct Shop {
    receipts: AtomicU64,
}

impl Shop {
    async fn charge(&self, item: &str, key: String) -> Result<u64> {
        eprintln!("charging for one {item}, idempotency key {key}");
        Ok(self.receipts.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

#[derive(Deserialize, JsonSchema)]
struct Order {
    /// The item to order.
    item: String,
}

#[derive(Deserialize, Elicit)]
struct Delivery {
    /// The address of the delivery
    address: String,
    /// The speed of the delivery
    speed: Speed,
}

#[derive(Deserialize, Elicit, Debug)]
enum Speed {
    #[elicit(title = "Within a week")]
    Normal,
    #[elicit(title = "Tomorrow")]
    Express,
}

/// Orders an item. Asks for the address first.
#[tool]
async fn order(cx: Cx, shop: State<Shop>, args: Order) -> Result<String> {
    // `ask` also returns a decline, so that the tool can respond to it.
    let message = format!("Where shall one {} go?", args.item);
    let Answer::Accepted(delivery) = cx.ask::<Delivery>("delivery", message).await? else {
        return Ok("Nothing was ordered.".into());
    };
    let receipt = cx
        .step_with_key("charge", |key| shop.charge(&args.item, key))
        .await?;
    let Delivery { address, speed } = delivery;
    Ok(format!(
        "One {} goes to {address} ({speed:?}). Receipt {receipt}.",
        args.item
    ))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let server = Server::builder("shop", "1.0")
        .tool(order())
        .state(Shop::default())
        .build()?;
    let endpoint = HttpService::new(server, AllowedHosts::local());
    let app = axum::Router::new().route_service("/mcp", endpoint);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    eprintln!("listening on http://{}/mcp", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
