//! Calls whose home is memory: the handler is kept where it runs while the client is asked.
//!
//! Those of older clients are driven by the request that began them, which stays open. Those of live tools on modern
//! clients are parked between two rounds: the token names the instance that holds them.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `flow` | a flow in memory, driven: what it asks goes out, answers come in, its time is limited |
//! | `parked` | a handler that waits for its next round, and the requests that wait for it |
//! | `calls` | the parked handlers of one instance |
//! | `first_requests` | first requests that are about to start a call |
//! | `errors` | errors of requests for calls that are not held here |

mod calls;
mod errors;
mod first_requests;
mod flow;
mod parked;

pub(crate) use calls::{LiveCalls, Missed, Parking};
pub(crate) use errors::{elsewhere, gone, unreachable};
pub(crate) use first_requests::FirstRequest;
pub(crate) use flow::{LiveAnswer, LiveEvent, LiveFlow};
pub(crate) use parked::{Attached, AttachedEvent, Sealing, Subscribed};
