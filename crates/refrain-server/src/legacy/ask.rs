//! The ids of the requests that ask something.
//!
//! ```text
//! instance 16 ‖ - ‖ number ‖ - ‖ base64url( seal )
//! ```
//!
//! The seal is of nothing, for this instance, number and session: so any instance tells what was asked in a session from
//! what a client made up, and keeps no answer to the latter.

use super::Session;
use crate::server::Server;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Characters of an id that is looked at.
const LONGEST: usize = 256;

impl Server {
    /// The id of one more request that asks something in this session. It names this instance.
    pub(super) fn new_ask(&self, session: &Session) -> String {
        let legacy = &self.0.legacy;
        let name = format!("{}-{}", legacy.instance, legacy.desk.number());
        let seal = self.0.sealer.seal_bytes(&place(session, &name), &[]);
        format!("{name}-{}", URL_SAFE_NO_PAD.encode(seal))
    }

    /// The instance that has asked something in this session under this id. `None`: none has.
    pub(super) fn asked_by<'a>(&self, session: &Session, id: &'a str) -> Option<&'a str> {
        if id.len() > LONGEST {
            return None;
        }
        let (instance, rest) = id.split_once('-')?;
        let (number, seal) = rest.split_once('-')?;
        let name = &id[..instance.len() + 1 + number.len()];
        let seal = URL_SAFE_NO_PAD.decode(seal).ok()?;
        let opened = self.0.sealer.open_bytes(&place(session, name), seal);
        opened.is_ok().then_some(instance)
    }
}

/// What an id is sealed for.
fn place(session: &Session, name: &str) -> Vec<u8> {
    format!("ask {} {name}", session.key).into_bytes()
}
