//! Tokens of live calls, which name the holding instance and contain no journal.

use super::{Binding, HEADER_LEN, OpenError, SealFormat, Sealer, TAG_LEN, seal_in_place};
use crate::journal::FlowId;
use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;

/// The first byte of the binding of a live call's tokens.
const LIVE_BINDING: u8 = 2;
/// The maximum length of a holder's name.
const MAX_HOLDER: usize = 1024;

/// The binding of a live call's tokens: a fixed first byte, and the digest of the call's [`Binding`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LiveBinding([u8; 1 + SHA256_OUTPUT_LEN]);

impl Binding {
    /// Returns the binding of a live call's tokens. No other binding starts with its first byte.
    pub fn live(&self) -> LiveBinding {
        let mut bytes = [LIVE_BINDING; 1 + SHA256_OUTPUT_LEN];
        bytes[1..].copy_from_slice(digest(&SHA256, self.as_bytes()).as_ref());
        LiveBinding(bytes)
    }
}

/// Omits the digest, from which short arguments could be guessed.
impl fmt::Debug for LiveBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveBinding(..)")
    }
}

/// The content of a live call's token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveToken {
    /// The flow.
    pub flow: FlowId,
    /// The number of the next round, counted from 1.
    pub round: u32,
    /// The instance that holds the call.
    pub holder: String,
    /// The deadline of the call, in seconds since 1970.
    pub deadline: u64,
}

/// Flow, issued, deadline, round and holder. The order is the token format.
type LiveFields<'a> = (FlowId, u64, u64, u32, &'a str);

impl Sealer {
    /// Seals the token of a live call, valid until the call's deadline.
    pub fn seal_live(&self, binding: &LiveBinding, token: &LiveToken) -> String {
        let (now, holder) = (self.source.unix_seconds(), &*token.holder);
        let fields: LiveFields<'_> = (token.flow, now, token.deadline, token.round, holder);
        let (sealing, header) = self.header(SealFormat::Live, now);
        let mut bytes = Vec::with_capacity(HEADER_LEN + 64 + holder.len() + TAG_LEN);
        bytes.extend_from_slice(&header);
        let mut bytes =
            postcard::to_extend(&fields, bytes).expect("the fields can be encoded into a vector");
        bytes.extend_from_slice(&[0; TAG_LEN]);
        seal_in_place(&sealing, &header, &binding.0, &mut bytes);
        URL_SAFE_NO_PAD.encode(&bytes)
    }

    /// Returns whether a token has the version of a live call's token.
    pub fn is_live_token(token: &str) -> bool {
        let mut bytes = [0; 6];
        let prefix = token.as_bytes().get(..4);
        prefix.is_some_and(|prefix| {
            let decoded = URL_SAFE_NO_PAD.decode_slice(prefix, &mut bytes);
            decoded.is_ok() && SealFormat::Live.cipher(bytes[0]).is_some()
        })
    }

    /// Opens the output of [`seal_live`](Self::seal_live), presented for the call described by `binding`.
    pub fn open_live(&self, binding: &Binding, token: &str) -> Result<LiveToken, OpenError> {
        if token.len() > self.options.max_token || token.len() < (HEADER_LEN + TAG_LEN) * 4 / 3 {
            return Err(OpenError::Length);
        }
        let mut bytes = URL_SAFE_NO_PAD
            .decode(token)
            .map_err(|_| OpenError::Encoding)?;
        let plain = self.unseal(SealFormat::Live, &binding.live().0, &mut bytes)?;
        let ((flow, issued, deadline, round, holder), rest): (LiveFields<'_>, &[u8]) =
            postcard::take_from_bytes(plain).map_err(|_| OpenError::Content)?;
        if !rest.is_empty() || holder.len() > MAX_HOLDER {
            return Err(OpenError::Content);
        }
        self.check_time(issued, deadline)?;
        Ok(LiveToken {
            flow,
            round,
            holder: holder.to_owned(),
            deadline,
        })
    }
}
