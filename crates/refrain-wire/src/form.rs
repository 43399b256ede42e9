//! Forms for the user: flat objects of strings, numbers, booleans and choices.

mod check;
mod json;
mod parse;

pub use check::{ContentError, FieldError, InvalidField};
pub use parse::FormError;

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use crate::write::float_as_whole;

/// A form for the user, built from fields or read from a schema. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Form(Arc<FormData>);

#[derive(Debug)]
struct FormData {
    fields: Vec<Field>,
    json: Arc<RawValue>,
    fingerprint: u64,
}

impl Form {
    /// Builds a form from its fields.
    pub fn new(fields: impl IntoIterator<Item = Field>) -> Self {
        let fields: Vec<Field> = fields.into_iter().collect();
        let json = json::schema(&fields);
        Self::with_json(fields, json.into())
    }

    fn with_json(fields: Vec<Field>, json: Arc<RawValue>) -> Self {
        let fingerprint = fnv1a(json.get().as_bytes());
        Self(Arc::new(FormData {
            fields,
            json,
            fingerprint,
        }))
    }

    /// Reads a `requestedSchema` of any revision. The fields keep the order of the properties, and [`Form::json`] returns
    /// the text that was read.
    ///
    /// Keywords that only narrow a value, such as `pattern`, are ignored, because the server checks the answer. A default
    /// that does not match its field is ignored. A reference is an error.
    pub fn parse(schema: &RawValue) -> Result<Self, FormError> {
        let fields = parse::read_fields(schema)?;
        Ok(Self::with_json(fields, schema.to_owned().into()))
    }

    /// The `requestedSchema`.
    #[inline]
    pub fn json(&self) -> &Arc<RawValue> {
        &self.0.json
    }

    /// The fields, in order.
    #[inline]
    pub fn fields(&self) -> &[Field] {
        &self.0.fields
    }

    /// A hash of the schema that is stable across machines and versions.
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        self.0.fingerprint
    }

    /// Validates the content of an answer.
    ///
    /// ```
    /// # use refrain_wire::{Field, Form};
    /// let form = Form::new([Field::integer("age").min(0.0)]);
    /// assert!(form.check(&serde_json::json!({"age": 7})).is_ok());
    /// assert_eq!(
    ///     form.check(&serde_json::json!({"age": -1})).unwrap_err().to_string(),
    ///     "age must be at least 0"
    /// );
    /// ```
    pub fn check(&self, content: &Value) -> Result<(), ContentError> {
        check::check(&self.0.fields, content)
    }

    /// Inserts the defaults of missing fields. Removes null fields without inserting a default: the user left them empty.
    pub fn fill_defaults(&self, content: &mut Map<String, Value>) {
        for field in self.fields() {
            if let Some(default) = field.default_json()
                && !content.contains_key(field.name())
            {
                content.insert(field.name.clone().into_owned(), default);
            }
        }
        content.retain(|_, value| !value.is_null());
    }
}

/// One field of a [`Form`].
#[derive(Debug, Clone)]
pub struct Field {
    name: Cow<'static, str>,
    title: Option<Cow<'static, str>>,
    description: Option<Cow<'static, str>>,
    required: bool,
    kind: FieldKind,
}

/// One choice of a field: the value to send, and an optional title to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    value: Cow<'static, str>,
    title: Option<Cow<'static, str>>,
}

impl Choice {
    /// A choice without a title.
    pub fn new(value: impl Into<Cow<'static, str>>) -> Self {
        Self {
            value: value.into(),
            title: None,
        }
    }

    /// Sets the title.
    pub fn title(mut self, title: impl Into<Cow<'static, str>>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// The value to send.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The title, or else the value.
    pub fn label(&self) -> &str {
        self.title.as_ref().unwrap_or(&self.value)
    }
}

impl From<&'static str> for Choice {
    fn from(value: &'static str) -> Self {
        Self::new(value)
    }
}

/// The type of a field, with its limits and default.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldKind {
    /// A string.
    String {
        /// The required format.
        format: Option<Format>,
        /// The minimum number of characters.
        min: Option<u64>,
        /// The maximum number of characters.
        max: Option<u64>,
        /// The default.
        default: Option<String>,
    },
    /// A number.
    Number {
        /// Whether only integers are valid.
        integer: bool,
        /// The minimum.
        min: Option<f64>,
        /// The maximum.
        max: Option<f64>,
        /// The default.
        default: Option<Number>,
    },
    /// A boolean.
    Boolean {
        /// The default.
        default: Option<bool>,
    },
    /// One of several choices.
    One {
        /// The choices, in order.
        choices: Vec<Choice>,
        /// The value of the default choice.
        default: Option<String>,
    },
    /// Any number of several choices.
    Many {
        /// The choices, in order.
        choices: Vec<Choice>,
        /// The minimum number of choices.
        min: Option<u64>,
        /// The maximum number of choices.
        max: Option<u64>,
        /// The values of the default choices.
        default: Option<Vec<String>>,
    },
}

/// The format of a string field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// An e-mail address.
    Email,
    /// A URI.
    Uri,
    /// A date, as in `2026-07-28`.
    Date,
    /// A date and time, as in `2026-07-28T12:00:00Z`.
    DateTime,
}

impl Field {
    fn new(name: impl Into<Cow<'static, str>>, kind: FieldKind) -> Self {
        Self {
            name: name.into(),
            title: None,
            description: None,
            required: true,
            kind,
        }
    }

