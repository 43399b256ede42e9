//! Sessions and their ids, which are sealed tokens that every instance can open.
//!
//! ```text
//! base64url( sealed( format 1 ‖ revision 1 ‖ capabilities 1 ‖ expires 8 ‖ key 16 ‖ holder ) )
//! ```
//!
//! The numbers are lengths in bytes. The id is bound to the audience and to the principal that opened the session.

use super::LegacySessions;
use crate::relay::Holder;
use crate::services::{open_text, seal_text};
use refrain_core::{OpenError, Principal};
use refrain_wire::Capabilities;
use refrain_wire::legacy::{Initialize, Revision};
use std::sync::Arc;
use std::time::Duration;

/// The version of the format.
const FORMAT: u8 = 2;
/// The length of the content before the holder.
const FIXED_BYTES: usize = 27;
/// The longest session id, in bytes.
const MAX_ID: usize = 1024;

/// The content of a session id.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// Identifies the session in memory and in logs. It does not reveal the id, which is a secret.
    pub(crate) key: Arc<str>,
    pub(crate) revision: Revision,
    pub(super) capabilities: Capabilities,
    /// In seconds since 1970. `u64::MAX` if the session ends with the process.
    pub(super) expires: u64,
    pub(crate) holder: Holder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// Ends after `session_time`.
    Limited,
    /// Ends with the process.
    Process,
}

impl Session {
    pub(crate) fn lifetime(&self) -> Lifetime {
        match self.expires {
            u64::MAX => Lifetime::Process,
            _ => Lifetime::Limited,
        }
    }

    fn encode(&self, key: [u8; 16]) -> Vec<u8> {
        let revision = Revision::ALL
            .iter()
            .position(|revision| *revision == self.revision);
        let flags = capability_flags(self.capabilities).into_iter().enumerate();
        let bits = flags.fold(0, |bits, (index, flag)| bits | (u8::from(flag) << index));
        let mut content = vec![FORMAT, revision.unwrap_or_default() as u8, bits];
        content.extend_from_slice(&self.expires.to_be_bytes());
        content.extend_from_slice(&key);
        content.extend_from_slice(self.holder.to_string().as_bytes());
        content
    }

    fn decode(content: &[u8]) -> Option<Self> {
        let (content, holder) = content.split_at_checked(FIXED_BYTES)?;
        let [FORMAT, revision, bits, ..] = *content else {
            return None;
        };
        let holder = std::str::from_utf8(holder).ok()?;
        Some(Self {
            key: key_text(content[11..].try_into().ok()?),
            revision: *Revision::ALL.get(usize::from(revision))?,
            capabilities: capabilities_from_bits(bits),
            expires: u64::from_be_bytes(content[3..11].try_into().ok()?),
            holder: Holder::parse(holder)?,
        })
    }
}

fn capability_flags(capabilities: Capabilities) -> [bool; 6] {
    [
        capabilities.form,
        capabilities.url,
        capabilities.sampling,
        capabilities.sampling_tools,
        capabilities.sampling_context,
        capabilities.roots,
    ]
}

fn capabilities_from_bits(bits: u8) -> Capabilities {
    let bit = |index: u8| bits & (1 << index) != 0;
    Capabilities {
        form: bit(0),
        url: bit(1),
        sampling: bit(2),
        sampling_tools: bit(3),
        sampling_context: bit(4),
        roots: bit(5),
        tasks: false,
    }
}

fn key_text(key: [u8; 16]) -> Arc<str> {
    format!("{:032x}", u128::from_be_bytes(key)).into()
}

impl LegacySessions {
    /// Opens a session for this principal. Returns the session and its id.
    pub(crate) fn open_session(
        &self,
        initialize: &Initialize,
        principal: &Principal,
        lifetime: Lifetime,
    ) -> (Session, String) {
        let services = &self.services;
        let (now, limits) = (services.source.unix_seconds(), &services.limits);
        let key = services.random();
        let session = Session {
            key: key_text(key),
            revision: initialize.revision,
            capabilities: initialize.capabilities,
            expires: match lifetime {
                Lifetime::Limited => now.saturating_add(limits.session_time.as_secs()),
                Lifetime::Process => u64::MAX,
            },
            holder: self.relay.own.clone(),
        };
        let (binding, content) = (self.binding(principal), session.encode(key));
        (session, seal_text(&services.sealer, &binding, &content))
    }

    pub(super) fn time_left(&self, session: &Session) -> Duration {
        let now = self.services.source.unix_seconds();
        Duration::from_secs(session.expires.saturating_sub(now))
    }

    /// The session with this id, if this principal opened it.
    pub(crate) fn find(&self, id: &str, principal: &Principal) -> Result<Session, OpenError> {
        if id.len() > MAX_ID {
            return Err(OpenError::Length);
        }
        let content = open_text(&self.services.sealer, &self.binding(principal), id)?;
        let session = Session::decode(&content).ok_or(OpenError::Content)?;
        if session.expires <= self.services.source.unix_seconds() {
            return Err(OpenError::Expired);
        }
        Ok(session)
    }

    fn binding(&self, principal: &Principal) -> Vec<u8> {
        binding(&self.services.sealer.options().audience, principal)
    }
}

/// The length-prefixed audience, whether the caller is authenticated, and its id.
fn binding(audience: &str, principal: &Principal) -> Vec<u8> {
    let mut binding = b"session".to_vec();
    binding.extend_from_slice(&(audience.len() as u64).to_be_bytes());
    binding.extend_from_slice(audience.as_bytes());
    binding.push(u8::from(principal.id().is_some()));
    binding.extend_from_slice(principal.id().unwrap_or_default().as_bytes());
    binding
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::server::Server;
    use refrain_wire::legacy::decode_initialize;
    use std::collections::HashSet;

    pub(in crate::legacy) fn open(server: &Server) -> Session {
        let params = r#"{"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}"#;
        let params = serde_json::from_str(params).expect("JSON");
        let initialize = decode_initialize(Some(params)).expect("valid params");
        let (legacy, caller) = (&server.0.legacy, Principal::anonymous());
        legacy
            .open_session(&initialize, &caller, Lifetime::Limited)
            .0
    }

    #[test]
    fn session_round_trips_through_its_id() {
        for (revision, bits) in Revision::ALL.into_iter().zip([0, 0b10_1010, 0b11_1111]) {
            let key = [7; 16];
            let session = Session {
                key: key_text(key),
                revision,
                capabilities: capabilities_from_bits(bits),
                expires: 1_234_567_890_123,
                holder: Holder::parse("00000000000000ff http://a/mcp").expect("a holder"),
            };
            let encoded = session.encode(key);
            let decoded = Session::decode(&encoded).expect("a session");
            let parts = |s: Session| (s.key, s.revision, s.capabilities, s.expires, s.holder);
            assert_eq!(parts(decoded), parts(session));
            assert!(Session::decode(&encoded[1..]).is_none());
        }
    }

    #[test]
    fn bindings_of_callers_differ() {
        let anonymous = Principal::anonymous();
        let callers = [
            ("a", anonymous.clone()),
            ("a", Principal::new("")),
            ("a", Principal::new("alice ")),
            ("a", Principal::new("alice")),
            ("a\u{1}", anonymous),
            ("", Principal::new("a")),
        ];
        let bindings: HashSet<Vec<u8>> = callers
            .iter()
            .map(|(audience, principal)| binding(audience, principal))
            .collect();
        assert_eq!(bindings.len(), callers.len());
    }
}
