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
//! | `beginnings` | first requests that are about to begin a call |
//! | `peers` | the other instances of the fleet |
//! | `relay` | a request handed to the instance that holds its call |

mod beginnings;
mod calls;
mod flow;
mod parked;
mod peers;
mod relay;

pub(crate) use beginnings::Beginning;
pub(crate) use calls::{LiveCalls, Missed, Parking};
pub(crate) use flow::{LiveAnswer, LiveEvent, LiveFlow};
pub(crate) use parked::{Attached, AttachedEvent, Sealing, Subscribed};
pub use peers::Peers;
pub(crate) use peers::{PeerRules, Remotes};
pub(crate) use relay::{
    Relay, RelayError, RelayStream, Relayed, elsewhere, gone, is_stream, unreachable,
};
