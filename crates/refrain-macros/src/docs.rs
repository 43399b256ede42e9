//! Descriptions from doc comments.

use crate::keys::as_text;
use syn::{Attribute, Meta};

/// The text of the doc comments, without the space after `///` and without leading and trailing empty lines.
/// `None` if it is empty.
pub(crate) fn text(attrs: &[Attribute]) -> Option<String> {
    let lines: Vec<String> = attrs
        .iter()
        .filter_map(doc_literal)
        .flat_map(|comment| comment_lines(&comment))
        .collect();
    let text = lines.join("\n");
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The text of a doc comment. `#[doc(hidden)]` and `#[doc = include_str!(..)]` have no text.
fn doc_literal(attr: &Attribute) -> Option<String> {
    let Meta::NameValue(meta) = &attr.meta else {
        return None;
    };
    let text = as_text(&meta.value)?;
    meta.path.is_ident("doc").then(|| text.value())
}

fn comment_lines(comment: &str) -> Vec<String> {
    // The lines of a block comment may start with a star.
    let has_stars = comment.contains('\n')
        && comment
            .split('\n')
            .skip(1)
            .map(str::trim_start)
            .all(|line| line.is_empty() || line.starts_with('*'));
    comment
        .split('\n')
        .map(|line| {
            let unstarred = line.trim_start().strip_prefix('*').filter(|_| has_stars);
            let line = unstarred.unwrap_or(line);
            line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use syn::parse_quote;

    #[test]
    fn doc_lines_and_paragraphs_are_kept() {
        let item: syn::ItemFn = parse_quote! {
            /// Change a work item,
            /// step by step.
            ///
            /// - one
            ///   - two
            #[doc(hidden)]
            fn f() {}
        };
        assert_eq!(
            text(&item.attrs).unwrap(),
            "Change a work item,\nstep by step.\n\n- one\n  - two"
        );
    }

    #[test]
    fn block_comment_stars_are_removed() {
        let item: syn::ItemFn =
            syn::parse_str("/** One.\n * Two.\n *\n * Three.\n */\nfn f() {}").expect("valid Rust");
        assert_eq!(text(&item.attrs).unwrap(), "One.\nTwo.\n\nThree.");
    }

    #[test]
    fn empty_doc_comment_has_no_text() {
        let item: syn::ItemFn = parse_quote! {
            ///
            fn f() {}
        };
        assert_eq!(text(&item.attrs), None);
    }
}
