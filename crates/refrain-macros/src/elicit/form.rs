//! A form, from a struct.

use super::serde::Serde;
use super::{field, implement};
use crate::errors::Errors;
use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, Fields};

pub(super) fn expand(input: &DeriveInput, fields: &Fields, mut errors: Errors) -> TokenStream {
    let serde = Serde::parse(&input.attrs);
    serde.check_shape(
        "a form is an object with one property per field",
        &mut errors,
    );
    let ident = &input.ident;
    let mut names = Vec::new();
    let fields: Vec<TokenStream> = match fields {
        Fields::Named(fields) => fields
            .named
            .iter()
            .filter_map(|field| field::expand(field, &serde, &mut names, &mut errors))
            .collect(),
        Fields::Unnamed(fields) => {
            errors.at(
                fields,
                "a form needs named fields: `struct Name { field: Type }`",
            );
            Vec::new()
        }
        Fields::Unit => {
            errors.at(
                ident,
                format!("a unit struct is not a form: write `struct {ident} {{}}`"),
            );
            Vec::new()
        }
    };
    let form = quote! {
        static FORM: ::std::sync::OnceLock<::refrain::ask::Form> = ::std::sync::OnceLock::new();
        FORM.get_or_init(|| ::refrain::ask::Form::new([#(#fields),*]))
    };
    let form_fn = quote!(fn form() -> &'static ::refrain::ask::Form);
    implement(&quote!(Elicit), ident, &form_fn, &form, errors)
}
