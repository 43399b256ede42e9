//! A signed token (RFC 7515, RFC 7519): what is looked at before its signature, and what it says.

use super::jwk::NoKey;
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Header, decode_header};
use serde::Deserialize;

/// The longest token that is looked at.
const LONGEST: usize = 16 * 1024;

/// Why a token is not accepted. For the log: clients are told less.
#[derive(Debug, thiserror::Error)]
pub(super) enum Bad {
    #[error("it is longer than {LONGEST} characters")]
    TooLong,
    #[error("its type {0:?} is not that of an access token")]
    Type(String),
    #[error("it demands extensions that are not known here")]
    Critical,
    #[error("it is signed with a secret, which is not accepted")]
    Secret,
    #[error(transparent)]
    Key(#[from] NoKey),
    // Escaped: it may quote the token, and a line of the log must stay one.
    #[error("it is not valid: {:?}", .0.kind())]
    Invalid(#[from] Error),
    #[error("it is for another audience")]
    Audience,
    #[error("it names no subject")]
    Subject,
}

impl Bad {
    /// What the client is told: enough to act on, and nothing about the keys.
    pub(super) fn told(&self) -> &'static str {
        let kind = match self {
            Self::Invalid(error) => error.kind(),
            Self::Audience => return "the token is not for this server",
            Self::Subject => return "the token names no subject",
            _ => return "the token cannot be verified",
        };
        match kind {
            ErrorKind::ExpiredSignature => "the token has expired",
            ErrorKind::ImmatureSignature => "the token is not valid yet",
            ErrorKind::InvalidIssuer => "the token is of another issuer",
            ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => {
                "the token is not for this server"
            }
            _ => "the token cannot be verified",
        }
    }
}

/// The header of a token that may be verified.
pub(super) fn header(token: &str) -> Result<Header, Bad> {
    if token.len() > LONGEST {
        return Err(Bad::TooLong);
    }
    let header = decode_header(token)?;
    // Tokens for other purposes, such as a logout, say so.
    let types = ["JWT", "at+jwt", "application/at+jwt"];
    if let Some(typ) = &header.typ
        && !types.iter().any(|known| known.eq_ignore_ascii_case(typ))
    {
        return Err(Bad::Type(typ.clone()));
    }
    if header.crit.is_some() {
        return Err(Bad::Critical);
    }
    Ok(header)
}

/// The claims that matter, of a token whose signature is right.
#[derive(Deserialize)]
pub(super) struct Claims {
    /// One text: a list of issuers would be accepted otherwise.
    pub(super) iss: String,
    #[serde(default)]
    pub(super) sub: Option<String>,
    #[serde(default)]
    pub(super) aud: Texts,
    /// Seconds since 1970.
    pub(super) exp: f64,
    #[serde(default)]
    pub(super) scope: Option<Texts>,
    #[serde(default)]
    pub(super) scp: Option<Texts>,
}

/// A text, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Default for Texts {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Texts {
    pub(super) fn as_slice(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }
}
