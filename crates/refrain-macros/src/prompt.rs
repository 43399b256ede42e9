//! `#[prompt]`

use crate::errors::Errors;
use crate::handler::Handler;
use crate::keys::Keys;
use proc_macro2::TokenStream;
use quote::quote;

const KEYS: [&str; 3] = ["name", "title", "description"];

pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let keys = Keys::parse("`#[prompt]`", &KEYS, attribute, &mut errors);
    let Some(handler) = Handler::parse("prompt", item, &mut errors) else {
        return errors.into_compile_errors().unwrap_or_default();
    };
    let name = handler.name(&keys, &mut errors);
    let about = handler.about(&keys, &mut errors);
    handler.expand("Prompt", &quote!(#name), &about, errors)
}
