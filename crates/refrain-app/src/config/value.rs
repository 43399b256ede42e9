//! Types of single settings, checked when they are deserialized. Their errors continue a sentence that begins with the
//! name of the setting.

use clap::ValueEnum;
use refrain::server::ServerBuilder;
use serde::de::{Error, SeqAccess, Visitor, value::SeqAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The longest duration: ten years.
const MAX_SECONDS: u64 = 10 * 365 * 24 * 3600;

/// Why a value is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(pub(crate) String);

/// Parses the value of a flag like a setting.
pub(crate) fn parse<T: TryFrom<String, Error = InvalidValue>>(
    text: &str,
) -> Result<T, InvalidValue> {
    let parsed = text.to_owned().try_into();
    // The message of a flag does not begin with the name of a setting.
    parsed.map_err(|InvalidValue(reason): InvalidValue| {
        let expected = reason.strip_prefix("must be ");
        let expected = expected.or_else(|| Some(reason.split_once(": expected ")?.1));
        InvalidValue(expected.map_or(reason.clone(), |expected| format!("expected {expected}")))
    })
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase", try_from = "String")]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl TryFrom<String> for LogFormat {
    type Error = InvalidValue;

    fn try_from(name: String) -> Result<Self, InvalidValue> {
        ValueEnum::from_str(&name, false)
            .map_err(|_| InvalidValue(format!("must be \"text\" or \"json\", not {name:?}")))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Address(pub(crate) SocketAddr);

impl TryFrom<String> for Address {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse().map(Self).map_err(|_| {
            let example = "like \"127.0.0.1:8080\" or \"[::1]:8080\"";
            let port = text.rsplit_once(':').map(|(_, port)| port);
            let is_large =
                |port: &&str| port.parse::<u32>().is_ok_and(|port| port > u16::MAX.into());
            InvalidValue(match (text.parse::<IpAddr>(), port.filter(is_large)) {
                (Ok(_), _) => format!("must have a port after the address, {example}"),
                (_, Some(port)) => format!("must have a port of at most 65535, not {port}"),
                _ => format!("must be an IP address and a port, {example}"),
            })
        })
    }
}

/// A string that is not blank, converted to a `T`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", bound(deserialize = "T: From<String>"))]
pub(crate) struct NonBlank<T>(pub(crate) T);

impl<T: From<String>> TryFrom<String> for NonBlank<T> {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        if text.trim().is_empty() {
            return Err(InvalidValue("must not be empty".into()));
        }
        Ok(Self(T::from(text)))
    }
}

impl NonBlank<String> {
    /// Parses the value of a flag.
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidValue> {
        text.to_owned().try_into()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A value of the `Host` header, or `*` for any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Host(pub(crate) String);

impl TryFrom<String> for Host {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        let plain = |c: char| c.is_ascii_graphic() && !"/@?#\\\"".contains(c);
        if text.is_empty() || !text.chars().all(plain) {
            return Err(InvalidValue(format!(
                "has an invalid host {text:?}: expected a host name without scheme and path, like \"mcp.example.com\", or \
                 with a port to accept only that port"
            )));
        }
        Ok(Self(text))
    }
}

/// A value of the `Origin` header, or `*` for any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Origin(pub(crate) String);

impl TryFrom<String> for Origin {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        let host = text.split_once("://").map(|(_, host)| host.to_owned());
        if text != "*" && host.is_none_or(|host| Host::try_from(host).is_err()) {
            return Err(InvalidValue(format!(
                "has an invalid origin {text:?}: expected a scheme and a host without a path, like \
                 \"https://app.example.com\", and a port if it is not the default one"
            )));
        }
        Ok(Self(text))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct HeaderName(pub(crate) String);

impl TryFrom<String> for HeaderName {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if text.is_empty() || !text.chars().all(plain) {
            let reason = "must be the name of a header, like \"x-forwarded-for\"";
            return Err(InvalidValue(reason.into()));
        }
        Ok(Self(text))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Host>")]
pub(crate) struct Hosts(pub(crate) Vec<Host>);

impl TryFrom<Vec<Host>> for Hosts {
    type Error = InvalidValue;

    fn try_from(hosts: Vec<Host>) -> Result<Self, InvalidValue> {
        if hosts.is_empty() {
            let reason =
                "must not be empty: every request would be rejected; \"*\" accepts any host";
            return Err(InvalidValue(reason.into()));
        }
        Ok(Self(hosts))
    }
}

/// A list of strings, or a single string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct OneOrMore(pub(crate) Vec<NonBlank<String>>);

impl<'de> Deserialize<'de> for OneOrMore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringsVisitor;
        impl<'de> Visitor<'de> for StringsVisitor {
            type Value = OneOrMore;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<OneOrMore, E> {
                let text = NonBlank::try_from(text.to_owned()).map_err(E::custom)?;
                Ok(OneOrMore(vec![text]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, texts: A) -> Result<OneOrMore, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(texts)).map(OneOrMore)
            }
        }
        deserializer.deserialize_any(StringsVisitor)
    }
}

/// A whole number between two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BoundedInt<const MIN: u64, const MAX: u64>(u64);

pub(crate) type Size<const MIN: u64> = BoundedInt<MIN, { i64::MAX as u64 }>;
pub(crate) type Count<const MIN: u64> = BoundedInt<MIN, { u32::MAX as u64 }>;
pub(crate) type Seconds<const MIN: u64> = BoundedInt<MIN, MAX_SECONDS>;
pub(crate) type ClockSkew = BoundedInt<0, { ServerBuilder::MAX_CLOCK_SKEW.as_secs() }>;
pub(crate) type Millis<const MIN: u64> = BoundedInt<MIN, { MAX_SECONDS * 1000 }>;

impl<const MIN: u64, const MAX: u64> BoundedInt<MIN, MAX> {
    pub(crate) const fn new(number: u64) -> Self {
        assert!(number >= MIN && number <= MAX);
        Self(number)
    }
}

impl<const MIN: u64> From<Size<MIN>> for usize {
    fn from(size: Size<MIN>) -> Self {
        size.0 as Self
    }
}

impl<const MIN: u64> From<Count<MIN>> for u32 {
    fn from(count: Count<MIN>) -> Self {
        count.0 as Self
    }
}

impl<const MIN: u64> From<Seconds<MIN>> for Duration {
    fn from(seconds: Seconds<MIN>) -> Self {
        Self::from_secs(seconds.0)
    }
}

impl From<ClockSkew> for Duration {
    fn from(seconds: ClockSkew) -> Self {
        Self::from_secs(seconds.0)
    }
}

impl<const MIN: u64> From<Millis<MIN>> for Duration {
    fn from(millis: Millis<MIN>) -> Self {
        Self::from_millis(millis.0)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for BoundedInt<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BoundedIntVisitor<const MIN: u64, const MAX: u64>;
        impl<const MIN: u64, const MAX: u64> Visitor<'_> for BoundedIntVisitor<MIN, MAX> {
            type Value = BoundedInt<MIN, MAX>;

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
                    Ok(number) if number <= MAX => Ok(BoundedInt(number)),
                    _ => Err(E::custom(format!("must be at most {MAX}, not {number}"))),
                }
            }
        }
        deserializer.deserialize_any(BoundedIntVisitor)
    }
}
