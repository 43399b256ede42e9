//! Types that have a form, which a handler can ask for.

use refrain_wire::{Choice, Form};
use serde::de::DeserializeOwned;

/// A type with a form, which [`Cx::elicit`](crate::Cx::elicit) asks for. Derive it with `#[derive(Elicit)]`, or implement
/// it:
///
/// ```
/// use refrain::ask::{Field, Form};
/// use refrain::prelude::*;
/// use std::sync::OnceLock;
///
/// #[derive(Deserialize)]
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
    note = "a form is a struct that derives Deserialize and Elicit, with fields of strings, numbers, booleans and enums; put an enum into a struct"
)]
pub trait Elicit: DeserializeOwned {
    /// Returns the form to send. It must be the same each time.
    fn form() -> &'static Form;
}

/// An enum whose variants are the choices of a form field. Derive it with `#[derive(Elicit)]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of a form",
    note = "a form is flat: a field is a String, a bool, a number, an enum that derives Elicit, a Vec of such an enum, or an Option of one of these"
)]
pub trait ElicitEnum: DeserializeOwned {
    /// The names of the choices, with which `#[derive(Elicit)]` checks the defaults of fields. Empty: they are not checked.
    const NAMES: &'static [&'static str] = &[];
    /// Returns the choices, in order.
    fn choices() -> Vec<Choice>;
}

/// Returns whether `E` has a choice with this name, or does not list its names. For `#[derive(Elicit)]`.
pub const fn is_choice<E: ElicitEnum>(name: &str) -> bool {
    let names = E::NAMES;
    let mut i = 0;
    while i < names.len() {
        if same_bytes(names[i].as_bytes(), name.as_bytes()) {
            return true;
        }
        i += 1;
    }
    names.is_empty()
}

/// Equality in constants, where `==` on strings is not available.
const fn same_bytes(mut one: &[u8], mut other: &[u8]) -> bool {
    while let ([a, rest_of_one @ ..], [b, rest_of_other @ ..]) = (one, other) {
        if *a != *b {
            return false;
        }
        (one, other) = (rest_of_one, rest_of_other);
    }
    one.is_empty() && other.is_empty()
}
