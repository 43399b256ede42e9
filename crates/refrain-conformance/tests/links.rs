//! Links of the documentation: every page, file and anchor exists, and the book lists every page.

use refrain_testkit::net::installed::root;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// All Markdown files under a folder.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is readable") {
        let path = entry.expect("the entry is readable").path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// The lines of a page outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// The targets of inline links and images; code spans are skipped.
fn links(text: &str) -> Vec<String> {
    let outside_code = |line: &str| -> String { line.split('`').step_by(2).collect() };
    let lines: Vec<String> = prose(text).map(outside_code).collect();
    let targets = lines.iter().flat_map(|line| line.split("](").skip(1));
    targets
        .filter_map(|rest| rest.split([')', ' ']).next())
        .map(str::to_owned)
        .collect()
}

/// The anchors of a page, as GitHub and mdBook derive them from headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let anchor = slug(line.trim_start_matches('#').trim());
            let count = counts.entry(anchor.clone()).or_default();
            *count += 1;
            match *count {
                1 => anchor,
                n => format!("{anchor}-{}", n - 1),
            }
        })
        .collect()
}

fn slug(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.collect::<String>().to_lowercase()
}

/// Resolves `..` without the file system.
fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// Why a link is broken, if it is.
fn broken(root: &Path, page: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = match file {
        "" => page.to_owned(),
        file => normalize(&page.parent().expect("a page is in a folder").join(file)),
    };
    let book = root.join("docs");
    if !path.exists() {
        return Some("no such file".into());
    }
    if page.starts_with(&book) && !path.starts_with(&book) {
        return Some("it leaves the book; name the path as code instead".into());
    }
    if !anchor.is_empty() {
        let text = fs::read_to_string(&path).unwrap_or_default();
        if !anchors(&text).contains(anchor) {
            return Some("no such heading".into());
        }
    }
    None
}

#[test]
fn every_link_of_the_documentation_resolves() {
    let root = root();
    let names = ["README", "CONTRIBUTING", "CHANGELOG", "SECURITY"];
    let mut all: Vec<PathBuf> = names.map(|name| root.join(format!("{name}.md"))).into();
    pages(&root.join("docs"), &mut all);
    let mut faults = Vec::new();
    for page in &all {
        let text = fs::read_to_string(page).expect("the page is readable");
        let shown = page.strip_prefix(&root).expect("pages are below the root");
        for target in links(&text) {
            if let Some(why) = broken(&root, page, &target) {
                faults.push(format!("{}: {target}: {why}", shown.display()));
            }
        }
    }
    assert!(faults.is_empty(), "broken links:\n{}", faults.join("\n"));
}

#[test]
fn every_page_is_listed_in_the_summary() {
    let book = root().join("docs");
    let summary = fs::read_to_string(book.join("SUMMARY.md")).expect("SUMMARY.md is readable");
    let listed: BTreeSet<PathBuf> = links(&summary).iter().map(|page| book.join(page)).collect();
    let mut all = Vec::new();
    pages(&book, &mut all);
    let missing: Vec<&PathBuf> = all
        .iter()
        .filter(|page| !page.ends_with("SUMMARY.md") && !listed.contains(*page))
        .collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

#[test]
fn every_page_with_rust_code_is_compiled() {
    let root = root();
    let crates = [
        "crates/refrain/src/lib.rs",
        "crates/refrain-rmcp/src/lib.rs",
    ];
    let including = crates.map(|file| fs::read_to_string(root.join(file)));
    let including = including.map(|text| text.expect("lib.rs is readable"));
    let mut all = Vec::new();
    pages(&root.join("docs"), &mut all);
    let missing: Vec<PathBuf> = all
        .into_iter()
        .filter(|page| {
            let text = fs::read_to_string(page).expect("the page is readable");
            let blocks = || text.lines().filter(|line| line.starts_with("```rust"));
            let shown = page.strip_prefix(&root).expect("pages are below the root");
            blocks().any(|line| line != "```rust,ignore")
                && !including
                    .concat()
                    .contains(&format!("/{}\"", shown.display()))
        })
        .collect();
    assert!(
        missing.is_empty(),
        "not included in one of {crates:?}: {missing:?}"
    );
}

#[test]
fn links_and_anchors_are_read_from_prose_only() {
    let page =
        "# A `b` C\n[x](a.md#y) ![z](i.svg) `[no](no.md)`\n```\n# no\n[no](no.md)\n```\n## A b c\n";
    assert_eq!(links(page), ["a.md#y", "i.svg"]);
    assert_eq!(
        anchors(page),
        BTreeSet::from(["a-b-c".to_owned(), "a-b-c-1".to_owned()])
    );
}

#[test]
fn missing_files_and_headings_are_reported() {
    let root = root();
    let page = root.join("README.md");
    assert_eq!(
        broken(&root, &page, "docs/nothing.md").as_deref(),
        Some("no such file")
    );
    assert_eq!(
        broken(&root, &page, "#nothing").as_deref(),
        Some("no such heading")
    );
    assert_eq!(broken(&root, &page, "docs/SUMMARY.md#guide"), None);
}
