//! The choices of a form field, from an enum.

use super::serde::Serde;
use super::{check_unique, elicit_keys, implement};
use crate::errors::Errors;
use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::{DataEnum, DeriveInput, Fields};

const SHAPE: &str = "a choice is a name without data";

pub(super) fn expand(input: &DeriveInput, data: &DataEnum, mut errors: Errors) -> TokenStream {
    let serde = Serde::parse(&input.attrs);
    serde.check_shape(SHAPE, &mut errors);
    let mut names = Vec::new();
    let mut choices = Vec::new();
    for variant in &data.variants {
        let variant_serde = Serde::parse(&variant.attrs);
        let keys = elicit_keys(&variant.attrs, "a variant", &["title"], &mut errors);
        let title = keys.filled_text("title", &mut errors);
        if !matches!(variant.fields, Fields::Unit) {
            let message = format!("variant `{}` has fields: {SHAPE}", variant.ident);
            errors.at(variant, message);
        }
        variant_serde.check_shape(SHAPE, &mut errors);
        if variant_serde.skip {
            continue;
        }
        let name = variant_serde.rename.unwrap_or_else(|| {
            let name = variant.ident.unraw().to_string();
            let case = serde.rename_all.as_ref();
            case.map_or(name.clone(), |case| case.variant(&name))
        });
        check_unique(&names, &name, "choice", &variant.ident, &mut errors);
        let title = title.map(|title| quote!(.title(#title)));
        choices.push(quote!(::refrain::ask::Choice::new(#name) #title));
        names.push(name);
    }
    let ident = &input.ident;
    if choices.is_empty() {
        errors.at(
            ident,
            "an enum that derives `Elicit` needs at least one variant",
        );
    }
    let choices_fn = quote! {
        const NAMES: &'static [&'static str] = &[#(#names),*];
        fn choices() -> ::std::vec::Vec<::refrain::ask::Choice>
    };
    let choices = quote!(::std::vec![#(#choices),*]);
    implement(&quote!(ElicitEnum), ident, &choices_fn, &choices, errors)
}
