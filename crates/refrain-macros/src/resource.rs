//! The URI of `#[resource]`.

use crate::errors::Errors;
use crate::keys::AttributeKeys;
use proc_macro2::Span;
use syn::LitStr;

/// The URI or URI template.
pub(crate) fn uri(keys: &AttributeKeys, errors: &mut Errors) -> Option<LitStr> {
    if !keys.has("uri") {
        errors.at_span(
            Span::call_site(),
            "`#[resource]` needs a URI: `#[resource(uri = \"..\")]`",
        );
    }
    let uri = keys.filled_text("uri", errors)?;
    if let Some(message) = find_error(&uri.value()) {
        errors.at(&uri, message);
    }
    Some(uri)
}

/// The first error in a URI or a template. The server builder checks templates more strictly.
fn find_error(uri: &str) -> Option<&'static str> {
    let scheme = uri.split_once(':').map(|(scheme, _)| scheme);
    if scheme.is_none_or(|scheme| scheme.is_empty() || scheme.contains(['/', '{'])) {
        return Some("the URI has no scheme: write `file:///..` or `config://..`, for example");
    }
    let mut pieces = uri.split('{');
    if pieces.next().is_some_and(|text| text.contains('}')) {
        return Some("unmatched `}` in the URI");
    }
    let mut pieces = pieces.peekable();
    while let Some(piece) = pieces.next() {
        let Some((expression, text)) = piece.split_once('}') else {
            return Some("unclosed `{` in the URI");
        };
        let variables = expression.strip_prefix(OPERATORS).unwrap_or(expression);
        if !variables.split(',').all(is_variable) {
            return Some(
                "invalid variable in the URI: write `{name}`, with letters, digits and `_`",
            );
        }
        if text.contains('}') {
            return Some("unmatched `}` in the URI");
        }
        let has_separator = |next: &&str| next.starts_with(OPERATORS) && !next.starts_with('+');
        if text.is_empty() && pieces.peek().is_some_and(|next| !has_separator(next)) {
            return Some("adjacent variables in the URI: put text between them");
        }
    }
    None
}

/// The operators that an RFC 6570 expression may start with.
const OPERATORS: [char; 7] = ['+', '#', '.', '/', ';', '?', '&'];

/// Returns whether this is a name, optionally followed by `*` or a prefix length.
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
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '%');
    !name.is_empty() && name.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::find_error;

    #[test]
    fn valid_uris_and_templates_are_accepted() {
        for uri in [
            "file:///etc/hosts",
            "config://app",
            "mail:{id}",
            "notes://{year}/{name_2}.md",
            "x://{a,b}/{+rest}",
            "x://{a}{/path*}{?q,limit:3}{&more}{#part}",
            "x://{a}{.type}{;x,y.z}",
        ] {
            assert_eq!(find_error(uri), None, "{uri}");
        }
    }

    #[test]
    fn invalid_uris_are_rejected() {
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
            assert!(find_error(uri).is_some(), "{uri}");
        }
    }
}
