//! The key ring that a fleet shares.
//!
//! | state | opens tokens | seals tokens |
//! | --- | --- | --- |
//! | staged | yes | no; promote it when all instances have it |
//! | minting | yes | yes; exactly one key is minting |
//! | retiring | yes; remove it when its last token has expired | no |
//!
//! In a file, each key is a line `ID STATE SECRET`; empty lines and lines that start with `#` are ignored. In an
//! environment variable, commas may replace the line breaks of a text without comment lines.

use crate::Source;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use std::str::FromStr;
use strum::{Display, EnumString};

const SECRET_LEN: usize = 32;

/// The id of a key: the first four bytes of its secret's digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId([u8; 4]);

impl KeyId {
    fn of(secret: &[u8; SECRET_LEN]) -> Self {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, secret);
        Self::from_slice(&digest.as_ref()[..4])
    }

    pub(super) fn from_slice(bytes: &[u8]) -> Self {
        let mut id = [0; 4];
        id.copy_from_slice(bytes);
        Self(id)
    }

    pub(super) fn as_bytes(&self) -> &[u8; 4] {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum KeyState {
    /// Opens tokens. It can be promoted once all instances have it.
    Staged,
    /// Seals new tokens.
    Minting,
    /// Opens tokens that it sealed earlier, until they have expired.
    Retiring,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct RingKey {
    pub(super) id: KeyId,
    state: KeyState,
    pub(super) secret: [u8; SECRET_LEN],
}

impl RingKey {
    fn new(state: KeyState, secret: [u8; SECRET_LEN]) -> Self {
        let id = KeyId::of(&secret);
        Self { id, state, secret }
    }

    fn generate(state: KeyState, source: &dyn Source) -> Self {
        let mut secret = [0; SECRET_LEN];
        source.fill(&mut secret);
        Self::new(state, secret)
    }
}

/// Why a key ring is invalid, or a change to it is rejected.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyRingError {
    /// A line is not `ID STATE SECRET`.
    #[error("line {line}: {reason}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// Why it is invalid.
        reason: String,
    },
    /// There must be exactly one minting key.
    #[error("expected exactly one key that seals new tokens (state `minting`), found {0}")]
    Minting(usize),
    /// No key has this id.
    #[error("unknown key id {0}")]
    Unknown(String),
    /// The minting key cannot be retired.
    #[error("key {0} seals new tokens (state `minting`): promote another key before you retire it")]
    InUse(KeyId),
}

/// Prints the message, since `main` prints the `Debug` form of an error that it returns.
impl fmt::Debug for KeyRingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The keys that a fleet shares. The `Debug` output contains no secrets.
///
/// Create a key file with `refrain keys new` or [`KeyRing::to_text`]. It has one line `ID STATE SECRET` per key. The states
/// are `staged` (opens tokens), `minting` (also seals tokens; exactly one key) and `retiring` (opens old tokens).
///
/// ```
/// use refrain::runtime::SystemSource;
/// use refrain::server::KeyRing;
///
/// let text = KeyRing::generate(&SystemSource::new()).to_text(); // or std::fs::read_to_string("fleet.keys")?
/// let ring: KeyRing = text.parse()?;
/// assert_eq!(ring.list().count(), 1);
/// # Ok::<(), refrain::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct KeyRing {
    keys: Vec<RingKey>,
}

impl KeyRing {
    /// Makes a ring with one new minting key.
    pub fn generate(source: &dyn Source) -> Self {
        Self {
            keys: vec![RingKey::generate(KeyState::Minting, source)],
        }
    }

    /// Returns the ids and states of the keys, in the order of the file.
    pub fn list(&self) -> impl Iterator<Item = (KeyId, KeyState)> + '_ {
        self.keys.iter().map(|key| (key.id, key.state))
    }

    /// Adds a new staged key.
    pub fn stage(&mut self, source: &dyn Source) -> KeyId {
        let key = RingKey::generate(KeyState::Staged, source);
        let id = key.id;
        self.keys.push(key);
        id
    }

    /// Makes a key the minting key. The previous one becomes `retiring`: it still opens its tokens.
    pub fn promote(&mut self, id: &str) -> Result<(), KeyRingError> {
        let index = self.position(id)?;
        for key in &mut self.keys {
            if key.state == KeyState::Minting {
                key.state = KeyState::Retiring;
            }
        }
        self.keys[index].state = KeyState::Minting;
        Ok(())
    }

    /// Removes a key. Its tokens are rejected from now on.
    pub fn retire(&mut self, id: &str) -> Result<(), KeyRingError> {
        let index = self.position(id)?;
        if self.keys[index].state == KeyState::Minting {
            return Err(KeyRingError::InUse(self.keys[index].id));
        }
        self.keys.remove(index);
        Ok(())
    }

    fn position(&self, id: &str) -> Result<usize, KeyRingError> {
        self.keys
            .iter()
            .position(|key| key.id.to_string() == id)
            .ok_or_else(|| KeyRingError::Unknown(id.to_owned()))
    }

    /// Returns the text of a key file, which contains secrets.
    pub fn to_text(&self) -> String {
        let mut text = String::from("# Refrain key ring: id, state, secret\n");
        for key in &self.keys {
            let secret = URL_SAFE_NO_PAD.encode(key.secret);
            text.push_str(&format!("{} {} {secret}\n", key.id, key.state));
        }
        text
    }

    pub(super) fn minting(&self) -> &RingKey {
        self.keys
            .iter()
            .find(|key| key.state == KeyState::Minting)
            .expect("a key ring has a minting key")
    }

    pub(super) fn get(&self, id: KeyId) -> Option<&RingKey> {
        self.keys.iter().find(|key| key.id == id)
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

impl FromStr for KeyRing {
    type Err = KeyRingError;

    fn from_str(text: &str) -> Result<Self, KeyRingError> {
        let mut keys: Vec<RingKey> = Vec::new();
        let lines = text.lines().enumerate();
        let lines = lines.filter(|(_, line)| !line.trim_start().starts_with('#'));
        let parts =
            lines.flat_map(|(number, line)| line.split(',').map(move |part| (number, part)));
        for (number, line) in parts {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let invalid = |reason: &str| KeyRingError::Line {
                line: number + 1,
                reason: reason.into(),
            };
            let parts: Vec<&str> = line.split_whitespace().collect();
            let [id, state, secret] = parts[..] else {
                return Err(invalid("expected `ID STATE SECRET`"));
            };
            let state = state.parse().map_err(|_| {
                invalid("expected `ID STATE SECRET`, where STATE is staged, minting or retiring")
            })?;
            let secret: [u8; SECRET_LEN] = URL_SAFE_NO_PAD
                .decode(secret)
                .ok()
                .and_then(|bytes| bytes.try_into().ok())
                .ok_or_else(|| invalid("the secret must be 32 bytes in base64url"))?;
            let key = RingKey::new(state, secret);
            if key.id.to_string() != id {
                return Err(invalid("the id does not belong to the secret"));
            }
            if keys.iter().any(|earlier| earlier.id == key.id) {
                return Err(invalid("duplicate key"));
            }
            keys.push(key);
        }
        let minting = keys
            .iter()
            .filter(|key| key.state == KeyState::Minting)
            .count();
        if minting != 1 {
            return Err(KeyRingError::Minting(minting));
        }
        Ok(Self { keys })
    }
}
