//! Validation of a submitted form.

use super::{Choice, Field, FieldKind, Format};
use crate::Excerpt;
use serde_json::Value;

/// The number of invalid fields that an error message names.
const MAX_LISTED: usize = 10;

/// Invalid content of a form.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ContentError {
    /// The content is not an object.
    #[error("the content must be an object")]
    NotAnObject,
    /// The values of these fields are invalid.
    #[error("{}", join_errors(.0))]
    Fields(Vec<InvalidField>),
}

/// A field whose value is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{name} {source}")]
pub struct InvalidField {
    /// The name of the field.
    pub name: String,
    /// The error.
    pub source: FieldError,
}

/// An invalid value of a field.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldError {
    /// The field is required and has no value.
    #[error("is required")]
    Required,
    /// The value has the wrong type.
    #[error("must be {0}")]
    Type(&'static str),
    /// The number is below the minimum.
    #[error("must be at least {0}")]
    TooSmall(f64),
    /// The number is above the maximum.
    #[error("must be at most {0}")]
    TooLarge(f64),
    /// There are too few characters or choices.
    #[error("needs at least {min} {}", counted(*min, unit))]
    TooFew {
        /// The minimum.
        min: u64,
        /// The unit: characters or choices.
        unit: &'static str,
    },
    /// There are too many characters or choices.
    #[error("takes at most {max} {}", counted(*max, unit))]
    TooMany {
        /// The maximum.
        max: u64,
        /// The unit: characters or choices.
        unit: &'static str,
    },
    /// The value is not one of these choices.
    #[error("must be one of {}", .0.join(", "))]
    NotAChoice(Vec<String>),
    /// The string does not have the format.
    #[error("must have the format {}", .0.name())]
    Format(Format),
}

/// The unit, in the singular for 1.
fn counted(count: u64, unit: &'static str) -> &'static str {
    match count {
        1 => unit.strip_suffix('s').unwrap_or(unit),
        _ => unit,
    }
}

pub(super) fn check(fields: &[Field], content: &Value) -> Result<(), ContentError> {
    let content = content.as_object().ok_or(ContentError::NotAnObject)?;
    let invalid = fields.iter().filter_map(|field| {
        let value = content.get(field.name.as_ref()).unwrap_or(&Value::Null);
        let source = check_field(field, value).err()?;
        let name = field.name.to_string();
        Some(InvalidField { name, source })
    });
    let invalid: Vec<InvalidField> = invalid.collect();
    match invalid.is_empty() {
        true => Ok(()),
        false => Err(ContentError::Fields(invalid)),
    }
}

/// The errors in one line, shortened after [`MAX_LISTED`] fields.
fn join_errors(invalid: &[InvalidField]) -> String {
    let shown = invalid.iter().take(MAX_LISTED);
    let shown: Vec<String> = shown.map(|field| Excerpt(field).to_string()).collect();
    let mut listed = shown.join("; ");
    if let Some(more @ 1..) = invalid.len().checked_sub(MAX_LISTED) {
        listed.push_str(&format!("; and {more} more"));
    }
    listed
}

/// Validates the value of one field. Null is an empty field.
pub(super) fn check_field(field: &Field, value: &Value) -> Result<(), FieldError> {
    match value {
        Value::Null if field.required => Err(FieldError::Required),
        Value::Null => Ok(()),
        _ => check_value(&field.kind, value),
    }
}

fn check_value(kind: &FieldKind, value: &Value) -> Result<(), FieldError> {
    match kind {
        FieldKind::String {
            format, min, max, ..
        } => {
            let text = value.as_str().ok_or(FieldError::Type("a string"))?;
            check_count(text.chars().count(), *min, *max, "characters")?;
            match format {
                Some(format) if !format.matches(text) => Err(FieldError::Format(*format)),
                _ => Ok(()),
            }
        }
        FieldKind::Number {
            integer, min, max, ..
        } => {
            let expected = if *integer {
                "a whole number"
            } else {
                "a number"
            };
            let number = value.as_f64().ok_or(FieldError::Type(expected))?;
            if *integer && number.fract() != 0.0 {
                return Err(FieldError::Type(expected));
            }
            match (min, max) {
                (Some(min), _) if number < *min => Err(FieldError::TooSmall(*min)),
                (_, Some(max)) if number > *max => Err(FieldError::TooLarge(*max)),
                _ => Ok(()),
            }
        }
        FieldKind::Boolean { .. } => value
            .as_bool()
            .map(drop)
            .ok_or(FieldError::Type("true or false")),
        FieldKind::One { choices, .. } => check_choice(choices, value),
        FieldKind::Many {
            choices, min, max, ..
        } => {
            let items = value
                .as_array()
                .ok_or(FieldError::Type("a list of choices"))?;
            check_count(items.len(), *min, *max, "choices")?;
            items
                .iter()
                .try_for_each(|item| check_choice(choices, item))
        }
    }
}

fn check_choice(choices: &[Choice], value: &Value) -> Result<(), FieldError> {
    if value
        .as_str()
        .is_some_and(|value| choices.iter().any(|choice| choice.value == value))
    {
        return Ok(());
    }
    let names = choices.iter().map(|choice| choice.value.to_string());
    Err(FieldError::NotAChoice(names.collect()))
}

fn check_count(
    count: usize,
    min: Option<u64>,
    max: Option<u64>,
    unit: &'static str,
) -> Result<(), FieldError> {
    let count = count as u64;
    match (min, max) {
        (Some(min), _) if count < min => Err(FieldError::TooFew { min, unit }),
        (_, Some(max)) if count > max => Err(FieldError::TooMany { max, unit }),
        _ => Ok(()),
    }
}

/// Whether the text is a local part, an @ and a host.
fn is_email(text: &str) -> bool {
    let Some((local, host)) = text.rsplit_once('@') else {
        return false;
    };
    let is_valid =
        |part: &str| !part.is_empty() && !part.chars().any(|c| c.is_whitespace() || c.is_control());
    is_valid(local) && is_valid(host) && !host.starts_with('.') && !host.ends_with('.')
}

/// Whether the text is a scheme, a colon and a rest without white space.
fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let mut letters = scheme.chars();
    letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        && !rest.is_empty()
        && !rest.chars().any(|c| c.is_whitespace() || c.is_control())
}

