//! A kit for testing tools written with Refrain: a fleet in one process, and a client that follows a script.
//!
//! The kit shows that a handler still works when its rounds are served by different instances, when a response is
//! lost and the request sent again, and when an instance crashes in the middle of a step. Requests and responses are JSON
//! text, and tokens are sealed, as in production; only HTTP is left out.
//!
//! ```
//! use refrain::prelude::*;
//! use refrain_testkit::{Effects, Fleet, KeepResponse, Script};
//! use serde_json::json;
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Order {
//!     item: String,
//! }
//!
//! #[derive(Deserialize, Elicit)]
//! struct Address {
//!     street: String,
//! }
//!
//! /// Orders an item.
//! #[tool]
//! async fn order(cx: Cx, shop: State<Effects>, args: Order) -> Result<String> {
//!     let reserve = |key| async { ok(shop.record(key)) };
//!     cx.step_with_key("reserve", reserve).await?;
//!     let address: Address = cx.elicit("address", "Where shall it go?").await?;
//!     Ok(format!("{} goes to {}", args.item, address.street))
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let shop = Effects::new();
//! let state = shop.clone();
//! let fleet = Fleet::new(move || Server::builder("shop", "1.0").state(state.clone()).tool(order()));
//! let script = Script::new().answer("address", json!({"street": "Elm Street"})).call_id("order 7");
//!
//! let outcome = fleet
//!     .call("order", json!({"item": "a lamp"}))
//!     .script(script)
//!     .duplicate_requests(KeepResponse::Second)
//!     .lose_responses([1])
//!     .run()
//!     .await;
//!
//! assert_eq!(outcome.text(), "a lamp goes to Elm Street");
//! assert_eq!(outcome.rounds()[0].keys(), ["address"]);
//! // The step ran in all three deliveries of the first request, each time with the same idempotency key.
//! assert_eq!(shop.take().into_values().collect::<Vec<_>>(), [3]);
//! # });
//! ```
//!
//! | to | use |
//! | --- | --- |
//! | run a fleet, or two versions behind one balancer | [`Fleet::new`], [`Fleet::and`] |
//! | answer, decline, cancel, authenticate | [`Script`] |
//! | lose a request or a response | [`TestCall::lose_requests`], [`TestCall::lose_responses`] |
//! | deliver a request twice | [`TestCall::duplicate_requests`], [`TestCall::race_requests`] |
//! | crash at every operation of `cx` | [`TestCall::crash_everywhere`] |
//! | hand a flow on from an instance that shuts down | [`TestCall::draining`] |
//! | let time pass | [`Clock::advance`] |
//! | count side effects | [`Effects`] |
//! | step through a call, tamper with its requests | [`TestCall::begin`], [`Dialogue::request`] |
//!
//! Tests need a tokio runtime with its timer, as `#[tokio::test]` has.

mod call;
mod clock;
mod crash;
mod dialogue;
mod diff;
mod effects;
mod fleet;
#[cfg(feature = "net")]
#[doc(hidden)]
pub mod net;
mod outcome;
mod script;
mod task;

pub use call::{KeepResponse, TestCall};
pub use clock::Clock;
pub use crash::CrashReport;
pub use dialogue::Dialogue;
pub use effects::Effects;
pub use fleet::Fleet;
pub use outcome::{CallError, CallOutcome, CrashPoint, RoundReport};
pub use refrain_core::Note;
pub use refrain_wire::Capability;
pub use script::{ReceivedAsk, Script, ScriptedAnswer};

/// Wraps a closure, so that the type that contains it can derive `Debug`.
#[derive(Clone)]
struct Closure<F>(F);

impl<F> std::fmt::Debug for Closure<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("closure")
    }
}
