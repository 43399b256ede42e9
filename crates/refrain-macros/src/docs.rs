//! Doc comments as descriptions.

use crate::keys::as_text;
use syn::{Attribute, Meta};

/// The text of the doc comments among `attrs`: the lines as written, without the space that follows `///`, and
/// without the empty lines before and after. `None` if nothing is left.
pub(crate) fn text(attrs: &[Attribute]) -> Option<String> {
    let lines: Vec<String> = attrs
        .iter()
        .filter_map(literal)
        .flat_map(|comment| lines(&comment))
        .collect();
    let text = lines.join("\n");
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The text of a doc comment. `#[doc(hidden)]` and `#[doc = include_str!(..)]` have none here.
fn literal(attr: &Attribute) -> Option<String> {
    let Meta::NameValue(meta) = &attr.meta else {
        return None;
    };
    let text = as_text(&meta.value)?;
    meta.path.is_ident("doc").then(|| text.value())
}

fn lines(comment: &str) -> Vec<String> {
    // A block comment may begin each of its lines with a star.
    let starred = comment.contains('\n')
        && comment
            .split('\n')
            .skip(1)
            .map(str::trim_start)
            .all(|line| line.is_empty() || line.starts_with('*'));
    comment
        .split('\n')
        .map(|line| {
            let unstarred = line.trim_start().strip_prefix('*').filter(|_| starred);
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
    fn lines_and_paragraphs_stay() {
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
    fn block_comments_lose_their_stars() {
        let item: syn::ItemFn =
            syn::parse_str("/** One.\n * Two.\n *\n * Three.\n */\nfn f() {}").expect("a function");
        assert_eq!(text(&item.attrs).unwrap(), "One.\nTwo.\n\nThree.");
    }

    #[test]
    fn nothing_is_nothing() {
        let item: syn::ItemFn = parse_quote! {
            ///
            fn f() {}
        };
        assert_eq!(text(&item.attrs), None);
    }
}
