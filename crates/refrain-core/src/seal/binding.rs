//! The binding of a token to its call.

use crate::Principal;
use crate::journal::FlowId;
use aws_lc_rs::digest::{Context, SHA256};
use refrain_wire::{CallKind, write_canonical};
use serde_json::Value;
use std::fmt;

/// The call that a token belongs to: audience, principal, method, target and canonical arguments.
#[derive(Clone, PartialEq, Eq)]
pub struct Binding(Vec<u8>);

impl Binding {
    pub(super) fn new(
        audience: &str,
        principal: &Principal,
        kind: CallKind,
        target: &str,
        arguments: Option<&Value>,
    ) -> Self {
        let mut bytes = Vec::with_capacity(256);
        let mut field = |text: &str| {
            bytes.extend_from_slice(&(text.len() as u64).to_be_bytes());
            bytes.extend_from_slice(text.as_bytes());
        };
        field(audience);
        field(if principal.id().is_some() { "id" } else { "" });
        field(principal.id().unwrap_or_default());
        field(kind.method());
        field(target);
        match arguments {
            Some(arguments) => write_canonical(arguments, &mut bytes),
            None => bytes.extend_from_slice(b"{}"),
        }
        Self(bytes)
    }

    /// The additional data that is authenticated with a token.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The flow of a call whose id the client chose.
    pub(super) fn flow_of_call(&self, call_id: &str) -> FlowId {
        let mut hash = Context::new(&SHA256);
        hash.update(b"refrain call id v1");
        hash.update(&(call_id.len() as u64).to_be_bytes());
        hash.update(call_id.as_bytes());
        hash.update(&self.0);
        FlowId::from_digest(hash.finish().as_ref())
    }
}

/// Omits the arguments, which may be secret.
impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Binding(..)")
    }
}
