//! Reads a page of rules, and finds what is wrong with it.

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
/// What stands at the beginning of a last cell that names no test.
const REASONS: [(&str, Proof); 6] = [
    ("the author's: ", Proof::Theirs),
    ("the operator's: ", Proof::Theirs),
    ("the host's: ", Proof::Theirs),
    ("by shape: ", Proof::Shape),
    ("in writing: ", Proof::Shape),
    ("not met: ", Proof::NotMet),
];
/// What stands in place of a file before a scenario of the suite, for servers and for clients.
pub(crate) const SCENARIO: &str = "conformance";
pub(crate) const CLIENT_SCENARIO: &str = "conformance client";

/// How a rule is proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    Test,
    /// There is nothing to run.
    Shape,
    /// It is left to the author, the operator or the host.
    Theirs,
    NotMet,
}

/// A rule.
#[derive(Debug)]
pub(crate) struct Row {
    /// The heading it stands under.
    page: String,
    line: usize,
    id: String,
    rule: String,
    level: String,
    proof: String,
}

impl Row {
    /// What is named in back ticks as `where: what`, before any words.
    fn named(&self) -> Vec<(&str, &str)> {
        let tests = self.proof.split("; ").next().unwrap_or_default();
        let mut named = Vec::new();
        for part in tests.split(", ") {
            let inner = part.strip_prefix('`').and_then(|p| p.strip_suffix('`'));
            match inner.and_then(|inner| inner.split_once(": ")) {
                Some(pair) => named.push(pair),
                None => return Vec::new(),
            }
        }
        named
    }

    pub(crate) fn proof(&self) -> Option<Proof> {
        if !self.named().is_empty() {
            return Some(Proof::Test);
        }
        let reason = |(start, _): &&(&str, Proof)| {
            self.proof
                .strip_prefix(start)
                .is_some_and(|rest| !rest.trim().is_empty())
        };
        REASONS.iter().find(reason).map(|(_, proof)| *proof)
    }

    /// The scenarios it names: those for servers, or those for clients.
    pub(crate) fn scenarios(&self, of: &str) -> Vec<String> {
        let named = self.named().into_iter();
        let scenarios = named.filter(|(place, _)| *place == of);
        scenarios.map(|(_, name)| name.to_owned()).collect()
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The id without its number.
    fn prefix(&self) -> &str {
        self.id.rsplit_once('-').map_or("", |(prefix, _)| prefix)
    }

    /// What is wrong with it, as far as it says itself.
    fn faults(&self, root: &Path) -> Vec<String> {
        let mut faults = Vec::new();
        let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase());
        let number = self.id[self.prefix().len()..].strip_prefix('-');
        let has_number = number.is_some_and(|number| number.parse::<u32>().is_ok());
        if !has_number || !self.prefix().split('-').all(is_word) {
            faults.push("the id is not letters, a dash and a number".to_owned());
        }
        if self.rule.is_empty() {
            faults.push("there is no rule".to_owned());
        }
        if !LEVELS.contains(&self.level.as_str()) {
            faults.push(format!("{:?} is no level", self.level));
        }
        if self.proof().is_none() {
            faults.push(format!("{:?} is neither a test nor a reason", self.proof));
        }
        for (place, name) in self.named() {
            if ![SCENARIO, CLIENT_SCENARIO].contains(&place) {
                faults.extend(test_fault(root, place, name));
            }
        }
        faults
    }
}

/// Why there is no test of this name in this file, if there is none.
fn test_fault(root: &Path, place: &str, name: &str) -> Option<String> {
    let file = root.join("crates").join(place);
    let Ok(text) = fs::read_to_string(&file) else {
        return Some(format!("no such file: crates/{place}"));
    };
    if !has_test(&text, name) {
        return Some(format!("no test {name} in crates/{place}"));
    }
    (!is_built(&file)).then(|| format!("no program has the file crates/{place} in it"))
}

/// Is the file a program of tests, or a module of one?
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

/// The rules of the page, or the lines that cannot be read.
pub(crate) fn read(page: &str) -> Result<Vec<Row>, Vec<String>> {
    let (mut rows, mut faults) = (Vec::new(), Vec::new());
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
            // The table of numbers, or the line under the titles.
        } else if let [id, rule, level, proof] = cells[..] {
            rows.push(Row {
                page: heading.clone(),
                line: line_number,
                id: id.to_owned(),
                rule: rule.to_owned(),
                level: level.to_owned(),
                proof: proof.to_owned(),
            });
        } else {
            faults.push(format!("line {line_number}: {} cells, not 4", cells.len()));
        }
    }
    if faults.is_empty() {
        Ok(rows)
    } else {
        Err(faults)
    }
}

/// The lines of the table of numbers, as they have to be.
pub(crate) fn counts(rows: &[Row]) -> String {
    let mut pages: Vec<(&str, [usize; 5])> = Vec::new();
    let mut all = [0; 5];
    for row in rows {
        if pages.last().is_none_or(|(page, _)| *page != row.page) {
            pages.push((&row.page, [0; 5]));
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

/// Everything that is wrong with the page, a line each.
pub(crate) fn problems(root: &Path, page: &str) -> Vec<String> {
    let rows = match read(page) {
        Ok(rows) => rows,
        Err(faults) => return faults,
    };
    if rows.is_empty() {
        return vec!["there are no rules".to_owned()];
    }
    let mut found = Vec::new();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let mut prefixes: HashMap<&str, &str> = HashMap::new();
    for row in &rows {
        let at = format!("line {}, {}", row.line, row.id);
        for fault in row.faults(root) {
            found.push(format!("{at}: {fault}"));
        }
        if let Some(first) = seen.insert(&row.id, row.line) {
            found.push(format!(
                "{at}: the id is there twice, first in line {first}"
            ));
        }
        let prefix = row.prefix();
        if *prefixes.entry(&row.page).or_insert(prefix) != prefix {
            found.push(format!("{at}: the other ids of this page begin otherwise"));
        }
    }
    let numbers = counts(&rows);
    if !page.contains(&numbers) {
        found.push(format!("the numbers are wrong; they have to be\n{numbers}"));
    }
    found
}
