//! A field of a form: its name, its kind and its `#[elicit(..)]` keys.

use super::kind::{self, FieldType, Integer, ParsedType};
use super::serde::Serde;
use super::{check_unique, elicit_keys};
use crate::docs;
use crate::errors::Errors;
use crate::keys::{AttributeKeys, as_text, ungrouped};
use proc_macro2::{Literal, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, ExprUnary, Lit, LitStr, Type, UnOp};

const KEYS: [&str; 6] = ["title", "description", "format", "min", "max", "default"];

/// The formats of a string. The constructor of `date-time` is `date_time`.
const FORMATS: [&str; 4] = ["email", "uri", "date", "date-time"];

/// The largest integer that JSON clients with 64-bit floats read exactly.
const MAX_EXACT: i64 = (1 << 53) - 1;

/// The expression that builds the field. `None` if it is not part of the form, or after an error.
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
    check_unique(names, &name, "field", ident, errors);

    let title = keys
        .text("title", errors)
        .map(|title| quote!(.title(#title)));
    let description = keys
        .text("description", errors)
        .map(|text| text.value())
        .or_else(|| docs::text(&field.attrs))
        .map(|text| quote!(.describe(#text)));
    let ParsedType { kind, is_optional } = errors.check(kind::parse(&field.ty))?;
    let constructor = constructor_call(&kind, &name, &keys, errors);
    let bounds = Bounds::read(&kind, &keys, errors);
    let default = keys
        .value("default", errors)
        .and_then(|value| errors.check(default_call(&kind, value, &bounds)));
    let optional = (is_optional || serde.default || container.default).then(|| quote!(.optional()));
    names.push(name);
    Some(quote!(#constructor #title #description #bounds #default #optional))
}

/// The constructor of the field.
fn constructor_call(
    kind: &FieldType<'_>,
    name: &str,
    keys: &AttributeKeys,
    errors: &mut Errors,
) -> TokenStream {
    let format = keys.text("format", errors);
    if let (Some(format), false) = (&format, matches!(kind, FieldType::Text)) {
        let message = format!(
            "`format` is only allowed on a `String`; this field is {}",
            kind.noun()
        );
        errors.at(format, message);
    }
    let (constructor, choices) = match kind {
        FieldType::Text => (string_constructor(format, errors), None),
        FieldType::Integer(_) => ("integer".to_owned(), None),
        FieldType::Number => ("number".to_owned(), None),
        FieldType::Boolean => ("boolean".to_owned(), None),
        FieldType::One(ty) => ("one_of".to_owned(), Some(*ty)),
        FieldType::Many(ty) => ("any_of".to_owned(), Some(*ty)),
    };
    let constructor = format_ident!("{constructor}");
    let choices = choices.map(|ty| {
        // If the type is not an enum that derives `Elicit`, rustc reports it at the field.
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
            format!("unknown format `{value}`: use `email`, `uri`, `date` or `date-time`");
        errors.at(format, message);
        return "string".to_owned();
    }
    value.replace('-', "_")
}

/// The minimum and maximum of a number, a length or a count.
#[derive(Default)]
struct Bounds {
    min: Option<f64>,
    max: Option<f64>,
}

impl Bounds {
    fn read(kind: &FieldType<'_>, keys: &AttributeKeys, errors: &mut Errors) -> Self {
        let mut read = |key| {
            let value = keys.value(key, errors)?;
            errors.check(read_bound(kind, key, value))
        };
        let bounds = Self {
            min: read("min"),
            max: read("max"),
        };
        if let (Some(min), Some(max)) = (bounds.min, bounds.max)
            && min > max
            && let Some(value) = keys.value("min", errors)
        {
            errors.at(
                value,
                format!("`min` ({min}) is greater than `max` ({max})"),
            );
            return Self::default();
        }
        bounds
    }

    /// Reports a default that is out of bounds. `property` is the measured property of the default, such as its length.
    fn check(&self, value: &Expr, measure: f64, property: &str) -> syn::Result<()> {
        let message = match (self.min, self.max) {
            (Some(min), _) if measure < min => {
                format!("the default{property} is less than `min` ({min})")
            }
            (_, Some(max)) if measure > max => {
                format!("the default{property} is greater than `max` ({max})")
            }
            _ => return Ok(()),
        };
        Err(syn::Error::new_spanned(value, message))
    }
}

impl ToTokens for Bounds {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        if let Some(min) = self.min.map(Literal::f64_suffixed) {
            tokens.extend(quote!(.min(#min)));
        }
        if let Some(max) = self.max.map(Literal::f64_suffixed) {
            tokens.extend(quote!(.max(#max)));
        }
    }
}

fn read_bound(kind: &FieldType<'_>, key: &str, value: &Expr) -> syn::Result<f64> {
    let invalid = |what: &str| syn::Error::new_spanned(value, format!("`{key}` {what}"));
    let count = |what: &str| match parse_number(value)? {
        Some(NumberValue(count, Some(0..))) => Ok(count),
        _ => Err(invalid(&format!("must be a number of {what}, 0 or more"))),
    };
    match kind {
        FieldType::Text => count("characters"),
        FieldType::Many(_) => count("choices"),
        FieldType::Integer(integer) => match parse_number(value)? {
            Some(NumberValue(_, Some(whole))) => in_range(integer, value, whole),
            _ => Err(invalid("must be an integer")),
        },
        FieldType::Number => match parse_number(value)? {
            Some(NumberValue(number, _)) => Ok(number),
            None => Err(invalid("must be a number")),
        },
        FieldType::Boolean | FieldType::One(_) => {
            Err(invalid(&format!("is not allowed on {}", kind.noun())))
        }
    }
}

/// The call that sets the default, which must match the field's kind and bounds.
fn default_call(kind: &FieldType<'_>, value: &Expr, bounds: &Bounds) -> syn::Result<TokenStream> {
    let invalid = |what: &str| {
        let message = format!("the default of {} must be {what}", kind.noun());
        syn::Error::new_spanned(value, message)
    };
    let default = match kind {
        FieldType::Text => {
            let text = as_text(value).ok_or_else(|| invalid("a string in quotes"))?;
            bounds.check(value, text.value().chars().count() as f64, "'s length")?;
            quote!(#text)
        }
        FieldType::One(ty) => {
            let name = as_text(value);
            let name = name.ok_or_else(|| invalid("the name of a choice: `default = \"..\"`"))?;
            let check = check_choice(ty, name);
            quote!({ #check #name })
        }
        FieldType::Boolean => match value {
            Expr::Lit(ExprLit {
                lit: Lit::Bool(truth),
                ..
            }) => quote!(#truth),
            _ => return Err(invalid("`true` or `false`")),
        },
        FieldType::Integer(integer) => {
            let Some(NumberValue(_, Some(whole))) = parse_number(value)? else {
                return Err(invalid("an integer"));
            };
            bounds.check(value, in_range(integer, value, whole)?, "")?;
            let literal = Literal::i64_suffixed(whole);
            quote!(#literal)
        }
        FieldType::Number => {
            let NumberValue(number, _) =
                parse_number(value)?.ok_or_else(|| invalid("a number literal"))?;
            bounds.check(value, number, "")?;
            let literal = Literal::f64_suffixed(number);
            quote!(#literal)
        }
        FieldType::Many(ty) => {
            let names = choice_names(value)
                .ok_or_else(|| invalid("the names of choices: `default = [\"..\"]`"))?;
            bounds.check(value, names.len() as f64, "'s number of choices")?;
            let checks = names.iter().map(|name| check_choice(ty, name));
            quote!({ #(#checks)* ::std::vec::Vec::<&'static str>::from([#(#names),*]) })
        }
    };
    Ok(quote!(.default_value(#default)))
}

/// A check at compile time that the enum has a choice with this name.
fn check_choice(ty: &Type, name: &LitStr) -> TokenStream {
    let message = format!(
        "the default {:?} is not a choice of `{}`",
        name.value(),
        ty.to_token_stream()
    );
    quote_spanned! {name.span()=>
        const _: () = ::core::assert!(::refrain::runtime::core::is_choice::<#ty>(#name), #message);
    }
}

fn choice_names(value: &Expr) -> Option<Vec<&LitStr>> {
    let Expr::Array(array) = value else {
        return None;
    };
    let names = array.elems.iter().map(|name| as_text(ungrouped(name)));
    names.collect()
}

/// The number, if it is in the range of the field's type.
fn in_range(integer: &Integer, value: &Expr, whole: i64) -> syn::Result<f64> {
    if !(integer.min..=integer.max).contains(&i128::from(whole)) {
        let message = format!("{whole} is out of range for `{}`", integer.name);
        return Err(syn::Error::new_spanned(value, message));
    }
    Ok(whole as f64)
}

/// The value of a number literal, and its integer value if it has one.
struct NumberValue(f64, Option<i64>);

/// The value of a number literal, with or without a minus sign.
fn parse_number(value: &Expr) -> syn::Result<Option<NumberValue>> {
    let inexact = || {
        syn::Error::new_spanned(
            value,
            "number too large: JSON clients read integers exactly only up to 2^53 - 1",
        )
    };
    match ungrouped(value) {
        Expr::Lit(ExprLit { lit, .. }) => match lit {
            Lit::Int(int) => match int.base10_parse() {
                Ok(whole) if whole <= MAX_EXACT => Ok(Some(NumberValue(whole as f64, Some(whole)))),
                _ => Err(inexact()),
            },
            Lit::Float(float) => match float.base10_parse() {
                Ok(number) if f64::is_finite(number) => Ok(Some(NumberValue(number, None))),
                _ => Err(inexact()),
            },
            _ => Ok(None),
        },
        Expr::Unary(ExprUnary {
            op: UnOp::Neg(_),
            expr,
            ..
        }) => {
            let negated =
                |NumberValue(value, whole)| NumberValue(-value, whole.map(|whole: i64| -whole));
            Ok(parse_number(expr)?.map(negated))
        }
        _ => Ok(None),
    }
}
