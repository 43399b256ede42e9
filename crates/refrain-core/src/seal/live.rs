//! The token of a call that is held in memory: it names the instance that holds it, and holds no journal.

use super::{Binding, HEADER, OpenError, Sealer, TAG, seal_in_place};
use crate::journal::FlowId;
use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of such a token, which tells it from one with a journal.
const LIVE: u8 = 2;
/// Instances that hold calls have no longer names than this.
const LONGEST: usize = 1024;

/// What the tokens of a live call are bound to: that they are live, and the digest of its [`Binding`], which is kept as long
/// as the call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LiveBinding([u8; 1 + SHA256_OUTPUT_LEN]);

impl Binding {
    /// The same for tokens of a call that is held in memory. No other binding begins so: the first byte of one is that of a
    /// length.
    pub fn live(&self) -> LiveBinding {
        let mut bytes = [LIVE; 1 + SHA256_OUTPUT_LEN];
        bytes[1..].copy_from_slice(digest(&SHA256, self.as_bytes()).as_ref());
        LiveBinding(bytes)
    }
}

/// Short arguments could be guessed.
impl fmt::Debug for LiveBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveBinding(..)")
    }
}

/// What the token of a live call says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveToken {
    /// The flow that is held.
    pub flow: FlowId,
    /// The number of the round that the token begins, counted from 1.
    pub round: u32,
    /// The instance that holds it.
    pub holder: String,
    /// When the call is given up, in seconds since 1970.
    pub deadline: u64,
}

/// The binary form. The order of the fields is the token's format.
#[derive(Serialize, Deserialize)]
struct Wire<'a> {
    flow: FlowId,
    issued: u64,
    deadline: u64,
    round: u32,
    holder: &'a str,
}

impl Sealer {
    /// Seals the token of a call that is held in memory. It is good until the call is given up.
    pub fn seal_live(&self, binding: &LiveBinding, token: &LiveToken) -> String {
        let wire = Wire {
            flow: token.flow,
            issued: self.source.unix_seconds(),
            deadline: token.deadline,
            round: token.round,
            holder: &token.holder,
        };
        let (minter, header) = self.header(LIVE, self.source.unix_seconds());
        let mut bytes = Vec::with_capacity(HEADER + 64 + token.holder.len() + TAG);
        bytes.extend_from_slice(&header);
        let mut bytes =
            postcard::to_extend(&wire, bytes).expect("a vector takes any number of bytes");
        bytes.extend_from_slice(&[0; TAG]);
        seal_in_place(&minter, &header, &binding.0, &mut bytes);
        URL_SAFE_NO_PAD.encode(&bytes)
    }

    /// Does this begin like the token of a call that is held in memory? Only opening it tells whether it is one.
    pub fn looks_live(token: &str) -> bool {
        let mut first = [0; 6];
        let begins = token.as_bytes().get(..4);
        begins.is_some_and(|begins| {
            let decoded = URL_SAFE_NO_PAD.decode_slice(begins, &mut first);
            decoded.is_ok() && first[0] == LIVE
        })
    }

    /// Opens what [`seal_live`](Self::seal_live) sealed, presented for the call described by `binding`.
    pub fn open_live(&self, binding: &Binding, token: &str) -> Result<LiveToken, OpenError> {
        if token.len() > self.options.max_token || token.len() < (HEADER + TAG) * 4 / 3 {
            return Err(OpenError::Length);
        }
        let mut bytes = URL_SAFE_NO_PAD
            .decode(token)
            .map_err(|_| OpenError::Encoding)?;
        let plain = self.unseal(LIVE, &binding.live().0, &mut bytes)?;
        let (wire, rest): (Wire<'_>, &[u8]) =
            postcard::take_from_bytes(plain).map_err(|_| OpenError::Content)?;
        if !rest.is_empty() || wire.holder.len() > LONGEST {
            return Err(OpenError::Content);
        }
        self.judge(wire.issued, wire.deadline)?;
        Ok(LiveToken {
            flow: wire.flow,
            round: wire.round,
            holder: wire.holder.to_owned(),
            deadline: wire.deadline,
        })
    }
}
