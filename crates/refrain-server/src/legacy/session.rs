//! A session, and its id: a sealed token that any instance opens.
//!
//! ```text
//! base64url( sealed( format 1 ‖ revision 1 ‖ capabilities 1 ‖ expires 8 ‖ key 16 ) )
//! ```
//!
//! It is bound to the audience and to the principal that opened the session: to anybody else it is no session.

use crate::server::Server;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use refrain_core::{OpenError, Principal};
use refrain_store::MemoryStore;
use refrain_wire::{Agreed, Capabilities, Initialize, LogLevel, Revision};
use std::sync::Arc;
use std::time::Duration;

const FORMAT: u8 = 1;
const LENGTH: usize = 27;
/// Characters of an id that is looked at.
const LONGEST: usize = 256;
/// What goes out in a session that has said nothing about it.
pub(crate) const DEFAULT_LEVEL: LogLevel = LogLevel::Info;

/// A session of an older client.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// What it is called in stores and in memory. It says nothing about the id.
    pub(crate) key: Arc<str>,
    pub(crate) revision: Revision,
    capabilities: Capabilities,
    /// When it ends, in seconds since 1970. That of a process ends with it.
    expires: u64,
    /// Where that of a process has what is noted of it: nobody else can speak in it, and nothing is left of it at its end.
    pub(super) own: Option<MemoryStore>,
}

impl Session {
    /// What was agreed, with the level of log messages that was set later.
    pub(crate) fn agreed(&self, level: Option<LogLevel>) -> Agreed {
        Agreed {
            revision: self.revision,
            capabilities: self.capabilities,
            log_level: Some(level.unwrap_or(DEFAULT_LEVEL)),
        }
    }

    /// How long it lasts.
    pub(crate) fn left(&self, server: &Server) -> Duration {
        let now = server.0.source.unix_seconds();
        Duration::from_secs(self.expires.saturating_sub(now))
    }

    fn encode(&self, key: [u8; 16]) -> Vec<u8> {
        let revision = Revision::ALL
            .iter()
            .position(|known| *known == self.revision);
        let flags = flags(self.capabilities).into_iter().enumerate();
        let bits = flags.fold(0, |bits, (at, flag)| bits | (u8::from(flag) << at));
        let mut content = vec![FORMAT, revision.unwrap_or_default() as u8, bits];
        content.extend_from_slice(&self.expires.to_be_bytes());
        content.extend_from_slice(&key);
        content
    }

    fn decode(content: &[u8]) -> Option<Self> {
        let content: &[u8; LENGTH] = content.try_into().ok()?;
        let [FORMAT, revision, bits, ..] = *content else {
            return None;
        };
        let bit = |at: u8| bits & (1 << at) != 0;
        Some(Self {
            key: key_text(content[11..].try_into().ok()?),
            revision: *Revision::ALL.get(usize::from(revision))?,
            capabilities: Capabilities {
                form: bit(0),
                url: bit(1),
                sampling: bit(2),
                sampling_tools: bit(3),
                sampling_context: bit(4),
                roots: bit(5),
                tasks: false,
            },
            expires: u64::from_be_bytes(content[3..11].try_into().ok()?),
            own: None,
        })
    }
}

fn flags(capabilities: Capabilities) -> [bool; 6] {
    [
        capabilities.form,
        capabilities.url,
        capabilities.sampling,
        capabilities.sampling_tools,
        capabilities.sampling_context,
        capabilities.roots,
    ]
}

fn key_text(key: [u8; 16]) -> Arc<str> {
    format!("{:032x}", u128::from_be_bytes(key)).into()
}

impl Server {
    /// Opens a session for this caller. Gives its id, too.
    pub(crate) fn open_session(
        &self,
        initialize: &Initialize,
        principal: &Principal,
    ) -> (Session, String) {
        let time = self.0.limits.session_time.as_secs();
        let expires = self.0.source.unix_seconds().saturating_add(time);
        let (session, key) = self.new_session(initialize, expires);
        let sealer = &self.0.sealer;
        let sealed = sealer.seal_bytes(&self.place(principal), &session.encode(key));
        (session, URL_SAFE_NO_PAD.encode(sealed))
    }

    /// Opens the session of a process, which lasts as long as that does.
    pub(crate) fn open_process_session(&self, initialize: &Initialize) -> Session {
        let own = MemoryStore::with_source(self.0.source.clone());
        Session {
            own: Some(own),
            ..self.new_session(initialize, u64::MAX).0
        }
    }

    fn new_session(&self, initialize: &Initialize, expires: u64) -> (Session, [u8; 16]) {
        let mut key = [0; 16];
        self.0.source.fill(&mut key);
        let session = Session {
            key: key_text(key),
            revision: initialize.revision,
            capabilities: initialize.capabilities,
            expires,
            own: None,
        };
        (session, key)
    }

    /// The session of this id, if it is one of this caller's.
    pub(crate) fn session(&self, id: &str, principal: &Principal) -> Result<Session, OpenError> {
        if id.len() > LONGEST {
            return Err(OpenError::Length);
        }
        let sealed = URL_SAFE_NO_PAD.decode(id);
        let sealed = sealed.map_err(|_| OpenError::Encoding)?;
        let content = self.0.sealer.open_bytes(&self.place(principal), sealed)?;
        let session = Session::decode(&content).ok_or(OpenError::Content)?;
        if session.left(self).is_zero() {
            return Err(OpenError::Expired);
        }
        Ok(session)
    }

    /// What the ids of this caller's sessions are sealed for.
    fn place(&self, principal: &Principal) -> Vec<u8> {
        place(&self.0.sealer.options().audience, principal)
    }
}

/// The audience with its length, whether the caller has a name, and the name.
fn place(audience: &str, principal: &Principal) -> Vec<u8> {
    let mut place = b"session".to_vec();
    place.extend_from_slice(&(audience.len() as u64).to_be_bytes());
    place.extend_from_slice(audience.as_bytes());
    place.push(u8::from(principal.id().is_some()));
    place.extend_from_slice(principal.id().unwrap_or_default().as_bytes());
    place
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_session_comes_back_as_it_was() {
        for (revision, bits) in Revision::ALL.into_iter().zip([0, 0b10_1010, 0b11_1111]) {
            let bit = |at: u8| bits & (1 << at) != 0;
            let key = [7; 16];
            let session = Session {
                key: key_text(key),
                revision,
                capabilities: Capabilities {
                    form: bit(0),
                    url: bit(1),
                    sampling: bit(2),
                    sampling_tools: bit(3),
                    sampling_context: bit(4),
                    roots: bit(5),
                    tasks: false,
                },
                expires: 1_234_567_890_123,
                own: None,
            };
            let encoded = session.encode(key);
            let decoded = Session::decode(&encoded).expect("a session");
            let parts = |s: Session| (s.key, s.revision, s.capabilities, s.expires);
            assert_eq!(parts(decoded), parts(session));
            assert!(Session::decode(&encoded[1..]).is_none());
        }
    }

    #[test]
    fn no_two_callers_have_the_same_place() {
        let named = |name: &str| Principal::new(name);
        let anonymous = Principal::anonymous();
        let callers = [
            ("a", anonymous.clone()),
            ("a", named("")),
            ("a", named("nobody ")),
            ("a", named("nobody")),
            ("a\u{1}", anonymous),
            ("", named("a")),
        ];
        let places: HashSet<Vec<u8>> = callers
            .iter()
            .map(|(audience, principal)| place(audience, principal))
            .collect();
        assert_eq!(places.len(), callers.len());
    }
}
