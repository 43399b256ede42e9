//! Calls whose home is memory: the handler stays where it runs while the client is asked.
//!
//! Calls of legacy sessions are driven by the request that started them, which stays open. Calls of live tools are
//! parked between two rounds: the token names their holder.
//!
//! | module | contents |
//! | --- | --- |
//! | `flow` | runs a flow in memory: asks, answers, time limits |
//! | `parked` | a handler that waits for its next round, and the requests that wait for its reply |
//! | `calls` | the parked handlers of one instance |
//! | `first_requests` | first requests that are about to start a call |
//! | `errors` | errors of requests for calls that are not held here |

mod calls;
mod errors;
mod first_requests;
mod flow;
mod parked;

pub(crate) use calls::LiveCalls;
pub(crate) use errors::{elsewhere, gone, unreachable};
pub(crate) use first_requests::FirstRequest;
pub(crate) use flow::{LiveAnswer, LiveEvent, LiveFlow};
pub(crate) use parked::{Attached, AttachedEvent, Sealing, Subscribed};