    fn text(name: impl Into<Cow<'static, str>>, format: Option<Format>) -> Self {
        Self::new(
            name,
            FieldKind::String {
                format,
                min: None,
                max: None,
                default: None,
            },
        )
    }

    fn numeric(name: impl Into<Cow<'static, str>>, integer: bool) -> Self {
        Self::new(
            name,
            FieldKind::Number {
                integer,
                min: None,
                max: None,
                default: None,
            },
        )
    }

    /// A string.
    pub fn string(name: impl Into<Cow<'static, str>>) -> Self {
        Self::text(name, None)
    }

    /// An e-mail address.
    pub fn email(name: impl Into<Cow<'static, str>>) -> Self {
        Self::text(name, Some(Format::Email))
    }

    /// A URI.
    pub fn uri(name: impl Into<Cow<'static, str>>) -> Self {
        Self::text(name, Some(Format::Uri))
    }

    /// A date, as in `2026-07-28`.
    pub fn date(name: impl Into<Cow<'static, str>>) -> Self {
        Self::text(name, Some(Format::Date))
    }

    /// A date and time, as in `2026-07-28T12:00:00Z`.
    pub fn date_time(name: impl Into<Cow<'static, str>>) -> Self {
        Self::text(name, Some(Format::DateTime))
    }

    /// An integer.
    pub fn integer(name: impl Into<Cow<'static, str>>) -> Self {
        Self::numeric(name, true)
    }

    /// A number.
    pub fn number(name: impl Into<Cow<'static, str>>) -> Self {
        Self::numeric(name, false)
    }

    /// A boolean.
    pub fn boolean(name: impl Into<Cow<'static, str>>) -> Self {
        Self::new(name, FieldKind::Boolean { default: None })
    }

    /// One of these choices.
    pub fn one_of<C: Into<Choice>>(
        name: impl Into<Cow<'static, str>>,
        choices: impl IntoIterator<Item = C>,
    ) -> Self {
        let choices = choices.into_iter().map(Into::into).collect();
        let default = None;
        Self::new(name, FieldKind::One { choices, default })
    }

    /// Any number of these choices.
    pub fn any_of<C: Into<Choice>>(
        name: impl Into<Cow<'static, str>>,
        choices: impl IntoIterator<Item = C>,
    ) -> Self {
        let choices = choices.into_iter().map(Into::into).collect();
        Self::new(
            name,
            FieldKind::Many {
                choices,
                min: None,
                max: None,
                default: None,
            },
        )
    }

    /// The field's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The title, or else the name.
    pub fn label(&self) -> &str {
        self.title.as_ref().unwrap_or(&self.name)
    }

    /// The description.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// Whether the field is required.
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// The type of the field.
    pub fn kind(&self) -> &FieldKind {
        &self.kind
    }

    /// The default as JSON.
    pub fn default_json(&self) -> Option<Value> {
        match &self.kind {
            FieldKind::String { default, .. } | FieldKind::One { default, .. } => {
                default.clone().map(Value::String)
            }
            FieldKind::Number { default, .. } => default.clone().map(Value::Number),
            FieldKind::Boolean { default } => default.map(Value::Bool),
            FieldKind::Many { default, .. } => default.clone().map(Value::from),
        }
    }

    /// Validates the value of this field. `null` is an empty field.
    pub fn check(&self, value: &Value) -> Result<(), FieldError> {
        check::check_field(self, value)
    }

    /// Sets the title.
    pub fn title(mut self, title: impl Into<Cow<'static, str>>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Sets the description.
    pub fn describe(mut self, description: impl Into<Cow<'static, str>>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Makes the field optional.
    pub fn optional(mut self) -> Self {
        self.required = false;
        self
    }

    /// Sets the minimum value, length or number of choices. Ignored for a boolean or a single choice.
    pub fn min(mut self, least: f64) -> Self {
        match &mut self.kind {
            FieldKind::Number { min, .. } => *min = Some(least),
            FieldKind::String { min, .. } | FieldKind::Many { min, .. } => {
                *min = Some(least as u64);
            }
            FieldKind::Boolean { .. } | FieldKind::One { .. } => {}
        }
        self
    }

    /// Sets the maximum value, length or number of choices. Ignored for a boolean or a single choice.
    pub fn max(mut self, most: f64) -> Self {
        match &mut self.kind {
            FieldKind::Number { max, .. } => *max = Some(most),
            FieldKind::String { max, .. } | FieldKind::Many { max, .. } => *max = Some(most as u64),
            FieldKind::Boolean { .. } | FieldKind::One { .. } => {}
        }
        self
    }

    /// Sets the default. Ignores a value of another type.
    pub fn default_value(mut self, value: impl Into<Value>) -> Self {
        let value = value.into();
        match &mut self.kind {
            FieldKind::String { default, .. } | FieldKind::One { default, .. } => {
                *default = value.as_str().map(str::to_owned);
            }
            FieldKind::Number { default, .. } => *default = value.as_number().map(normalize),
            FieldKind::Boolean { default } => *default = value.as_bool(),
            FieldKind::Many { default, .. } => {
                *default = value.as_array().map(|items| {
                    items
                        .iter()
                        .filter_map(|item| item.as_str().map(str::to_owned))
                        .collect()
                });
            }
        }
        self
    }
}

/// Converts a whole float to an integer.
fn normalize(number: &Number) -> Number {
    float_as_whole(number).map_or_else(|| number.clone(), Number::from)
}

/// FNV-1a with 64 bits. Not cryptographic.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
