//! The ids of the requests that ask something.
//!
//! ```text
//! number ‖ - ‖ base64url( sealed( holder ) )
//! ```
//!
//! The seal is made for this number and session. So any instance tells an ask of the session from an id that a client made
//! up, and knows which instance waits for the answer.

use super::{LegacySessions, Session};
use crate::relay::Holder;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Characters of the longest id.
const LONGEST: usize = 1024;

impl LegacySessions {
    /// The id of the next request that asks something in this session.
    pub(super) fn new_ask(&self, session: &Session) -> String {
        let number = self.desk.number().to_string();
        let holder = self.relay.own().to_string();
        let binding = binding(session, &number);
        let sealed = self.services.sealer.seal_bytes(&binding, holder.as_bytes());
        format!("{number}-{}", URL_SAFE_NO_PAD.encode(sealed))
    }

    /// The instance that asked under this id in this session. `None`: no instance did.
    pub(super) fn asked_by(&self, session: &Session, id: &str) -> Option<Holder> {
        if id.len() > LONGEST {
            return None;
        }
        let (number, sealed) = id.split_once('-')?;
        let sealed = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let binding = binding(session, number);
        let holder = self.services.sealer.open_bytes(&binding, sealed).ok()?;
        Holder::parse(std::str::from_utf8(&holder).ok()?)
    }
}

fn binding(session: &Session, number: &str) -> Vec<u8> {
    format!("ask {} {number}", session.key).into_bytes()
}
