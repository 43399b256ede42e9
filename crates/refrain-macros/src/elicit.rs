//! `#[derive(Elicit)]`: a struct becomes a form, an enum the choices of a form's field.

mod choices;
mod field;
mod form;
mod kind;
mod serde;

use crate::errors::Errors;
use crate::keys::Keys;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Attribute, Data, DeriveInput, Ident, Meta};

pub(crate) fn expand(input: TokenStream) -> TokenStream {
    let input: DeriveInput = match syn::parse2(input) {
        Ok(input) => input,
        Err(error) => return error.to_compile_error(),
    };
    let mut errors = Errors::default();
    if has_generics(&input, &mut errors) {
        return errors.into_compile_errors().unwrap_or_default();
    }
    elicit_keys(&input.attrs, "this place", &[], &mut errors);
    match &input.data {
        Data::Struct(data) => form::expand(&input, &data.fields, errors),
        Data::Enum(data) => choices::expand(&input, data, errors),
        Data::Union(data) => {
            let message = "`Elicit` is derived for structs and for enums without data";
            errors.at(data.union_token, message);
            errors.into_compile_errors().unwrap_or_default()
        }
    }
}

/// Implements a trait by its only function.
fn implement(
    name: &TokenStream,
    ident: &Ident,
    function: &TokenStream,
    body: &TokenStream,
    errors: Errors,
) -> TokenStream {
    let errors = errors.into_compile_errors();
    // After a mistake the trait is still implemented, so that uses of the type are not reported as well.
    let unreachable = quote!(::core::unreachable!());
    let body = errors.as_ref().map_or(body, |_| &unreachable);
    quote! {
        #errors
        #[automatically_derived]
        impl ::refrain::#name for #ident {
            #function { #body }
        }
    }
}

/// Reports generics: there is one form for each type.
fn has_generics(input: &DeriveInput, errors: &mut Errors) -> bool {
    let generics = &input.generics;
    let tokens: &dyn ToTokens = match (&generics.where_clause, generics.params.is_empty()) {
        (_, false) => &generics.params,
        (Some(clause), true) => clause,
        (None, true) => return false,
    };
    errors.at(
        tokens,
        "a type with generics cannot derive `Elicit`: there is one form for each type",
    );
    true
}

/// The keys of the `#[elicit(..)]` attributes.
fn elicit_keys(attrs: &[Attribute], place: &str, allowed: &[&str], errors: &mut Errors) -> Keys {
    let mut keys = Keys::default();
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("elicit")) {
        match &attr.meta {
            _ if allowed.is_empty() => {
                errors.at(attr, "`#[elicit(..)]` goes on a field or on a variant");
            }
            Meta::List(list) => {
                let attribute = format!("`#[elicit(..)]` on {place}");
                keys.extend(&attribute, allowed, list.tokens.clone(), errors);
            }
            _ => errors.at(attr, "expected `#[elicit(..)]`"),
        }
    }
    keys
}

/// Reports a second use of a name that is sent.
fn is_taken(names: &[String], name: &str, what: &str, at: &dyn ToTokens, errors: &mut Errors) {
    if names.iter().any(|earlier| earlier == name) {
        errors.at(at, format!("two {what} are called `{name}`"));
    }
}
