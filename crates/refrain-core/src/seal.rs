//! Tokens: sealed journals, which clients keep between rounds.
//!
//! ```text
//! base64url( version[1] ‖ key id[4] ‖ salt[16] ‖ issue time in seconds[4] ‖ counter[8] ‖ ciphertext ‖ tag[16] )
//! ```
//!
//! The cipher is AES-256-GCM-SIV. Its key is derived by HKDF from the ring's key and a random salt of the instance; the
//! nonce is the issue time and a counter, so a fleet does not exhaust its nonces. Two clones of a virtual machine may
//! repeat a nonce: with this cipher that reveals only whether two tokens are equal. The call that the token belongs to (its
//! [`Binding`]) is authenticated as additional data, but is not in the token. The header selects key and nonce, so a token
//! with a modified header does not open.
//!
//! The token of a live call has the same format and another version. Its binding starts with a byte that no other binding
//! starts with, so that one kind of token cannot be opened as the other.
//!
//! Invariants: exactly one key, selected by its id, is tried for a token. The reason of a failure ([`OpenError`]) goes
//! only to logs and metrics: the client does not see it.

mod binding;
mod keyring;
mod live;

pub use binding::Binding;
pub use keyring::{KeyId, KeyRing, KeyRingError, KeyState};
pub use live::{LiveBinding, LiveToken};

use crate::journal::{Claims, FlowId, Snapshot};
use crate::{Principal, Source};
use aws_lc_rs::aead::{
    AES_256_GCM, AES_256_GCM_SIV, Aad, Algorithm, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use aws_lc_rs::hkdf;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use keyring::RingKey;
use parking_lot::RwLock;
use refrain_wire::CallKind;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use strum::{Display, IntoStaticStr, VariantArray};

/// Up to this size, a token is encrypted and decrypted in a buffer on the stack.
const STACK_BUFFER: usize = 1024;
/// The first byte of the binding of stored data. The same for both ciphers, unlike the version.
const AT_REST_BINDING: u8 = 129;
const SALT_LEN: usize = 16;
/// Version, key id, salt and nonce.
const HEADER_LEN: usize = 1 + 4 + SALT_LEN + NONCE_LEN;
const TAG_LEN: usize = 16;
/// The maximum number of nonces per salt.
const MAX_SALT_TOKENS: u64 = 1 << 24;
/// The maximum age of a salt in seconds.
const MAX_SALT_AGE: u64 = 900;
/// The capacity of the cache of derived keys.
const MAX_CACHED_KEYS: usize = 1024;

/// A kind of sealed data.
#[derive(Clone, Copy)]
enum SealFormat {
    Token,
    Live,
    AtRest,
}

/// A cipher. Earlier versions sealed with AES-256-GCM, which is only opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Cipher {
    GcmSiv,
    Gcm,
}

impl SealFormat {
    /// The first byte of sealed data.
    const fn version(self, cipher: Cipher) -> u8 {
        match (self, cipher) {
            (Self::Token, Cipher::GcmSiv) => 6,
            (Self::Token, Cipher::Gcm) => 1,
            (Self::Live, Cipher::GcmSiv) => 5,
            (Self::Live, Cipher::Gcm) => 2,
            (Self::AtRest, Cipher::GcmSiv) => 134,
            (Self::AtRest, Cipher::Gcm) => 129,
        }
    }

    fn cipher(self, version: u8) -> Option<Cipher> {
        let ciphers = [Cipher::GcmSiv, Cipher::Gcm];
        ciphers
            .into_iter()
            .find(|cipher| self.version(*cipher) == version)
    }
}

/// The options of a [`Sealer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealerOptions {
    /// The name of the service, shared by a fleet. Tokens of another audience are rejected.
    pub audience: String,
    /// The maximum length of a token, in characters. Default 64 Ki.
    pub max_token: usize,
    /// The lifetime of a token. Default one hour.
    pub ttl: Duration,
    /// The lifetime of a flow, over all its rounds. Default one day.
    pub flow_ttl: Duration,
    /// The allowed clock skew between two instances, at most [`Retention::MAX_SKEW`](crate::Retention::MAX_SKEW). Default 30
    /// seconds.
    pub skew: Duration,
}

