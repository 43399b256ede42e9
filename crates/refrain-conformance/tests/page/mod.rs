//! Parses a page of rules and reports its problems.

mod source;

pub(crate) use source::{has_test, listed_scenarios};

use source::has_module;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

const LEVELS: [&str; 7] = [
    "MUST",
    "MUST NOT",
    "SHOULD",
    "SHOULD NOT",
    "REQUIRED",
    "RECOMMENDED",
    "MAY",
];
/// How the last cell starts if it gives a reason instead of a test.
const REASONS: [(&str, Proof); 6] = [
    ("the author's: ", Proof::Theirs),
    ("the operator's: ", Proof::Theirs),
    ("the host's: ", Proof::Theirs),
    ("by construction: ", Proof::Shape),
    ("in writing: ", Proof::Shape),
    ("not met: ", Proof::NotMet),
];
/// In a reference, this replaces the file if the test is a scenario of the suite, for servers and
/// for clients.
pub(crate) const SCENARIO: &str = "conformance";
pub(crate) const CLIENT_SCENARIO: &str = "conformance client";

/// The evidence for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    Test,
    /// Ensured by the types or documented; no test possible.
    Shape,
    /// The responsibility of the author, the operator or the host.
    Theirs,
    NotMet,
}

/// A rule.
#[derive(Debug)]
pub(crate) struct Row {
    /// The heading above the table.
    section: String,
    line: usize,
    id: String,
    rule: String,
    level: String,
    proof: String,
}

impl Row {
    /// The pairs in backticks, `file: test`, before any further text.
    fn references(&self) -> Vec<(&str, &str)> {
        let tests = self.proof.split("; ").next().unwrap_or_default();
        let mut references = Vec::new();
        for part in tests.split(", ") {
            let inner = part.strip_prefix('`').and_then(|p| p.strip_suffix('`'));
            match inner.and_then(|inner| inner.split_once(": ")) {
                Some(pair) => references.push(pair),
                None => return Vec::new(),
            }
        }
        references
    }

    pub(crate) fn proof(&self) -> Option<Proof> {
        if !self.references().is_empty() {
            return Some(Proof::Test);
        }
        let reason = |(start, _): &&(&str, Proof)| {
            self.proof
                .strip_prefix(start)
                .is_some_and(|rest| !rest.trim().is_empty())
        };
        REASONS.iter().find(reason).map(|(_, proof)| *proof)
    }

    /// The scenarios that the rule names, for servers or clients.
    pub(crate) fn scenarios(&self, of: &str) -> Vec<String> {
        let references = self.references().into_iter();
        let scenarios = references.filter(|(file, _)| *file == of);
        scenarios.map(|(_, name)| name.to_owned()).collect()
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The id without its number.
    fn prefix(&self) -> &str {
        self.id.rsplit_once('-').map_or("", |(prefix, _)| prefix)
    }

    /// The problems of this row.
    fn problems(&self, root: &Path) -> Vec<String> {
        let mut problems = Vec::new();
        let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase());
        let number = self.id[self.prefix().len()..].strip_prefix('-');
        let has_number = number.is_some_and(|number| number.parse::<u32>().is_ok());
        if !has_number || !self.prefix().split('-').all(is_word) {
            problems.push("invalid id: expected letters, a dash and a number".to_owned());
        }
        if self.rule.is_empty() {
            problems.push("the rule is empty".to_owned());
        }
        if !LEVELS.contains(&self.level.as_str()) {
            problems.push(format!("unknown level {:?}", self.level));
        }
        if self.proof().is_none() {
            problems.push(format!("{:?} is neither a test nor a reason", self.proof));
        }
        for (file, name) in self.references() {
            if ![SCENARIO, CLIENT_SCENARIO].contains(&file) {
                problems.extend(test_problem(root, file, name));
            }
        }
        problems
    }
}

/// The problem with a reference to a test, if any.
fn test_problem(root: &Path, file: &str, name: &str) -> Option<String> {
    let path = root.join("crates").join(file);
    let Ok(text) = fs::read_to_string(&path) else {
        return Some(format!("no such file: crates/{file}"));
    };
    if !has_test(&text, name) {
        return Some(format!("no test {name} in crates/{file}"));
    }
    (!is_built(&path)).then(|| format!("the file crates/{file} belongs to no test program"))
}

