//! The URI of `#[resource]`.

use crate::errors::Errors;
use crate::keys::Keys;
use proc_macro2::Span;
use syn::LitStr;

/// The URI, or the template of one.
pub(crate) fn uri(keys: &Keys, errors: &mut Errors) -> Option<LitStr> {
    if !keys.has("uri") {
        errors.at_span(
            Span::call_site(),
            "`#[resource]` needs a URI: `#[resource(uri = \"..\")]`",
        );
    }
    let uri = keys.filled_text("uri", errors)?;
    if let Some(wrong) = flaw(&uri.value()) {
        errors.at(&uri, wrong);
    }
    Some(uri)
}

/// The first mistake in a URI or a template. The server rejects the same templates, and a few more, when it is built.
fn flaw(uri: &str) -> Option<&'static str> {
    let scheme = uri.split_once(':').map(|(scheme, _)| scheme);
    if scheme.is_none_or(|scheme| scheme.is_empty() || scheme.contains(['/', '{'])) {
        return Some("the URI needs a scheme, as in `file:///..` or `config://..`");
    }
    let mut pieces = uri.split('{');
    if pieces.next().is_some_and(|text| text.contains('}')) {
        return Some("a `}` without its `{` in the URI");
    }
    let mut pieces = pieces.peekable();
    while let Some(piece) = pieces.next() {
        let Some((expression, text)) = piece.split_once('}') else {
            return Some("a `{` without its `}` in the URI");
        };
        let variables = expression.strip_prefix(OPERATORS).unwrap_or(expression);
        if !variables.split(',').all(is_variable) {
            return Some("a variable of the URI is a name of letters, digits and `_`: `{name}`");
        }
        if text.contains('}') {
            return Some("a `}` without its `{` in the URI");
        }
        let sign = |next: &&str| next.starts_with(OPERATORS) && !next.starts_with('+');
        if text.is_empty() && pieces.peek().is_some_and(|next| !sign(next)) {
            return Some("two variables of the URI need text between them");
        }
    }
    None
}

/// The operators of RFC 6570 that an expression may begin with.
const OPERATORS: [char; 7] = ['+', '#', '.', '/', ';', '?', '&'];

/// A name, perhaps with a `*` or the length of a prefix after it.
fn is_variable(variable: &str) -> bool {
    let name = match variable.split_once(':') {
        Some((name, length)) => {
            if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
                return false;
            }
            name
        }
        None => variable.strip_suffix('*').unwrap_or(variable),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '%');
    !name.is_empty() && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::flaw;

    #[test]
    fn uris_and_templates_pass() {
        for uri in [
            "file:///etc/hosts",
            "config://app",
            "mail:{id}",
            "notes://{year}/{name_2}.md",
            "x://{a,b}/{+rest}",
            "x://{a}{/path*}{?q,limit:3}{&more}{#part}",
            "x://{a}{.type}{;x,y.z}",
        ] {
            assert_eq!(flaw(uri), None, "{uri}");
        }
    }

    #[test]
    fn flaws_are_found() {
        for uri in [
            "etc/hosts",
            ":x",
            "a/b:c",
            "x://{a",
            "x://a}",
            "x://{a}}",
            "x://{{a}}",
            "x://{}",
            "{+uri}",
            "x://{+}",
            "x://{a,}",
            "x://{=a}",
            "x://{a:}",
            "x://{a:3*}",
            "x://{a}{b}",
            "x://{a}{+b}",
        ] {
            assert!(flaw(uri).is_some(), "{uri}");
        }
    }
}