impl Default for SealerOptions {
    fn default() -> Self {
        Self {
            audience: "refrain".into(),
            max_token: 64 * 1024,
            ttl: Duration::from_secs(3600),
            flow_ttl: Duration::from_secs(24 * 3600),
            skew: Duration::from_secs(30),
        }
    }
}

/// Why a token was rejected. For logs and metrics only: the client must not see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum OpenError {
    /// Longer than the limit, or too short to be a token.
    Length,
    /// Not strict base64url.
    Encoding,
    /// Another format version.
    Version,
    /// The ring has no key with this id.
    UnknownKey,
    /// Modified, or bound to another audience, principal, method, target or arguments.
    Seal,
    /// The token or its flow has expired.
    Expired,
    /// Issued in the future.
    NotYetValid,
    /// The content is not a journal.
    Content,
}

impl std::error::Error for OpenError {}

/// Why a flow could not be sealed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The journal is larger than a token may be.
    #[error(
        "token too large: {size} characters, and the limit is {limit}; the largest entry is {largest}"
    )]
    TooLarge {
        /// The size of the token.
        size: usize,
        /// The limit.
        limit: usize,
        /// The largest entry and its size.
        largest: String,
    },
}

impl SealError {
    fn too_large(size: usize, limit: usize, snapshot: &Snapshot) -> Self {
        let largest = snapshot.largest_part();
        let largest = largest.map(|(name, size)| format!("{name} with {size} bytes"));
        Self::TooLarge {
            size,
            limit,
            largest: largest.unwrap_or_default(),
        }
    }
}

/// Seals flows into tokens and opens them again.
pub struct Sealer {
    options: SealerOptions,
    source: Arc<dyn Source>,
    keys: RwLock<SealerKeys>,
}

struct SealerKeys {
    ring: KeyRing,
    sealing: Arc<SealingKey>,
    /// Keys of other salts: of other instances, and earlier ones of this instance. Only valid tokens add to the cache.
    cache: HashMap<KeyParams, Arc<LessSafeKey>>,
}

/// Selects the ring key, the salt and the cipher of a derived key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct KeyParams {
    key_id: KeyId,
    salt: [u8; SALT_LEN],
    cipher: Cipher,
}

impl SealerKeys {
    fn new(ring: KeyRing, source: &dyn Source) -> Self {
        Self {
            sealing: SealingKey::new(ring.minting(), source),
            ring,
            cache: HashMap::new(),
        }
    }
}

/// The derived key that this instance seals with until its salt is exhausted.
struct SealingKey {
    params: KeyParams,
    key: Arc<LessSafeKey>,
    /// Only for flow ids.
    flow_key: LessSafeKey,
    counter: AtomicU64,
    created: u64,
}

impl SealingKey {
    fn new(key: &RingKey, source: &dyn Source) -> Arc<Self> {
        let mut salt = [0; SALT_LEN];
        source.fill(&mut salt);
        let params = KeyParams {
            key_id: key.id,
            salt,
            cipher: Cipher::GcmSiv,
        };
        Arc::new(Self {
            params,
            key: Arc::new(params.derive(key)),
            flow_key: derive(key, &salt, b"refrain flow id v1", &AES_256_GCM_SIV),
            counter: AtomicU64::new(0),
            created: source.unix_seconds(),
        })
    }

