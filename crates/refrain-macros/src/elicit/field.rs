//! One field of a form: its name, its kind and its `#[elicit(..)]`.

use super::kind::{self, Integer, Kind};
use super::serde::Serde;
use super::{elicit_keys, is_taken};
use crate::docs;
use crate::errors::Errors;
use crate::keys::{Keys, as_text, ungrouped};
use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, ExprUnary, Lit, LitStr, UnOp};

const KEYS: [&str; 6] = ["title", "description", "format", "min", "max", "default"];

/// The formats of a string. Their constructors are called `date_time` for `date-time`.
const FORMATS: [&str; 4] = ["email", "uri", "date", "date-time"];

/// Larger whole numbers are not exact in JSON as most clients read it.
const EXACT: i64 = (1 << 53) - 1;

/// The expression that builds the field. `None` if it is not part of the form, or after a mistake.
pub(super) fn expand(
    field: &syn::Field,
    container: &Serde,
    names: &mut Vec<String>,
    errors: &mut Errors,
) -> Option<TokenStream> {
    let serde = Serde::parse(&field.attrs);
    let keys = elicit_keys(&field.attrs, "a field", &KEYS, errors);
    serde.check_shape("a form is flat", errors);
    let ident = field.ident.as_ref()?;
    if serde.skip {
        return None;
    }
    let name = serde.rename.unwrap_or_else(|| {
        let name = ident.unraw().to_string();
        let case = container.rename_all.as_ref();
        case.map_or(name.clone(), |case| case.field(&name))
    });
    is_taken(names, &name, "fields", ident, errors);

    let title = keys
        .text("title", errors)
        .map(|title| quote!(.title(#title)));
    let description = keys
        .text("description", errors)
        .map(|text| text.value())
        .or_else(|| docs::text(&field.attrs))
        .map(|text| quote!(.describe(#text)));
    let (kind, optional) = errors.keep(kind::of(&field.ty))?;
    let start = start(&kind, &name, &keys, errors);
    let limits = Limits::read(&kind, &keys, errors);
    let default = keys
        .value("default", errors)
        .and_then(|value| errors.keep(default(&kind, value, &limits)));
    let optional = (optional || serde.default || container.default).then(|| quote!(.optional()));
    names.push(name);
    Some(quote!(#start #title #description #limits #default #optional))
}

/// The constructor of the field.
fn start(kind: &Kind<'_>, name: &str, keys: &Keys, errors: &mut Errors) -> TokenStream {
    let format = keys.text("format", errors);
    if let (Some(format), false) = (&format, matches!(kind, Kind::Text)) {
        let message = format!("`format` goes on a `String`, and this is {}", kind.noun());
        errors.at(format, message);
    }
    let (constructor, choices) = match kind {
        Kind::Text => (string_constructor(format, errors), None),
        Kind::Integer(_) => ("integer".to_owned(), None),
        Kind::Number => ("number".to_owned(), None),
        Kind::Boolean => ("boolean".to_owned(), None),
        Kind::One(ty) => ("one_of".to_owned(), Some(*ty)),
        Kind::Many(ty) => ("any_of".to_owned(), Some(*ty)),
    };
    let constructor = format_ident!("{constructor}");
    let choices = choices.map(|ty| {
        // A type that is not such an enum is reported where the author wrote it.
        let choices = quote_spanned!(ty.span()=> <#ty as ::refrain::ElicitEnum>::choices());
        quote!(, #choices)
    });
    quote!(::refrain::ask::Field::#constructor(#name #choices))
}

fn string_constructor(format: Option<LitStr>, errors: &mut Errors) -> String {
    let Some(format) = format else {
        return "string".to_owned();
    };
    let value = format.value();
    if !FORMATS.contains(&value.as_str()) {
        let message =
            format!("unknown format `{value}`: a form has `email`, `uri`, `date` and `date-time`");
        errors.at(format, message);
        return "string".to_owned();
    }
    value.replace('-', "_")
}

/// The least and the greatest number, length or count.
#[derive(Default)]
struct Limits {
    min: Option<f64>,
    max: Option<f64>,
}

impl Limits {
    fn read(kind: &Kind<'_>, keys: &Keys, errors: &mut Errors) -> Self {
        let mut read = |key| {
            let value = keys.value(key, errors)?;
            errors.keep(limit(kind, key, value))
        };
        let limits = Self {
            min: read("min"),
            max: read("max"),
        };
        if let (Some(min), Some(max)) = (limits.min, limits.max)
            && min > max
            && let Some(value) = keys.value("min", errors)
        {
            errors.at(
                value,
                format!("`min` ({min}) is greater than `max` ({max})"),
            );
            return Self::default();
        }
        limits
    }

    /// Reports a default outside the limits of its field.
    fn check(&self, value: &Expr, measure: f64, what: &str) -> syn::Result<()> {
        let message = match (self.min, self.max) {
            (Some(min), _) if measure < min => {
                format!("the default{what} is less than `min` ({min})")
            }
            (_, Some(max)) if measure > max => {
                format!("the default{what} is greater than `max` ({max})")
            }
            _ => return Ok(()),
        };
        Err(syn::Error::new_spanned(value, message))
    }
}

impl quote::ToTokens for Limits {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        if let Some(min) = self.min.map(Literal::f64_suffixed) {
            tokens.extend(quote!(.min(#min)));
        }
        if let Some(max) = self.max.map(Literal::f64_suffixed) {
            tokens.extend(quote!(.max(#max)));
        }
    }
}

fn limit(kind: &Kind<'_>, key: &str, value: &Expr) -> syn::Result<f64> {
    let wrong = |what: &str| syn::Error::new_spanned(value, format!("`{key}` {what}"));
    let count = |what: &str| match number(value)? {
        Some(Number(count, Some(0..))) => Ok(count),
        _ => Err(wrong(&format!(
            "is a count of {what}: a whole number, not negative"
        ))),
    };
    match kind {
        Kind::Text => count("characters"),
        Kind::Many(_) => count("choices"),
        Kind::Integer(integer) => match number(value)? {
            Some(Number(_, Some(whole))) => fitting(integer, value, whole),
            _ => Err(wrong("takes a whole number")),
        },
        Kind::Number => match number(value)? {
            Some(Number(number, _)) => Ok(number),
            None => Err(wrong("takes a number")),
        },
        Kind::Boolean | Kind::One(_) => Err(wrong(&format!("has no meaning on {}", kind.noun()))),
    }
}

/// The call that sets the default, which must be of the field's kind and within its limits.
fn default(kind: &Kind<'_>, value: &Expr, limits: &Limits) -> syn::Result<TokenStream> {
    let wrong = |what: &str| {
        let message = format!("the default of {} must be {what}", kind.noun());
        syn::Error::new_spanned(value, message)
    };
    let default = match kind {
        Kind::Text => {
            let text = as_text(value).ok_or_else(|| wrong("a string in quotes"))?;
            limits.check(value, text.value().chars().count() as f64, "'s length")?;
            quote!(#text)
        }
        Kind::One(_) => {
            let name = as_text(value);
            let name = name.ok_or_else(|| wrong("its name as it is sent: `default = \"..\"`"))?;
            quote!(#name)
        }
        Kind::Boolean => match value {
            Expr::Lit(ExprLit {
                lit: Lit::Bool(truth),
                ..
            }) => quote!(#truth),
            _ => return Err(wrong("`true` or `false`")),
        },
        Kind::Integer(integer) => {
            let Some(Number(_, Some(whole))) = number(value)? else {
                return Err(wrong("a whole number"));
            };
            limits.check(value, fitting(integer, value, whole)?, "")?;
            let literal = Literal::i64_suffixed(whole);
            quote!(#literal)
        }
        Kind::Number => {
            let Number(number, _) = number(value)?.ok_or_else(|| wrong("a number literal"))?;
            limits.check(value, number, "")?;
            let literal = Literal::f64_suffixed(number);
            quote!(#literal)
        }
        Kind::Many(_) => {
            let names = listed_names(value)
                .ok_or_else(|| wrong("their names as they are sent: `default = [\"..\"]`"))?;
            limits.check(value, names.len() as f64, "'s number of choices")?;
            quote!(::std::vec::Vec::<&'static str>::from([#(#names),*]))
        }
    };
    Ok(quote!(.default_value(#default)))
}

fn listed_names(value: &Expr) -> Option<Vec<&LitStr>> {
    let Expr::Array(array) = value else {
        return None;
    };
    let names = array.elems.iter().map(|name| as_text(ungrouped(name)));
    names.collect()
}

/// The number, if the field's type can hold it.
fn fitting(integer: &Integer, value: &Expr, whole: i64) -> syn::Result<f64> {
    if !(integer.least..=integer.most).contains(&i128::from(whole)) {
        let message = format!("{whole} does not fit in `{}`", integer.name);
        return Err(syn::Error::new_spanned(value, message));
    }
    Ok(whole as f64)
}

/// A number, and its whole value if it has no fraction.
struct Number(f64, Option<i64>);

/// A number literal, with or without a minus.
fn number(value: &Expr) -> syn::Result<Option<Number>> {
    let inexact = || syn::Error::new_spanned(value, "this number is too large to be exact in JSON");
    match ungrouped(value) {
        Expr::Lit(ExprLit { lit, .. }) => match lit {
            Lit::Int(int) => match int.base10_parse() {
                Ok(whole) if whole <= EXACT => Ok(Some(Number(whole as f64, Some(whole)))),
                _ => Err(inexact()),
            },
            Lit::Float(float) => match float.base10_parse() {
                Ok(number) if f64::is_finite(number) => Ok(Some(Number(number, None))),
                _ => Err(inexact()),
            },
            _ => Ok(None),
        },
        Expr::Unary(ExprUnary {
            op: UnOp::Neg(_),
            expr,
            ..
        }) => {
            let negated = |Number(value, whole)| Number(-value, whole.map(|whole: i64| -whole));
            Ok(number(expr)?.map(negated))
        }
        _ => Ok(None),
    }
}
