//! The keys of an attribute: `key = value`, and flags without a value.

use crate::errors::{Errors, list_names};
use proc_macro2::TokenStream;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Expr, ExprLit, Ident, Lit, LitStr, Token};

/// A key of an attribute, and its value if it has one.
struct AttributeKey {
    name: Ident,
    value: Option<Expr>,
}

impl Parse for AttributeKey {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if !input.peek(Ident::peek_any) {
            return Err(input.error("expected a key, as in `title = \"..\"`"));
        }
        let name = input.call(Ident::parse_any)?;
        if input.peek(syn::token::Paren) {
            return Err(input.error(format!("expected `=`, as in `{name} = ..`")));
        }
        let value = match input.parse::<Option<Token![=]>>()? {
            Some(_) => Some(input.parse()?),
            None => None,
        };
        Ok(Self { name, value })
    }
}

/// The valid keys of an attribute.
#[derive(Default)]
pub(crate) struct AttributeKeys(Vec<AttributeKey>);

impl AttributeKeys {
    /// Adds the keys in `tokens`. Unknown and duplicate keys are reported.
    pub(crate) fn extend(
        &mut self,
        attribute: &str,
        allowed: &[&str],
        tokens: TokenStream,
        errors: &mut Errors,
    ) {
        let parser = Punctuated::<AttributeKey, Token![,]>::parse_terminated;
        let Some(parsed) = errors.check(parser.parse2(tokens)) else {
            return;
        };
        for key in parsed {
            let name = key.name.unraw().to_string();
            if !allowed.contains(&name.as_str()) {
                let allowed = list_names(allowed);
                let message = format!("unknown key `{name}`: {attribute} allows {allowed}");
                errors.at(&key.name, message);
            } else if self.0.iter().any(|earlier| earlier.name == key.name) {
                errors.at(&key.name, format!("duplicate key `{name}`"));
            } else {
                self.0.push(key);
            }
        }
    }

    fn find(&self, name: &str) -> Option<&AttributeKey> {
        self.0.iter().find(|key| key.name == name)
    }

    /// Returns whether the key is present.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The value of a key.
    pub(crate) fn value(&self, name: &str, errors: &mut Errors) -> Option<&Expr> {
        let key = self.find(name)?;
        if key.value.is_none() {
            errors.at(&key.name, format!("`{name}` needs a value: `{name} = ..`"));
        }
        key.value.as_ref().map(ungrouped)
    }

    /// The value of a key that takes a string.
    pub(crate) fn text(&self, name: &str, errors: &mut Errors) -> Option<LitStr> {
        let value = self.value(name, errors)?;
        let text = as_text(value).cloned();
        if text.is_none() {
            let message = format!("`{name}` must be a string: `{name} = \"..\"`");
            errors.at(value, message);
        }
        text
    }

    /// Like [`AttributeKeys::text`], for a string that must not be empty.
    pub(crate) fn filled_text(&self, name: &str, errors: &mut Errors) -> Option<LitStr> {
        let text = self.text(name, errors)?;
        if text.value().trim().is_empty() {
            errors.at(text, format!("`{name}` must not be empty"));
            return None;
        }
        Some(text)
    }

    /// Returns whether a flag is present.
    pub(crate) fn flag(&self, name: &str, errors: &mut Errors) -> bool {
        let Some(key) = self.find(name) else {
            return false;
        };
        if let Some(value) = &key.value {
            errors.at(value, format!("`{name}` takes no value: write `{name}`"));
        }
        true
    }
}

/// The literal, if the value is a string literal.
pub(crate) fn as_text(value: &Expr) -> Option<&LitStr> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text),
        _ => None,
    }
}

/// The value without the invisible groups of `macro_rules!`.
pub(crate) fn ungrouped(value: &Expr) -> &Expr {
    match value {
        Expr::Group(group) => ungrouped(&group.expr),
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(tokens: &str) -> (AttributeKeys, Errors) {
        let mut errors = Errors::default();
        let mut keys = AttributeKeys::default();
        let tokens = tokens.parse().unwrap();
        keys.extend("`#[tool]`", &["name", "once"], tokens, &mut errors);
        (keys, errors)
    }

    fn message(errors: Errors) -> String {
        errors.into_compile_errors().unwrap_or_default().to_string()
    }

    #[test]
    fn values_and_flags_are_parsed() {
        let (keys, mut errors) = parse(r#"name = "x", once,"#);
        assert_eq!(keys.text("name", &mut errors).unwrap().value(), "x");
        assert!(keys.flag("once", &mut errors));
        assert!(errors.into_compile_errors().is_none());
    }

    #[test]
    fn invalid_keys_are_reported() {
        for (tokens, expected) in [
            (
                "nam = 1",
                "unknown key `nam`: `#[tool]` allows `name` and `once`",
            ),
            ("once, once", "duplicate key `once`"),
            ("name", "`name` needs a value"),
            ("name = 3", "`name` must be a string"),
            ("name = \" \"", "`name` must not be empty"),
            ("once = true", "`once` takes no value"),
            ("\"x\"", "expected a key"),
            ("name(\"x\")", "expected `=`"),
        ] {
            let (keys, mut errors) = parse(tokens);
            keys.filled_text("name", &mut errors);
            keys.flag("once", &mut errors);
            let message = message(errors);
            assert!(message.contains(expected), "{tokens}: {message}");
        }
    }
}