    /// A new flow id, which others cannot predict: it determines the idempotency keys of the flow. It depends on the
    /// binding too, so that two clones of a virtual machine do not give the same id to different calls.
    fn flow_id(&self, now: u64, binding: &Binding) -> FlowId {
        let tag = self
            .flow_key
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(self.next_nonce(now)),
                Aad::from(binding.as_bytes()),
                &mut [],
            )
            .expect("AES-GCM-SIV seals an empty text");
        FlowId::from_digest(tag.as_ref())
    }

    /// The next nonce: the time in seconds, then the next value of the counter.
    fn next_nonce(&self, now: u64) -> [u8; NONCE_LEN] {
        let mut nonce = [0; NONCE_LEN];
        nonce[..4].copy_from_slice(&(now as u32).to_be_bytes());
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        nonce[4..].copy_from_slice(&count.to_be_bytes());
        nonce
    }

    fn is_exhausted(&self, now: u64) -> bool {
        self.counter.load(Ordering::Relaxed) >= MAX_SALT_TOKENS
            || now.abs_diff(self.created) >= MAX_SALT_AGE
    }
}

fn derive(
    key: &RingKey,
    salt: &[u8; SALT_LEN],
    label: &[u8],
    algorithm: &'static Algorithm,
) -> LessSafeKey {
    let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&key.secret);
    let label = [label];
    let okm = prk
        .expand(&label, algorithm)
        .expect("HKDF-SHA256 can derive 32 bytes");
    LessSafeKey::new(UnboundKey::from(okm))
}

impl KeyParams {
    fn derive(&self, key: &RingKey) -> LessSafeKey {
        match self.cipher {
            Cipher::GcmSiv => derive(key, &self.salt, b"refrain token v2", &AES_256_GCM_SIV),
            Cipher::Gcm => derive(key, &self.salt, b"refrain token v1", &AES_256_GCM),
        }
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Sealer {
    /// Makes a sealer that seals with the ring's minting key.
    pub fn new(ring: KeyRing, options: SealerOptions, source: Arc<dyn Source>) -> Self {
        Self {
            options,
            keys: RwLock::new(SealerKeys::new(ring, &*source)),
            source,
        }
    }

    /// Returns the options.
    pub fn options(&self) -> &SealerOptions {
        &self.options
    }

    /// Replaces the key ring. Tokens of removed keys are rejected from now on.
    pub fn reload(&self, ring: KeyRing) {
        let keys = SealerKeys::new(ring, &*self.source);
        *self.keys.write() = keys;
    }

    /// Returns the binding of a call's tokens.
    pub fn bind(
        &self,
        principal: &Principal,
        kind: CallKind,
        target: &str,
        arguments: Option<&Value>,
    ) -> Binding {
        Binding::new(&self.options.audience, principal, kind, target, arguments)
    }

    /// Starts a flow. With a call id, a repeated first request starts the same flow.
    pub fn first(&self, binding: &Binding, call_id: Option<&str>) -> Snapshot {
        let now = self.source.unix_seconds();
        let flow = match call_id {
            Some(call_id) => binding.flow_of_call(call_id),
            None => self.sealing_key(now).flow_id(now, binding),
        };
        Snapshot::first(flow, now.saturating_add(self.options.flow_ttl.as_secs()))
    }

    fn sealing_key(&self, now: u64) -> Arc<SealingKey> {
        {
            let keys = self.keys.read();
            if !keys.sealing.is_exhausted(now) {
                return keys.sealing.clone();
            }
        }
        let mut keys = self.keys.write();
        if keys.sealing.is_exhausted(now) {
            keys.sealing = SealingKey::new(keys.ring.minting(), &*self.source);
        }
        keys.sealing.clone()
    }

    /// Seals bytes for a store. They open only with the same `context`, such as the key of the record.
    pub fn seal_bytes(&self, context: &[u8], content: &[u8]) -> Vec<u8> {
        let (sealing, header) = self.header(SealFormat::AtRest, self.source.unix_seconds());
        let mut bytes = Vec::with_capacity(HEADER_LEN + content.len() + TAG_LEN);
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(content);
        bytes.extend_from_slice(&[0; TAG_LEN]);
        seal_in_place(&sealing, &header, &at_rest_binding(context), &mut bytes);
        bytes
    }

    /// Opens the output of [`seal_bytes`](Self::seal_bytes) with the same `context`.
    pub fn open_bytes(&self, context: &[u8], mut sealed: Vec<u8>) -> Result<Vec<u8>, OpenError> {
        let length = self
            .unseal(SealFormat::AtRest, &at_rest_binding(context), &mut sealed)?
            .len();
        sealed.drain(..HEADER_LEN);
        sealed.truncate(length);
        Ok(sealed)
    }

    /// Returns the current sealing key and the header of the next sealed data.
    fn header(&self, format: SealFormat, now: u64) -> (Arc<SealingKey>, [u8; HEADER_LEN]) {
        let sealing = self.sealing_key(now);
        let mut header = [0; HEADER_LEN];
        let params = &sealing.params;
        header[0] = format.version(params.cipher);
        header[1..5].copy_from_slice(params.key_id.as_bytes());
        header[5..5 + SALT_LEN].copy_from_slice(&params.salt);
        header[5 + SALT_LEN..].copy_from_slice(&sealing.next_nonce(now));
        (sealing, header)
    }

    /// Opens sealed bytes in place and returns the content.
    fn unseal<'a>(
        &self,
        format: SealFormat,
        binding: &[u8],
        bytes: &'a mut [u8],
    ) -> Result<&'a [u8], OpenError> {
        let header: [u8; HEADER_LEN] = bytes
            .get(..HEADER_LEN)
            .and_then(|header| header.try_into().ok())
            .ok_or(OpenError::Length)?;
        let params = KeyParams {
            cipher: format.cipher(header[0]).ok_or(OpenError::Version)?,
            key_id: KeyId::from_slice(&header[1..5]),
            salt: header[5..5 + SALT_LEN].try_into().unwrap_or([0; SALT_LEN]),
        };
        let (key, cached) = self.key_for(&params)?;
        let plain = key
            .open_in_place(nonce(&header), Aad::from(binding), &mut bytes[HEADER_LEN..])
            .map_err(|_| OpenError::Seal)?;
        if !cached {
            self.cache_key(params, key.clone());
        }
        Ok(plain)
    }

