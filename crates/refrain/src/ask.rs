//! Forms, and requests to the client's model.
//!
//! [`Cx::elicit`](crate::Cx::elicit) asks for any type that derives [`Elicit`](crate::Elicit). Build a [`Form`] if its fields
//! are known only at run time. [`SamplingParams`] is a request to the client's model; its parts and its answer are in
//! [`runtime::wire`](crate::runtime::wire).

pub use refrain_core::{Choice, Field, Form};
pub use refrain_wire::SamplingParams;
