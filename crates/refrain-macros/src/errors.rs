//! Compile errors, collected and reported together.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use std::fmt::Display;

/// The errors found so far, each with its span.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    /// Adds an error that points to these tokens.
    pub(crate) fn at(&mut self, tokens: impl ToTokens, message: impl Display) {
        self.push(syn::Error::new_spanned(tokens, message));
    }

    /// Adds an error that points to this span.
    pub(crate) fn at_span(&mut self, span: Span, message: impl Display) {
        self.push(syn::Error::new(span, message));
    }

    pub(crate) fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            empty => *empty = Some(error),
        }
    }

    pub(crate) fn append(&mut self, others: Self) {
        if let Some(error) = others.0 {
            self.push(error);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the value of a result, or adds its error.
    pub(crate) fn check<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// The errors as `compile_error!` calls, if there are any.
    pub(crate) fn into_compile_errors(self) -> Option<TokenStream> {
        self.0.map(|error| error.to_compile_error())
    }
}

/// Lists names, as in "`a`, `b` and `c`".
pub(crate) fn list_names(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_with_commas_and_and() {
        assert_eq!(list_names(&[]), "none");
        assert_eq!(list_names(&["a"]), "`a`");
        assert_eq!(list_names(&["a", "b"]), "`a` and `b`");
        assert_eq!(list_names(&["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