    /// Seals a flow for the call it is bound to.
    pub fn seal(
        &self,
        binding: &Binding,
        snapshot: &Snapshot,
        version: &str,
    ) -> Result<String, SealError> {
        self.seal_up_to(binding, snapshot, version, self.options.max_token)
    }

    /// Like [`seal`](Self::seal) with another length limit, for a token that the server stores. Over the limit, nothing is
    /// encoded or sealed.
    pub fn seal_up_to(
        &self,
        binding: &Binding,
        snapshot: &Snapshot,
        version: &str,
        limit: usize,
    ) -> Result<String, SealError> {
        let now = self.source.unix_seconds();
        let claims = Claims {
            issued: now,
            expires: now.saturating_add(self.options.ttl.as_secs()),
            version,
        };
        let mut small = [0; STACK_BUFFER];
        let mut large;
        let journal = &mut small[HEADER_LEN..STACK_BUFFER - TAG_LEN];
        let in_stack = snapshot.encode_to_slice(&claims, journal);
        let length = in_stack.unwrap_or_else(|| snapshot.encoded_len(&claims));
        // Base64 without padding.
        let size = ((HEADER_LEN + length + TAG_LEN) * 4).div_ceil(3);
        if size > limit {
            return Err(SealError::too_large(size, limit, snapshot));
        }
        let (sealing, header) = self.header(SealFormat::Token, now);
        let sealed = match in_stack {
            Some(length) => {
                small[..HEADER_LEN].copy_from_slice(&header);
                &mut small[..HEADER_LEN + length + TAG_LEN]
            }
            None => {
                large = snapshot.encode(&claims, &header, TAG_LEN);
                large.extend_from_slice(&[0; TAG_LEN]);
                &mut large[..]
            }
        };
        seal_in_place(&sealing, &header, binding.as_bytes(), sealed);
        Ok(URL_SAFE_NO_PAD.encode(sealed))
    }

