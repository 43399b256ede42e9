//! `#[tool]`

use crate::errors::Errors;
use crate::handler::Handler;
use crate::keys::Keys;
use proc_macro2::TokenStream;
use quote::quote;

const KEYS: [&str; 10] = [
    "name",
    "title",
    "description",
    "version",
    "once",
    "single_use",
    "task",
    "task_required",
    "detaches",
    "live",
];

pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let keys = Keys::parse("`#[tool]`", &KEYS, attribute, &mut errors);
    let Some(handler) = Handler::parse("tool", item, &mut errors) else {
        return errors.into_compile_errors().unwrap_or_default();
    };
    let name = handler.name(&keys, &mut errors);
    let about = handler.about(&keys, &mut errors);
    let version = keys
        .filled_text("version", &mut errors)
        .map(|version| quote!(.version(#version)));
    let once = keys.flag("once", &mut errors).then(|| quote!(.once()));
    let single_use = keys
        .flag("single_use", &mut errors)
        .then(|| quote!(.single_use()));
    let task = keys.flag("task", &mut errors).then(|| quote!(.task()));
    let required = keys
        .flag("task_required", &mut errors)
        .then(|| quote!(.task_required()));
    let detaches = keys
        .flag("detaches", &mut errors)
        .then(|| quote!(.detaches()));
    let live = keys.flag("live", &mut errors).then(|| quote!(.live()));
    let calls = quote!(#about #version #once #single_use #task #required #detaches #live);
    handler.expand("Tool", &quote!(#name), &calls, errors)
}
