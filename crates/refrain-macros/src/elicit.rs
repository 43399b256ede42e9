//! `#[derive(Elicit)]`: a form from a struct, or the choices of a form field from an enum.

mod choices;
mod field;
mod form;
mod kind;
mod serde;

use crate::errors::Errors;
use crate::keys::AttributeKeys;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Attribute, Data, DeriveInput, Ident, Meta};

pub(crate) fn expand(input: TokenStream) -> TokenStream {
    let input: DeriveInput = match syn::parse2(input) {
        Ok(input) => input,
        Err(error) => return error.to_compile_error(),
    };
    let mut errors = Errors::default();
    if reject_generics(&input, &mut errors) {
        return errors.into_compile_errors().unwrap_or_default();
    }
    elicit_keys(&input.attrs, "a type", &[], &mut errors);
    match &input.data {
        Data::Struct(data) => form::expand(&input, &data.fields, errors),
        Data::Enum(data) => choices::expand(&input, data, errors),
        Data::Union(data) => {
            let message = "`Elicit` can only be derived for structs, and for enums whose variants have no fields";
            errors.at(data.union_token, message);
            errors.into_compile_errors().unwrap_or_default()
        }
    }
}

/// Implements a trait with one function. `signature` is its head, after the constants of the trait.
fn implement(
    trait_name: &TokenStream,
    ident: &Ident,
    signature: &TokenStream,
    body: &TokenStream,
    errors: Errors,
) -> TokenStream {
    let errors = errors.into_compile_errors();
    // After an error the trait is still implemented, so that uses of the type cause no further errors.
    let unreachable = quote!(::core::unreachable!());
    let body = errors.as_ref().map_or(body, |_| &unreachable);
    quote! {
        #errors
        #[automatically_derived]
        impl ::refrain::#trait_name for #ident {
            #signature { #body }
        }
    }
}

/// Reports an error and returns true if the type is generic. It would need a form per instantiation.
fn reject_generics(input: &DeriveInput, errors: &mut Errors) -> bool {
    let generics = &input.generics;
    let tokens: &dyn ToTokens = match (&generics.where_clause, generics.params.is_empty()) {
        (_, false) => &generics.params,
        (Some(clause), true) => clause,
        (None, true) => return false,
    };
    errors.at(
        tokens,
        "`Elicit` cannot be derived for a generic type: use concrete types",
    );
    true
}

/// The keys of the `#[elicit(..)]` attributes.
fn elicit_keys(
    attrs: &[Attribute],
    target: &str,
    allowed: &[&str],
    errors: &mut Errors,
) -> AttributeKeys {
    let mut keys = AttributeKeys::default();
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("elicit")) {
        match &attr.meta {
            _ if allowed.is_empty() => {
                errors.at(
                    attr,
                    "`#[elicit(..)]` is only allowed on a field or a variant",
                );
            }
            Meta::List(list) => {
                let attribute = format!("`#[elicit(..)]` on {target}");
                keys.extend(&attribute, allowed, list.tokens.clone(), errors);
            }
            _ => errors.at(attr, "expected `#[elicit(..)]`"),
        }
    }
    keys
}

/// Reports a duplicate name in the schema.
fn check_unique(names: &[String], name: &str, noun: &str, at: &dyn ToTokens, errors: &mut Errors) {
    if names.iter().any(|earlier| earlier == name) {
        errors.at(at, format!("duplicate {noun} `{name}`: rename one of them"));
    }
}
