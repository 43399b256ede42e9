//! The serde attributes that change names and shapes.
//!
//! Serde reports invalid attributes, so they are ignored here.

use crate::errors::Errors;
use proc_macro2::Span;
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Attribute, Expr, LitStr, Token};

/// The serde attributes that affect a form.
#[derive(Default)]
pub(super) struct Serde {
    pub(super) rename: Option<String>,
    pub(super) rename_all: Option<Case>,
    /// Whether the field is optional.
    pub(super) default: bool,
    /// Whether serde skips the field or variant.
    pub(super) skip: bool,
    /// An attribute that changes the shape that serde expects.
    pub(super) shape_attribute: Option<(String, Span)>,
}

impl Serde {
    pub(super) fn parse(attrs: &[Attribute]) -> Self {
        let mut serde = Self::default();
        for attr in attrs.iter().filter(|attr| attr.path().is_ident("serde")) {
            let _ = attr.parse_nested_meta(|meta| serde.read(&meta));
        }
        serde
    }

    fn read(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        let key = meta.path.get_ident();
        let key = key.map(ToString::to_string).unwrap_or_default();
        match key.as_str() {
            "rename" => {
                self.rename = deserialize_name(meta)?.or(self.rename.take());
                return Ok(());
            }
            "rename_all" => {
                let rule = deserialize_name(meta)?.map(Case);
                self.rename_all = rule.or(self.rename_all.take());
                return Ok(());
            }
            "default" => self.default = true,
            "skip" | "skip_deserializing" => self.skip = true,
            "flatten" | "transparent" | "tag" | "content" | "untagged" => {
                self.shape_attribute = Some((key, meta.path.span()));
            }
            _ => {}
        }
        skip_value(meta)
    }

    /// Reports an attribute that changes the shape.
    pub(super) fn check_shape(&self, shape: &str, errors: &mut Errors) {
        if let Some((key, span)) = &self.shape_attribute {
            errors.at_span(
                *span,
                format!("`#[serde({key})]` cannot be combined with `Elicit`: {shape}"),
            );
        }
    }
}

/// The name for deserialization in `rename = ".."` or `rename(deserialize = "..", serialize = "..")`.
fn deserialize_name(meta: &ParseNestedMeta<'_>) -> syn::Result<Option<String>> {
    if meta.input.peek(Token![=]) {
        let name: LitStr = meta.value()?.parse()?;
        return Ok(Some(name.value()));
    }
    let mut name = None;
    meta.parse_nested_meta(|inner| {
        let value: LitStr = inner.value()?.parse()?;
        if inner.path.is_ident("deserialize") {
            name = Some(value.value());
        }
        Ok(())
    })?;
    Ok(name)
}

fn skip_value(meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
    if meta.input.peek(Token![=]) {
        meta.value()?.parse::<Expr>()?;
    } else if meta.input.peek(syn::token::Paren) {
        meta.parse_nested_meta(|inner| skip_value(&inner))?;
    }
    Ok(())
}

/// The rule of a `rename_all`. Serde reports unknown rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Case(String);

impl Case {
    /// Renames a field, which is written in snake case.
    pub(super) fn field(&self, field: &str) -> String {
        let pascal = || field.split('_').map(capitalised).collect::<String>();
        match self.0.as_str() {
            "UPPERCASE" | "SCREAMING_SNAKE_CASE" => field.to_ascii_uppercase(),
            "PascalCase" => pascal(),
            "camelCase" => uncapitalised(&pascal()),
            "kebab-case" => field.replace('_', "-"),
            "SCREAMING-KEBAB-CASE" => field.to_ascii_uppercase().replace('_', "-"),
            _ => field.to_owned(),
        }
    }

    /// Renames a variant, which is written in Pascal case.
    pub(super) fn variant(&self, variant: &str) -> String {
        match self.0.as_str() {
            "lowercase" => variant.to_ascii_lowercase(),
            "UPPERCASE" => variant.to_ascii_uppercase(),
            "camelCase" => uncapitalised(variant),
            "snake_case" => snake(variant),
            "SCREAMING_SNAKE_CASE" => snake(variant).to_ascii_uppercase(),
            "kebab-case" => snake(variant).replace('_', "-"),
            "SCREAMING-KEBAB-CASE" => snake(variant).to_ascii_uppercase().replace('_', "-"),
            _ => variant.to_owned(),
        }
    }
}

fn snake(variant: &str) -> String {
    let mut snake = String::new();
    for c in variant.chars() {
        if !snake.is_empty() && c.is_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

fn capitalised(word: &str) -> String {
    map_first(word, char::to_ascii_uppercase)
}

fn uncapitalised(word: &str) -> String {
    map_first(word, char::to_ascii_lowercase)
}

fn map_first(word: &str, map: fn(&char) -> char) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|c| map(&c));
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    #[test]
    fn rename_rules_match_serde() {
        for (case, field, variant) in [
            ("lowercase", "very_tasty", "verytasty"),
            ("UPPERCASE", "VERY_TASTY", "VERYTASTY"),
            ("PascalCase", "VeryTasty", "VeryTasty"),
            ("camelCase", "veryTasty", "veryTasty"),
            ("snake_case", "very_tasty", "very_tasty"),
            ("SCREAMING_SNAKE_CASE", "VERY_TASTY", "VERY_TASTY"),
            ("kebab-case", "very-tasty", "very-tasty"),
            ("SCREAMING-KEBAB-CASE", "VERY-TASTY", "VERY-TASTY"),
        ] {
            let rule = Case(case.to_owned());
            assert_eq!(rule.field("very_tasty"), field, "{case}");
            assert_eq!(rule.variant("VeryTasty"), variant, "{case}");
        }
        assert_eq!(Case("Train-Case".to_owned()).field("a_b"), "a_b");
        assert_eq!(Case("camelCase".to_owned()).field("_a__b1"), "aB1");
        let snake = Case("snake_case".to_owned());
        assert_eq!(snake.variant("HTTPError"), "h_t_t_p_error");
    }

    #[test]
    fn deserialization_name_is_used() {
        let serde = Serde::parse(&[
            parse_quote!(#[serde(bound(deserialize = "T: X"), rename(serialize = "a", deserialize = "b"))]),
            parse_quote!(#[serde(alias = "c", default = "some::path")]),
            parse_quote!(#[other(rename = "d")]),
        ]);
        assert_eq!(serde.rename.as_deref(), Some("b"));
        assert!(serde.default);
        assert!(!serde.skip);
        assert!(serde.shape_attribute.is_none());
    }

    #[test]
    fn reshaping_attribute_is_detected() {
        let serde =
            Serde::parse(&[parse_quote!(#[serde(tag = "kind", rename_all = "kebab-case")])]);
        assert_eq!(serde.shape_attribute.unwrap().0, "tag");
        assert_eq!(serde.rename_all, Some(Case("kebab-case".to_owned())));
    }
}
