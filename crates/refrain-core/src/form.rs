//! The forms a handler can ask to have filled in.
//!
//! A [`Form`] is the protocol's form schema and nothing else: a flat object of strings, numbers, booleans and
//! choices. It is built once for each type, together with its JSON and a fingerprint of it.

mod check;
mod json;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Arc;

/// A type that a form can be asked for. Derive it with `#[derive(Elicit)]`, or write it by hand:
///
/// ```
/// use refrain_core::{Elicit, Field, Form};
/// use std::sync::OnceLock;
///
/// #[derive(serde::Deserialize)]
/// struct Login { name: String }
///
/// impl Elicit for Login {
///     fn form() -> &'static Form {
///         static FORM: OnceLock<Form> = OnceLock::new();
///         FORM.get_or_init(|| Form::new([Field::string("name").describe("GitHub user name")]))
///     }
/// }
/// assert_eq!(
///     Login::form().json().get(),
///     r#"{"type":"object","properties":{"name":{"type":"string","description":"GitHub user name"}},"required":["name"]}"#
/// );
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a form",
    note = "a form is a struct of strings, numbers, booleans and choices that derives Deserialize and Elicit; an enum is a field of one, so put it into a struct"
)]
pub trait Elicit: DeserializeOwned {
    /// The form that is sent. It must be the same each time.
    fn form() -> &'static Form;
}

/// An enum whose variants are the choices of a form's field. Derived with `#[derive(Elicit)]` on an enum.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of a form",
    note = "a form is flat: a field is a String, bool, number, an enum that derives Elicit, a Vec of such an enum, or an Option of one of these"
)]
pub trait ElicitEnum: DeserializeOwned {
    /// The choices, in order.
    fn choices() -> Vec<Choice>;
}

/// A form: a flat object whose fields are filled in by a person. Cloning it is cheap.
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
        let json: Arc<RawValue> = json::schema(&fields).into();
        let fingerprint = fnv1a(json.get().as_bytes());
        Self(Arc::new(Inner {
            fields,
            json,
            fingerprint,
        }))
    }

    /// The `requestedSchema` that is sent.
    pub fn json(&self) -> &Arc<RawValue> {
        &self.0.json
    }

    /// The fields, in order.
    pub fn fields(&self) -> &[Field] {
        &self.0.fields
    }

    /// Tells one schema from another in a journal.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.0.fingerprint
    }

    /// Checks the content of an answer, and says what is wrong with it.
    ///
    /// ```
    /// # use refrain_core::{Field, Form};
    /// let form = Form::new([Field::integer("age").min(0.0)]);
    /// assert!(form.check(&serde_json::json!({"age": 7})).is_ok());
    /// assert_eq!(
    ///     form.check(&serde_json::json!({"age": -1})).unwrap_err(),
    ///     "age: must be at least 0"
    /// );
    /// ```
    pub fn check(&self, content: &Value) -> Result<(), String> {
        check::check(&self.0.fields, content)
    }
}

/// One field of a [`Form`].
#[derive(Debug, Clone)]
pub struct Field {
    name: Cow<'static, str>,
    title: Option<Cow<'static, str>>,
    description: Option<Cow<'static, str>>,
    required: bool,
    kind: Kind,
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

    /// What to show in place of the value.
    pub fn title(mut self, title: impl Into<Cow<'static, str>>) -> Self {
        self.title = Some(title.into());
        self
    }
}

impl From<&'static str> for Choice {
    fn from(value: &'static str) -> Self {
        Self::new(value)
    }
}

#[derive(Debug, Clone)]
enum Kind {
    String {
        format: Option<Format>,
        min: Option<u64>,
        max: Option<u64>,
        default: Option<String>,
    },
    Number {
        integer: bool,
        min: Option<f64>,
        max: Option<f64>,
        default: Option<f64>,
    },
    Boolean {
        default: Option<bool>,
    },
    One {
        choices: Vec<Choice>,
        default: Option<String>,
    },
    Many {
        choices: Vec<Choice>,
        min: Option<u64>,
        max: Option<u64>,
        default: Option<Vec<String>>,
    },
}

/// The formats a string field can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Email,
    Uri,
    Date,
    DateTime,
}

impl Field {
    fn new(name: impl Into<Cow<'static, str>>, kind: Kind) -> Self {
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
            Kind::String {
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
            Kind::Number {
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
        Self::new(name, Kind::Boolean { default: None })
    }

    /// One of these choices.
    pub fn one_of<C: Into<Choice>>(
        name: impl Into<Cow<'static, str>>,
        choices: impl IntoIterator<Item = C>,
    ) -> Self {
        let choices = choices.into_iter().map(Into::into).collect();
        Self::new(
            name,
            Kind::One {
                choices,
                default: None,
            },
        )
    }

    /// Any number of these choices.
    pub fn any_of<C: Into<Choice>>(
        name: impl Into<Cow<'static, str>>,
        choices: impl IntoIterator<Item = C>,
    ) -> Self {
        let choices = choices.into_iter().map(Into::into).collect();
        Self::new(
            name,
            Kind::Many {
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

    /// A title to show.
    pub fn title(mut self, title: impl Into<Cow<'static, str>>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// What the field is for.
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
            Kind::Number { min, .. } => *min = Some(least),
            Kind::String { min, .. } | Kind::Many { min, .. } => *min = Some(least as u64),
            Kind::Boolean { .. } | Kind::One { .. } => {}
        }
        self
    }

    /// The greatest number, length or count of choices. On a boolean or a single choice it has no meaning and is ignored.
    pub fn max(mut self, most: f64) -> Self {
        match &mut self.kind {
            Kind::Number { max, .. } => *max = Some(most),
            Kind::String { max, .. } | Kind::Many { max, .. } => *max = Some(most as u64),
            Kind::Boolean { .. } | Kind::One { .. } => {}
        }
        self
    }

    /// The value the client may fill in beforehand. A value of another type than the field's is ignored.
    pub fn default_value(mut self, value: impl Into<Value>) -> Self {
        let value = value.into();
        match &mut self.kind {
            Kind::String { default, .. } | Kind::One { default, .. } => {
                *default = value.as_str().map(str::to_owned);
            }
            Kind::Number { default, .. } => *default = value.as_f64(),
            Kind::Boolean { default } => *default = value.as_bool(),
            Kind::Many { default, .. } => {
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

/// FNV-1a, 64 bits: short, the same on every machine, and no secret depends on it.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
