//! Forms for a person to fill in: flat objects of strings, numbers, booleans and choices.

mod check;
mod json;
mod parse;

pub use check::{ContentError, FieldError};
pub use parse::FormError;

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use crate::write::as_whole;

/// A form: a flat object whose fields are filled in by a person. Built from its fields, or read from a schema. Cloning
/// it is cheap.
#[derive(Debug, Clone)]
pub struct Form(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fields: Vec<Field>,
    json: Arc<RawValue>,
    fingerprint: u64,
}

impl Form {
    /// A form of these fields, in this order.
    pub fn new(fields: impl IntoIterator<Item = Field>) -> Self {
        let fields: Vec<Field> = fields.into_iter().collect();
        let json = json::schema(&fields);
        Self::with_json(fields, json.into())
    }

    fn with_json(fields: Vec<Field>, json: Arc<RawValue>) -> Self {
        let fingerprint = fnv1a(json.get().as_bytes());
        Self(Arc::new(Inner {
            fields,
            json,
            fingerprint,
        }))
    }

    /// Reads a `requestedSchema` of this or an earlier revision. The fields have the order of its properties, and
    /// [`Form::json`] is the text that was read.
    ///
    /// A keyword that only narrows a value further, such as `pattern`, is left to the server, which checks the answer
    /// anyway. A default that does not fit its field is ignored. A reference is an error, and is never followed.
    pub fn parse(schema: &RawValue) -> Result<Self, FormError> {
        let fields = parse::fields(schema)?;
        Ok(Self::with_json(fields, schema.to_owned().into()))
    }

    /// The `requestedSchema` that is sent.
    #[inline]
    pub fn json(&self) -> &Arc<RawValue> {
        &self.0.json
    }

    /// The fields, in order.
    #[inline]
    pub fn fields(&self) -> &[Field] {
        &self.0.fields
    }

    /// A hash of the schema, the same on every machine and in every version.
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        self.0.fingerprint
    }

    /// Checks the content of an answer.
    ///
    /// ```
    /// # use refrain_wire::{Field, Form};
    /// let form = Form::new([Field::integer("age").min(0.0)]);
    /// assert!(form.check(&serde_json::json!({"age": 7})).is_ok());
    /// assert_eq!(
    ///     form.check(&serde_json::json!({"age": -1})).unwrap_err().to_string(),
    ///     "age: must be at least 0"
    /// );
    /// ```
    pub fn check(&self, content: &Value) -> Result<(), ContentError> {
        check::check(&self.0.fields, content)
    }

    /// Inserts the defaults of missing fields. A field that is null was left out on purpose: it is removed, without a
    /// default.
    pub fn fill_defaults(&self, content: &mut Map<String, Value>) {
        for field in self.fields() {
            if let Some(default) = field.preset()
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

/// One choice of a field: the value that is sent, and a title to show for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    value: Cow<'static, str>,
    title: Option<Cow<'static, str>>,
}

impl Choice {
    /// A choice that shows as its value.
    pub fn new(value: impl Into<Cow<'static, str>>) -> Self {
        Self {
            value: value.into(),
            title: None,
        }
    }

    /// A title to show in place of the value.
    pub fn title(mut self, title: impl Into<Cow<'static, str>>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// The value that is sent.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The title, or the value without one.
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
    /// A text.
    String {
        /// The format it must have.
        format: Option<Format>,
        /// The least number of characters.
        min: Option<u64>,
        /// The greatest number of characters.
        max: Option<u64>,
        /// The default.
        default: Option<String>,
    },
    /// A number.
    Number {
        /// Whether it must be whole.
        integer: bool,
        /// The least number.
        min: Option<f64>,
        /// The greatest number.
        max: Option<f64>,
        /// The default.
        default: Option<Number>,
    },
    /// Yes or no.
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
        /// The least count of choices.
        min: Option<u64>,
        /// The greatest count of choices.
        max: Option<u64>,
        /// The values of the default choices.
        default: Option<Vec<String>>,
    },
}

/// The formats a string field can have.
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

    /// A whole number.
    pub fn integer(name: impl Into<Cow<'static, str>>) -> Self {
        Self::numeric(name, true)
    }

    /// A number.
    pub fn number(name: impl Into<Cow<'static, str>>) -> Self {
        Self::numeric(name, false)
    }

    /// Yes or no.
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

    /// The title, or the name without one.
    pub fn label(&self) -> &str {
        self.title.as_ref().unwrap_or(&self.name)
    }

    /// The description.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// Whether it must be filled in.
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// The type of the field.
    pub fn kind(&self) -> &FieldKind {
        &self.kind
    }

    /// The default, as it would be sent.
    pub fn preset(&self) -> Option<Value> {
        match &self.kind {
            FieldKind::String { default, .. } | FieldKind::One { default, .. } => {
                default.clone().map(Value::String)
            }
            FieldKind::Number { default, .. } => default.clone().map(Value::Number),
            FieldKind::Boolean { default } => default.map(Value::Bool),
            FieldKind::Many { default, .. } => default.clone().map(Value::from),
        }
    }

    /// Checks the value of this field alone; `null` is an empty field.
    pub fn check(&self, value: &Value) -> Result<(), FieldError> {
        check::field(self, value)
    }

    /// A title to show.
    pub fn title(mut self, title: impl Into<Cow<'static, str>>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// The description.
    pub fn describe(mut self, description: impl Into<Cow<'static, str>>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// The field may be left out.
    pub fn optional(mut self) -> Self {
        self.required = false;
        self
    }

    /// The least number, length or count of choices. On a boolean or a single choice it has no meaning and is ignored.
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

    /// The greatest number, length or count of choices. On a boolean or a single choice it has no meaning and is ignored.
    pub fn max(mut self, most: f64) -> Self {
        match &mut self.kind {
            FieldKind::Number { max, .. } => *max = Some(most),
            FieldKind::String { max, .. } | FieldKind::Many { max, .. } => *max = Some(most as u64),
            FieldKind::Boolean { .. } | FieldKind::One { .. } => {}
        }
        self
    }

    /// The default. A value of another type is ignored.
    pub fn default_value(mut self, value: impl Into<Value>) -> Self {
        let value = value.into();
        match &mut self.kind {
            FieldKind::String { default, .. } | FieldKind::One { default, .. } => {
                *default = value.as_str().map(str::to_owned);
            }
            FieldKind::Number { default, .. } => *default = value.as_number().map(plain),
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

/// A number as it is sent: without a fraction if it is whole.
fn plain(number: &Number) -> Number {
    let whole = number
        .as_f64()
        .filter(|_| number.is_f64())
        .and_then(as_whole);
    whole.map_or_else(|| number.clone(), Number::from)
}

/// FNV-1a, 64 bits: short, the same on every machine, and no secret depends on it.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
