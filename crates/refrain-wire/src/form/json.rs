//! A form as the protocol's schema, with the fields in their order and no other keys.

use super::{Choice, Field, FieldKind, Format};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::value::{RawValue, to_raw_value};

pub(super) fn schema(fields: &[Field]) -> Box<RawValue> {
    to_raw_value(&Schema(fields)).expect("a form is plain strings and numbers")
}

struct Schema<'a>(&'a [Field]);
struct Properties<'a>(&'a [Field]);
struct Required<'a>(&'a [Field]);
struct Values<'a>(&'a [Choice]);
struct Titled<'a>(&'a [Choice]);
struct Items<'a>(&'a [Choice]);

/// A whole number prints without a fraction.
struct Number(f64);

impl Serialize for Schema<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        map.serialize_entry("type", "object")?;
        map.serialize_entry("properties", &Properties(self.0))?;
        if self.0.iter().any(|field| field.required) {
            map.serialize_entry("required", &Required(self.0))?;
        }
        map.end()
    }
}

impl Serialize for Properties<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.0.iter().map(|field| (&field.name, field)))
    }
}

impl Serialize for Required<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.iter().filter(|f| f.required).map(|f| &f.name))
    }
}

impl Serialize for Values<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.iter().map(|choice| &choice.value))
    }
}

impl Serialize for Titled<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut seq = s.serialize_seq(Some(self.0.len()))?;
        for choice in self.0 {
            seq.serialize_element(&TitledChoice(choice))?;
        }
        seq.end()
    }
}

struct TitledChoice<'a>(&'a Choice);

impl Serialize for TitledChoice<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(2))?;
        map.serialize_entry("const", &self.0.value)?;
        map.serialize_entry("title", self.0.title.as_ref().unwrap_or(&self.0.value))?;
        map.end()
    }
}

impl Serialize for Items<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        if titled(self.0) {
            map.serialize_entry("anyOf", &Titled(self.0))?;
        } else {
            map.serialize_entry("type", "string")?;
            map.serialize_entry("enum", &Values(self.0))?;
        }
        map.end()
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 && self.0.abs() < 9e15 {
            s.serialize_i64(self.0 as i64)
        } else {
            s.serialize_f64(self.0)
        }
    }
}

fn titled(choices: &[Choice]) -> bool {
    choices.iter().any(|choice| choice.title.is_some())
}

fn optional<M: SerializeMap, T: Serialize>(
    map: &mut M,
    key: &'static str,
    value: Option<&T>,
) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(key, value))
}

impl Serialize for Field {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        let name = match &self.kind {
            FieldKind::String { .. } | FieldKind::One { .. } => "string",
            FieldKind::Number { integer: true, .. } => "integer",
            FieldKind::Number { .. } => "number",
            FieldKind::Boolean { .. } => "boolean",
            FieldKind::Many { .. } => "array",
        };
        map.serialize_entry("type", name)?;
        if let FieldKind::One { choices, .. } = &self.kind {
            if titled(choices) {
                map.serialize_entry("oneOf", &Titled(choices))?;
            } else {
                map.serialize_entry("enum", &Values(choices))?;
            }
        }
        optional(&mut map, "title", self.title.as_ref())?;
        optional(&mut map, "description", self.description.as_ref())?;
        match &self.kind {
            FieldKind::String {
                format,
                min,
                max,
                default,
            } => {
                optional(&mut map, "format", format.map(Format::name).as_ref())?;
                optional(&mut map, "minLength", min.as_ref())?;
                optional(&mut map, "maxLength", max.as_ref())?;
                optional(&mut map, "default", default.as_ref())?;
            }
            FieldKind::Number {
                min, max, default, ..
            } => {
                optional(&mut map, "minimum", min.map(Number).as_ref())?;
                optional(&mut map, "maximum", max.map(Number).as_ref())?;
                optional(&mut map, "default", default.as_ref())?;
            }
            FieldKind::Boolean { default } => optional(&mut map, "default", default.as_ref())?,
            FieldKind::One { default, .. } => optional(&mut map, "default", default.as_ref())?,
            FieldKind::Many {
                choices,
                min,
                max,
                default,
            } => {
                map.serialize_entry("items", &Items(choices))?;
                optional(&mut map, "minItems", min.as_ref())?;
                optional(&mut map, "maxItems", max.as_ref())?;
                optional(&mut map, "default", default.as_ref())?;
            }
        }
        map.end()
    }
}

impl Format {
    const ALL: [Self; 4] = [Self::Email, Self::Uri, Self::Date, Self::DateTime];

    /// The format of this name.
    pub(super) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Its name in a schema.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Uri => "uri",
            Self::Date => "date",
            Self::DateTime => "date-time",
        }
    }
}
