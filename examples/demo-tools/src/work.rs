//! Tools with steps and effects, and a long computation.

use super::ledger::Ledger;
use refrain::prelude::*;
use std::time::Duration;

#[derive(Deserialize, JsonSchema)]
struct PlaceOrder {
    /// The item to order.
    item: String,
}

#[derive(Deserialize, Elicit)]
struct Confirm {
    /// Place the order?
    confirm: bool,
}

#[derive(Serialize, Deserialize)]
struct Receipt {
    number: String,
}

/// Reserves an item, asks for a confirmation, and charges for it once.
#[tool]
pub(super) async fn place_order(cx: Cx, ledger: State<Ledger>, args: PlaceOrder) -> Result<String> {
    let item = &args.item;
    let reserved: String = cx
        .step_with_key("reserve", async |key| {
            ledger.record(&format!("reserve {key} {item}"))?;
            ok(key)
        })
        .await?;
    let message = format!("Order one {item}?");
    let Confirm { confirm } = cx.elicit("confirm_order", message).await?;
    if !confirm {
        return Ok(format!("No {item} was ordered."));
    }
    let receipt: Receipt = cx
        .step_with_key("charge", async |key| {
            ledger.record(&format!("charge {key} {item}"))?;
            let number = key[..8].to_owned();
            ok(Receipt { number })
        })
        .await?;
    let reserved = &reserved[..8];
    Ok(format!(
        "Ordered one {item}: reservation {reserved}, receipt {}.",
        receipt.number
    ))
}

#[derive(Deserialize, Elicit)]
struct SeatChoice {
    /// The seat to take instead.
    seat: String,
}

/// Releases a seat, asks for another one, and takes that. Written without steps: the call waits in memory for the answer.
#[tool(live)]
pub(super) async fn change_seat(cx: Cx, ledger: State<Ledger>) -> Result<String> {
    ledger.record("seat given back")?;
    let SeatChoice { seat } = cx
        .elicit("seat", "Which seat would you like instead?")
        .await?;
    ledger.record(&format!("seat {seat} taken"))?;
    Ok(format!("You have seat {seat} now."))
}

#[derive(Deserialize, JsonSchema)]
struct Sum {
    /// The last number to add; the first one is 1.
    #[schemars(range(min = 1, max = 100_000))]
    to: u64,
    /// Milliseconds to spend on each number.
    #[serde(default)]
    #[schemars(range(max = 1000))]
    pause_ms: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct PartialSum {
    next: u64,
    sum: u64,
}

/// Adds the numbers from 1 up, slowly. An overloaded instance hands the rest on to another one.
#[tool]
pub(super) async fn sum(cx: Cx, ledger: State<Ledger>, args: Sum) -> Result<String> {
    let mut partial = cx
        .resume::<PartialSum>("sum")?
        .unwrap_or(PartialSum { next: 1, sum: 0 });
    let call = format!("{:016x}", cx.random());
    while partial.next <= args.to {
        if args.pause_ms > 0 {
            tokio::time::sleep(Duration::from_millis(args.pause_ms)).await;
        }
        ledger.record(&format!("add {call} {}", partial.next))?;
        partial.sum += partial.next;
        partial.next += 1;
        cx.progress(partial.next as f64 - 1.0, Some(args.to as f64), "adding");
        cx.checkpoint("sum", &partial).await?;
    }
    Ok(format!("The sum of 1 to {} is {}.", args.to, partial.sum))
}
