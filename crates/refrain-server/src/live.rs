//! Calls whose home is memory: the handler stays in memory while an ask is open.
//!
//! A call of a legacy session is driven by its request, which stays open. A call of a live tool is parked between
//! rounds, and its token names the holder.
//!
//! | module | contents |
//! | --- | --- |
//! | `answers` | answers on their way to a flow |
//! | `flow` | runs a flow in memory: asks, answers, time limits |
//! | `parked` | a parked call and the requests attached to it |
//! | `calls` | the parked calls of one instance |
//! | `first_requests` | first requests that are starting a call |
//! | `errors` | errors for calls that are not parked on this instance |

mod answers;
mod calls;
mod errors;
mod first_requests;
mod flow;
mod parked;

pub(crate) use answers::{AnswerSender, LiveAnswer, LiveAnswerError};
pub(crate) use calls::LiveCalls;
pub(crate) use errors::{call_gone, held_elsewhere, receiver_unreachable};
pub(crate) use first_requests::FirstRequest;
pub(crate) use flow::{LiveEvent, LiveFlow};
pub(crate) use parked::{AttachError, AttachedEvent, AttachedRequest, SealContext, Subscribed};
