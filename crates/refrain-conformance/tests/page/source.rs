//! Finds tests and modules in Rust source, ignoring comments and string literals.

/// Whether the source has a test with this name that is not ignored.
pub(crate) fn has_test(source: &str, name: &str) -> bool {
    let code = strip_literals(source);
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    let is_fn = |line: &str| {
        let rest = line.strip_prefix("pub ").unwrap_or(line);
        let rest = rest.strip_prefix("async ").unwrap_or(rest);
        let rest = rest.strip_prefix("fn ").and_then(|r| r.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with('('))
    };
    lines.iter().enumerate().any(|(at, line)| {
        let attributes: Vec<&&str> = lines[..at]
            .iter()
            .rev()
            .take_while(|above| above.starts_with("#[") || above.is_empty())
            .filter(|above| !above.is_empty())
            .collect();
        let is_test = |line: &&&str| {
            line.starts_with("#[test]")
                || line.starts_with("#[tokio::test]")
                || line.starts_with("#[tokio::test(")
        };
        is_fn(line)
            && attributes.iter().any(is_test)
            && !attributes.iter().any(|line| line.starts_with("#[ignore"))
    })
}

/// The names in a source's `SCENARIOS`: the first string of each pair.
pub(crate) fn listed_scenarios(source: &str) -> Vec<String> {
    let list: String = source
        .lines()
        .skip_while(|line| !line.starts_with("const SCENARIOS:"))
        .skip(1)
        .take_while(|line| *line != "];")
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    let pairs = list.split('(').map(str::trim_start);
    pairs
        .filter_map(|pair| pair.strip_prefix('"')?.split('"').next())
        .map(str::to_owned)
        .collect()
}

/// Whether the source declares a module in another file.
pub(crate) fn has_module(source: &str, name: &str) -> bool {
    let declared = format!("mod {name};");
    let declares = |line: &str| line.trim().trim_start_matches("pub(crate) ") == declared;
    strip_literals(source).lines().any(declares)
}

/// Replaces comments and literals by spaces. Keeps line breaks.
fn strip_literals(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => string_literal(rest),
            'r' if !out.ends_with(|c: char| c.is_alphanumeric() || c == '_') => raw_string(rest),
            '\'' => char_literal(rest),
            _ => 0,
        };
        let (blank, after) = rest.split_at(taken);
        out.extend(blank.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = after;
        if taken == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    out
}

/// The length of a block comment, including nested ones.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let bytes = rest.as_bytes();
    let mut at = 0;
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The length of a string literal.
fn string_literal(rest: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of a raw string literal, or 0.
fn raw_string(rest: &str) -> usize {
    let marks = rest[1..].bytes().take_while(|byte| *byte == b'#').count();
    let start = 1 + marks;
    if !rest[start..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(marks));
    let inner = &rest[start + 1..];
    inner
        .find(&end)
        .map_or(rest.len(), |at| start + 1 + at + end.len())
}

/// The length of a character literal, or 0 for a lifetime.
fn char_literal(rest: &str) -> usize {
    let mut letters = rest[1..].char_indices();
    match (letters.next(), letters.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let after = 1 + at + escaped.len_utf8();
            rest[after..].find('\'').map_or(0, |end| after + end + 1)
        }
        (Some(_), Some((at, '\''))) => 1 + at + 1,
        _ => 0,
    }
}
