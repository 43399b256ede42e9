//! What serde's own attributes say of the names and shapes that are read.
//!
//! Serde reports mistakes in its attributes itself, so what cannot be read is passed over here.

use crate::errors::Errors;
use proc_macro2::Span;
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Attribute, Expr, LitStr, Token};

/// What matters to a form.
#[derive(Default)]
pub(super) struct Serde {
    pub(super) rename: Option<String>,
    pub(super) rename_all: Option<Case>,
    /// May be left out.
    pub(super) default: bool,
    /// Is not read at all.
    pub(super) skip: bool,
    /// An attribute that makes serde expect another shape than a form's, and where it is.
    pub(super) reshaped: Option<(String, Span)>,
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
        let key = match meta.path.get_ident() {
            Some(ident) => ident.to_string(),
            None => String::new(),
        };
        match key.as_str() {
            "rename" => {
                if let Some(name) = deserialized(meta)? {
                    self.rename = Some(name.value());
                }
                return Ok(());
            }
            "rename_all" => {
                if let Some(name) = deserialized(meta)? {
                    self.rename_all = Case::named(&name.value());
                }
                return Ok(());
            }
            "default" => self.default = true,
            "skip" | "skip_deserializing" => self.skip = true,
            "flatten" | "transparent" | "tag" | "content" | "untagged" => {
                self.reshaped = Some((key, meta.path.span()));
            }
            _ => {}
        }
        pass_over(meta)
    }

    /// Reports an attribute that makes serde expect another shape.
    pub(super) fn check_shape(&self, shape: &str, errors: &mut Errors) {
        if let Some((key, span)) = &self.reshaped {
            errors.at_span(
                *span,
                format!("`#[serde({key})]` does not go with `Elicit`: {shape}"),
            );
        }
    }
}

/// The name for reading in `rename = ".."` or `rename(deserialize = "..", serialize = "..")`.
fn deserialized(meta: &ParseNestedMeta<'_>) -> syn::Result<Option<LitStr>> {
    if meta.input.peek(Token![=]) {
        return meta.value()?.parse().map(Some);
    }
    let mut name = None;
    meta.parse_nested_meta(|inner| {
        let value: LitStr = inner.value()?.parse()?;
        if inner.path.is_ident("deserialize") {
            name = Some(value);
        }
        Ok(())
    })?;
    Ok(name)
}

fn pass_over(meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
    if meta.input.peek(Token![=]) {
        meta.value()?.parse::<Expr>()?;
    } else if meta.input.peek(syn::token::Paren) {
        meta.parse_nested_meta(|inner| pass_over(&inner))?;
    }
    Ok(())
}

/// The cases of `rename_all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    Lower,
    Upper,
    Pascal,
    Camel,
    Snake,
    ScreamingSnake,
    Kebab,
    ScreamingKebab,
}

impl Case {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "lowercase" => Self::Lower,
            "UPPERCASE" => Self::Upper,
            "PascalCase" => Self::Pascal,
            "camelCase" => Self::Camel,
            "snake_case" => Self::Snake,
            "SCREAMING_SNAKE_CASE" => Self::ScreamingSnake,
            "kebab-case" => Self::Kebab,
            "SCREAMING-KEBAB-CASE" => Self::ScreamingKebab,
            _ => return None,
        })
    }

    /// The name of a field, which is written in snake case.
    pub(super) fn field(self, field: &str) -> String {
        match self {
            Self::Lower | Self::Snake => field.to_owned(),
            Self::Upper | Self::ScreamingSnake => field.to_ascii_uppercase(),
            Self::Pascal => field.split('_').map(capitalised).collect(),
            Self::Camel => uncapitalised(&Self::Pascal.field(field)),
            Self::Kebab => field.replace('_', "-"),
            Self::ScreamingKebab => field.to_ascii_uppercase().replace('_', "-"),
        }
    }

    /// The name of a variant, which is written in Pascal case.
    pub(super) fn variant(self, variant: &str) -> String {
        match self {
            Self::Pascal => variant.to_owned(),
            Self::Lower => variant.to_ascii_lowercase(),
            Self::Upper => variant.to_ascii_uppercase(),
            Self::Camel => uncapitalised(variant),
            Self::Snake => {
                let mut snake = String::new();
                for c in variant.chars() {
                    if !snake.is_empty() && c.is_uppercase() {
                        snake.push('_');
                    }
                    snake.push(c.to_ascii_lowercase());
                }
                snake
            }
            Self::ScreamingSnake => Self::Snake.variant(variant).to_ascii_uppercase(),
            Self::Kebab => Self::Snake.variant(variant).replace('_', "-"),
            Self::ScreamingKebab => Self::ScreamingSnake.variant(variant).replace('_', "-"),
        }
    }
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn uncapitalised(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|c| c.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    #[test]
    fn cases_are_those_of_serde() {
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
            let rule = Case::named(case).unwrap();
            assert_eq!(rule.field("very_tasty"), field, "{case}");
            assert_eq!(rule.variant("VeryTasty"), variant, "{case}");
        }
        assert_eq!(Case::named("Train-Case"), None);
        assert_eq!(Case::Camel.field("_a__b1"), "aB1");
        assert_eq!(Case::Snake.variant("HTTPError"), "h_t_t_p_error");
    }

    #[test]
    fn names_for_reading_are_taken() {
        let serde = Serde::parse(&[
            parse_quote!(#[serde(bound(deserialize = "T: X"), rename(serialize = "a", deserialize = "b"))]),
            parse_quote!(#[serde(alias = "c", default = "some::path")]),
            parse_quote!(#[other(rename = "d")]),
        ]);
        assert_eq!(serde.rename.as_deref(), Some("b"));
        assert!(serde.default);
        assert!(!serde.skip);
        assert!(serde.reshaped.is_none());
    }

    #[test]
    fn other_shapes_are_seen() {
        let serde =
            Serde::parse(&[parse_quote!(#[serde(tag = "kind", rename_all = "kebab-case")])]);
        assert_eq!(serde.reshaped.unwrap().0, "tag");
        assert_eq!(serde.rename_all, Some(Case::Kebab));
    }
}