/// Whether the file is a test program or a module of one.
fn is_built(file: &Path) -> bool {
    let (Some(folder), Some(stem)) = (file.parent(), file.file_stem().and_then(|s| s.to_str()))
    else {
        return false;
    };
    if folder.ends_with("tests") || folder.ends_with("src") {
        return true;
    }
    let mut above = vec![folder.join("main.rs"), folder.join("mod.rs")];
    above.push(folder.with_extension("rs"));
    above
        .iter()
        .any(|module| fs::read_to_string(module).is_ok_and(|text| has_module(&text, stem)))
}

/// The rules of the page, or the malformed lines.
pub(crate) fn read(page: &str) -> Result<Vec<Row>, Vec<String>> {
    let (mut rows, mut problems) = (Vec::new(), Vec::new());
    let (mut heading, mut in_rules) = (String::new(), false);
    for (number, line) in page.lines().enumerate() {
        let line_number = number + 1;
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut heading);
        }
        let Some(cells) = line.strip_prefix('|').and_then(|l| l.strip_suffix('|')) else {
            in_rules = false;
            continue;
        };
        let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
        if cells == ["id", "rule", "level", "test"] {
            in_rules = true;
        } else if !in_rules || cells.iter().all(|cell| *cell == "---") {
            // The table of counts, or the line below the header.
        } else if let [id, rule, level, proof] = cells[..] {
            rows.push(Row {
                section: heading.clone(),
                line: line_number,
                id: id.to_owned(),
                rule: rule.to_owned(),
                level: level.to_owned(),
                proof: proof.to_owned(),
            });
        } else {
            problems.push(format!("line {line_number}: {} cells, not 4", cells.len()));
        }
    }
    if problems.is_empty() {
        Ok(rows)
    } else {
        Err(problems)
    }
}

/// The expected lines of the table of counts.
pub(crate) fn counts(rows: &[Row]) -> String {
    let mut pages: Vec<(&str, [usize; 5])> = Vec::new();
    let mut all = [0; 5];
    for row in rows {
        if pages.last().is_none_or(|(page, _)| *page != row.section) {
            pages.push((&row.section, [0; 5]));
        }
        let column = match row.proof() {
            Some(Proof::Test) => 1,
            Some(Proof::Shape) => 2,
            Some(Proof::Theirs) => 3,
            Some(Proof::NotMet) | None => 4,
        };
        let page = pages.last_mut().map(|(_, counts)| counts);
        for counts in page.into_iter().chain([&mut all]) {
            counts[0] += 1;
            counts[column] += 1;
        }
    }
    let line = |title: &str, counts: &[usize; 5]| {
        let [a, b, c, d, e] = counts;
        format!("| {title} | {a} | {b} | {c} | {d} | {e} |")
    };
    let mut lines: Vec<String> = Vec::new();
    for (page, counts) in &pages {
        let anchor = page.to_lowercase().replace(' ', "-");
        lines.push(line(&format!("[{page}](#{anchor})"), counts));
    }
    lines.push(line("all", &all));
    lines.join("\n")
}

/// The problems of the page, one per line.
pub(crate) fn problems(root: &Path, page: &str) -> Vec<String> {
    let rows = match read(page) {
        Ok(rows) => rows,
        Err(problems) => return problems,
    };
    if rows.is_empty() {
        return vec!["the page has no rules".to_owned()];
    }
    let mut found = Vec::new();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let mut prefixes: HashMap<&str, &str> = HashMap::new();
    for row in &rows {
        let at = format!("line {}, {}", row.line, row.id);
        for problem in row.problems(root) {
            found.push(format!("{at}: {problem}"));
        }
        if let Some(first) = seen.insert(&row.id, row.line) {
            found.push(format!("{at}: duplicate id, first used in line {first}"));
        }
        let prefix = row.prefix();
        if *prefixes.entry(&row.section).or_insert(prefix) != prefix {
            found.push(format!(
                "{at}: the prefix differs from the other ids of this section"
            ));
        }
    }
    let numbers = counts(&rows);
    if !page.contains(&numbers) {
        found.push(format!("the table of counts is wrong; expected\n{numbers}"));
    }
    found
}