fn to_int(text: &str, digits: usize) -> Option<u32> {
    let is_valid = text.len() == digits && text.bytes().all(|b| b.is_ascii_digit());
    is_valid.then(|| text.parse().ok()).flatten()
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts[..] else {
        return false;
    };
    let (Some(year), Some(month), Some(day)) = (to_int(year, 4), to_int(month, 2), to_int(day, 2))
    else {
        return false;
    };
    let is_leap_year = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap_year => 29,
        2 => 28,
        1..=12 => 31,
        _ => return false,
    };
    (1..=days).contains(&day)
}

fn is_date_time(text: &str) -> bool {
    let Some((day, time)) = text.split_once(['T', 't']) else {
        return false;
    };
    let Some(end) = time.find(['Z', 'z', '+', '-']) else {
        return false;
    };
    let (clock, zone) = time.split_at(end);
    let is_valid_zone = matches!(zone, "Z" | "z") || is_hours_and_minutes(&zone[1..]);
    let (whole, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let is_valid_fraction = !fraction.is_empty() && fraction.bytes().all(|b| b.is_ascii_digit());
    let is_valid_clock = whole.rsplit_once(':').is_some_and(|(hm, seconds)| {
        is_hours_and_minutes(hm) && to_int(seconds, 2).is_some_and(|s| s <= 60)
    });
    is_date(day) && is_valid_zone && is_valid_fraction && is_valid_clock
}

fn is_hours_and_minutes(text: &str) -> bool {
    text.split_once(':').is_some_and(|(hours, minutes)| {
        to_int(hours, 2).is_some_and(|h| h < 24) && to_int(minutes, 2).is_some_and(|m| m < 60)
    })
}

impl Format {
    const ALL: [Self; 4] = [Self::Email, Self::Uri, Self::Date, Self::DateTime];

    /// The format with this name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// The name in a schema.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Uri => "uri",
            Self::Date => "date",
            Self::DateTime => "date-time",
        }
    }

    fn matches(self, text: &str) -> bool {
        match self {
            Self::Email => is_email(text),
            Self::Uri => is_uri(text),
            Self::Date => is_date(text),
            Self::DateTime => is_date_time(text),
        }
    }
}
