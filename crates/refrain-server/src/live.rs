//! Calls whose home is memory: the handler is kept where it runs while the client is asked.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `flow` | a flow in memory, driven: what it asks goes out, answers come in, its time is limited |
//! | `places` | how many of them an instance keeps |

mod flow;
mod places;

pub(crate) use flow::{LiveAnswer, LiveEvent, LiveFlow, Recipe};
pub(crate) use places::{LivePlace, LivePlaces};
