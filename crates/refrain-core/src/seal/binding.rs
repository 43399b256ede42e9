//! What a token is good for, and nothing else.

use crate::Principal;
use crate::journal::FlowId;
use refrain_wire::{CallKind, write_canonical};
use ring::digest::{Context, SHA256};
use serde_json::Value;

/// The call a token belongs to: audience, principal, method, target and arguments, as one digest.
///
/// It can only be made whole, so a token cannot be sealed or opened without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding([u8; 32]);

impl Binding {
    pub(super) fn new(
        audience: &str,
        principal: &Principal,
        kind: CallKind,
        target: &str,
        arguments: Option<&Value>,
    ) -> Self {
        let mut canonical = Vec::new();
        match arguments {
            Some(arguments) => write_canonical(arguments, &mut canonical),
            None => canonical.extend_from_slice(b"{}"),
        }
        let mut hash = Context::new(&SHA256);
        let mut field = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        field(b"refrain binding v1");
        field(audience.as_bytes());
        field(&[u8::from(principal.id().is_some())]);
        field(principal.id().unwrap_or_default().as_bytes());
        field(kind.method().as_bytes());
        field(target.as_bytes());
        field(&canonical);
        Self(digest(hash))
    }

    pub(super) fn digest(&self) -> &[u8; 32] {
        &self.0
    }

    /// The flow of a call that the client gave an id of its own.
    pub(super) fn flow_of_call(&self, call_id: &str) -> FlowId {
        let mut hash = Context::new(&SHA256);
        hash.update(b"refrain call id v1");
        hash.update(&self.0);
        hash.update(call_id.as_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&digest(hash)[..16]);
        FlowId::from_bytes(id)
    }
}

fn digest(hash: Context) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(hash.finish().as_ref());
    bytes
}
