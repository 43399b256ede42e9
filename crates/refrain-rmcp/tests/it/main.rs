//! rmcp servers behind the adapter, and Refrain's tools inside rmcp servers.

#![allow(
    deprecated,
    reason = "sampling, roots and logging are deprecated in rmcp"
)]

mod changes;
mod conformance;
mod errors;
mod live;
mod replay;
mod restaurant;
mod rounds;
mod router;
mod support;