    /// Opens a token that was presented for the call described by `binding`.
    pub fn open(&self, binding: &Binding, token: &str) -> Result<Snapshot, OpenError> {
        if token.len() > self.options.max_token {
            return Err(OpenError::Length);
        }
        self.open_any_length(binding, token)
    }

    /// Like [`open`](Self::open) without a length limit, for a token that the server stored.
    pub fn open_any_length(&self, binding: &Binding, token: &str) -> Result<Snapshot, OpenError> {
        if token.len() < (HEADER_LEN + TAG_LEN) * 4 / 3 {
            return Err(OpenError::Length);
        }
        let mut small = [0; STACK_BUFFER];
        let mut large;
        let sealed = if token.len() <= STACK_BUFFER {
            let length = URL_SAFE_NO_PAD.decode_slice(token, &mut small);
            &mut small[..length.map_err(|_| OpenError::Encoding)?]
        } else {
            large = URL_SAFE_NO_PAD
                .decode(token)
                .map_err(|_| OpenError::Encoding)?;
            &mut large[..]
        };
        let plain = self.unseal(SealFormat::Token, binding.as_bytes(), sealed)?;
        let (claims, snapshot) = Snapshot::decode(plain).ok_or(OpenError::Content)?;
        self.check_time(claims.issued, claims.expires.min(snapshot.deadline))?;
        Ok(snapshot)
    }

    /// Checks that the token is valid now, with the allowed clock skew.
    fn check_time(&self, issued: u64, expires: u64) -> Result<(), OpenError> {
        let now = self.source.unix_seconds();
        let skew = self.options.skew.as_secs();
        if issued > now.saturating_add(skew) {
            return Err(OpenError::NotYetValid);
        }
        if now > expires.saturating_add(skew) {
            return Err(OpenError::Expired);
        }
        Ok(())
    }

    /// Returns the key of sealed data, and whether it was cached.
    fn key_for(&self, params: &KeyParams) -> Result<(Arc<LessSafeKey>, bool), OpenError> {
        let keys = self.keys.read();
        if keys.sealing.params == *params {
            return Ok((keys.sealing.key.clone(), true));
        }
        if let Some(key) = keys.cache.get(params) {
            return Ok((key.clone(), true));
        }
        let key = keys.ring.get(params.key_id).ok_or(OpenError::UnknownKey)?;
        Ok((Arc::new(params.derive(key)), false))
    }

    fn cache_key(&self, params: KeyParams, key: Arc<LessSafeKey>) {
        let mut keys = self.keys.write();
        if keys.ring.get(params.key_id).is_none() {
            return;
        }
        if keys.cache.len() >= MAX_CACHED_KEYS {
            keys.cache.clear();
        }
        keys.cache.insert(params, key);
    }
}

/// The binding of stored data. A call's binding starts with 0, the first byte of a length; a live call's with 2.
fn at_rest_binding(context: &[u8]) -> Vec<u8> {
    [&[AT_REST_BINDING], context].concat()
}

/// Encrypts the bytes between header and tag in place, and writes the tag.
fn seal_in_place(
    sealing: &SealingKey,
    header: &[u8; HEADER_LEN],
    binding: &[u8],
    bytes: &mut [u8],
) {
    let end = bytes.len() - HEADER_LEN - TAG_LEN;
    let (content, tag) = bytes[HEADER_LEN..].split_at_mut(end);
    let sealed = sealing
        .key
        .seal_in_place_separate_tag(nonce(header), Aad::from(binding), content)
        .expect("the content is below the length limit of AES-GCM-SIV");
    tag.copy_from_slice(sealed.as_ref());
}

fn nonce(header: &[u8; HEADER_LEN]) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes.copy_from_slice(&header[HEADER_LEN - NONCE_LEN..]);
    Nonce::assume_unique_for_key(bytes)
}
