//! Types of single settings. Deserializing one checks it; the error continues a sentence that begins with the setting's
//! name.

use clap::ValueEnum;
use serde::de::{Error, SeqAccess, Visitor, value::SeqAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The longest time that can be set: ten years.
const MAX_SECONDS: u64 = 10 * 365 * 24 * 3600;

/// Why the value of a setting is not allowed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub(crate) String);

/// Parses the value of a flag as a setting is parsed.
pub(crate) fn parse<T: TryFrom<String, Error = Invalid>>(text: &str) -> Result<T, Invalid> {
    text.to_owned().try_into()
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase", try_from = "String")]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl TryFrom<String> for LogFormat {
    type Error = Invalid;

    fn try_from(name: String) -> Result<Self, Invalid> {
        ValueEnum::from_str(&name, false)
            .map_err(|_| Invalid(format!("must be \"text\" or \"json\", not {name:?}")))
    }
}

/// An IP address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Address(pub(crate) SocketAddr);

impl TryFrom<String> for Address {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse().map(Self).map_err(|_| {
            let example = "like \"127.0.0.1:8080\" or \"[::1]:8080\"";
            Invalid(match text.parse::<IpAddr>() {
                Ok(_) => format!("has no port: it must be an address and a port, {example}"),
                Err(_) => format!("must be an IP address and a port, {example}"),
            })
        })
    }
}

/// A text that is not blank, as a `T`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", bound(deserialize = "T: From<String>"))]
pub(crate) struct Filled<T>(pub(crate) T);

impl<T: From<String>> TryFrom<String> for Filled<T> {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        if text.trim().is_empty() {
            return Err(Invalid("must not be empty".into()));
        }
        Ok(Self(T::from(text)))
    }
}

impl Filled<String> {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A host to answer for, or `*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Host(pub(crate) String);

impl TryFrom<String> for Host {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        let plain = |c: char| c.is_ascii_graphic() && !"/@?#\\\"".contains(c);
        if text.is_empty() || !text.chars().all(plain) {
            return Err(Invalid(format!(
                "has {text:?}, which is no host: write a name without a scheme and a path, like \"mcp.example.com\", with \
                 a port if only that one is meant"
            )));
        }
        Ok(Self(text))
    }
}

/// At least one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Host>")]
pub(crate) struct Hosts(pub(crate) Vec<Host>);

impl TryFrom<Vec<Host>> for Hosts {
    type Error = Invalid;

    fn try_from(hosts: Vec<Host>) -> Result<Self, Invalid> {
        if hosts.is_empty() {
            let reason = "must name a host, or no request would be answered; \"*\" is any";
            return Err(Invalid(reason.into()));
        }
        Ok(Self(hosts))
    }
}

/// A list of texts. A single text is a list of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct OneOrMore(pub(crate) Vec<Filled<String>>);

impl<'de> Deserialize<'de> for OneOrMore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = OneOrMore;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<OneOrMore, E> {
                let text = Filled::try_from(text.to_owned()).map_err(E::custom)?;
                Ok(OneOrMore(vec![text]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, texts: A) -> Result<OneOrMore, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(texts)).map(OneOrMore)
            }
        }
        deserializer.deserialize_any(Texts)
    }
}

/// A whole number between two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Whole<const MIN: u64, const MAX: u64>(u64);

pub(crate) type Size<const MIN: u64> = Whole<MIN, { i64::MAX as u64 }>;
pub(crate) type Count<const MIN: u64> = Whole<MIN, { u32::MAX as u64 }>;
pub(crate) type Seconds<const MIN: u64> = Whole<MIN, MAX_SECONDS>;
pub(crate) type Millis<const MIN: u64> = Whole<MIN, { MAX_SECONDS * 1000 }>;

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    pub(crate) const fn new(number: u64) -> Self {
        assert!(number >= MIN && number <= MAX);
        Self(number)
    }

    pub(crate) const fn size(self) -> usize {
        self.0 as usize
    }

    pub(crate) const fn seconds(self) -> Duration {
        Duration::from_secs(self.0)
    }

    pub(crate) const fn millis(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl<const MIN: u64> Count<MIN> {
    pub(crate) const fn count(self) -> u32 {
        self.0 as u32
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bounds<const MIN: u64, const MAX: u64>;
        impl<const MIN: u64, const MAX: u64> Visitor<'_> for Bounds<MIN, MAX> {
            type Value = Whole<MIN, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
                self.visit_i128(number.into())
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
                self.visit_i128(number.into())
            }

            fn visit_i128<E: Error>(self, number: i128) -> Result<Self::Value, E> {
                if number < MIN.into() {
                    return Err(E::custom(format!("must be at least {MIN}, not {number}")));
                }
                match u64::try_from(number) {
                    Ok(number) if number <= MAX => Ok(Whole(number)),
                    _ => Err(E::custom(format!("must be at most {MAX}, not {number}"))),
                }
            }
        }
        deserializer.deserialize_any(Bounds)
    }
}
