//! Every example is in a story, every story in docs/dialects.md, and nothing of the documents is left out.

use super::{example, examples};
use crate::support::root;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The documents, and the source of the stories of each.
const DOCUMENTS: [(u8, &str, &str, &str); 5] = [
    (
        0,
        "0-streamless-sketch.md",
        "sketch",
        include_str!("sketch.rs"),
    ),
    (1, "1-sep-first-draft.md", "first", include_str!("first.rs")),
    (
        2,
        "2-sep-second-draft.md",
        "second",
        include_str!("second.rs"),
    ),
    (3, "3-request-association.md", "", ""),
    (4, "4-brief.md", "", ""),
];

/// The numbers of the examples that are kept of a document.
fn kept(document: u8) -> Vec<u8> {
    let Ok(files) = std::fs::read_dir(examples().join(document.to_string())) else {
        return Vec::new();
    };
    let number = |file: std::io::Result<std::fs::DirEntry>| {
        let name = file.expect("a file").file_name();
        let name = name.to_str().and_then(|name| name.strip_suffix(".json"));
        name.and_then(|name| name.parse().ok())
            .expect("NUMBER.json")
    };
    let mut numbers: Vec<u8> = files.map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// The rows of the table of examples: document and number, and the story.
fn listed() -> BTreeMap<(u8, u8), String> {
    let page = std::fs::read_to_string(root().join("docs/dialects.md")).expect("the page");
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [document, number, _, story] = cells[..] else {
            return None;
        };
        let key = (document.parse().ok()?, number.parse().ok()?);
        Some((key, story.trim_matches('`').to_owned()))
    });
    rows.collect()
}

/// The source of a function, up to the next one.
fn body<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = source.split_once(&format!("async fn {name}("))?;
    Some(rest.split("\nasync fn ").next().unwrap_or(rest))
}

#[test]
fn every_example_is_listed_with_a_story_that_has_it() {
    let listed = listed();
    for (document, _, module, source) in DOCUMENTS {
        for number in kept(document) {
            let story = listed.get(&(document, number));
            let story =
                story.unwrap_or_else(|| panic!("example {document}/{number} is not listed"));
            let (place, name) = story.split_once("::").expect("MODULE::STORY");
            assert_eq!(place, module, "{story}");
            let body = body(source, name).unwrap_or_else(|| panic!("there is no {story}"));
            let numbers = body.split(|c: char| !c.is_ascii_digit());
            let mut numbers = numbers.filter_map(|word| word.parse::<u8>().ok());
            assert!(
                numbers.any(|it| it == number),
                "{story} has no example {number}"
            );
        }
    }
    for (document, number) in listed.keys() {
        assert!(
            kept(*document).contains(number),
            "there is no example {document}/{number}"
        );
    }
}

#[test]
fn every_block_of_the_documents_is_kept_and_only_what_is_broken_is_repaired() {
    let seeds = root().join("../shared/seeds");
    if !seeds.is_dir() {
        eprintln!("skipped: the documents are not beside the repository");
        return;
    }
    for (document, file, ..) in DOCUMENTS {
        let blocks = blocks(&seeds.join(file));
        let numbers: Vec<u8> = (1..).take(blocks.len()).collect();
        assert_eq!(kept(document), numbers, "{file}");
        for (number, block) in numbers.into_iter().zip(blocks) {
            let mut shown = repaired(&block);
            if (document, number) == (0, 4) {
                // It answers the third message.
                assert_eq!(shown["id"], 2);
                shown["id"] = json!(3);
            }
            assert_eq!(example(document, number), shown, "block {number} of {file}");
        }
    }
}

/// The blocks of JSON in a document.
fn blocks(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).expect("a document");
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in text.lines() {
        match &mut block {
            None if matches!(line.trim(), "```json" | "```json5") => block = Some(String::new()),
            None => {}
            Some(_) if line.trim() == "```" => blocks.extend(block.take()),
            Some(block) => {
                block.push_str(line);
                block.push('\n');
            }
        }
    }
    blocks
}

/// What a block says: without comments, with the commas that are missing and without those that are too many, and a
/// member by itself as an object.
fn repaired(block: &str) -> Value {
    let mut out = String::new();
    let mut text = false;
    let mut rest = block.replace("Â°", "°");
    while let Some(c) = rest.chars().next() {
        if !text && rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            rest.drain(..end);
            continue;
        }
        if text && c == '\\' {
            out.extend(rest.drain(..2));
            continue;
        }
        if c == '"' {
            let last = out.trim_end().chars().last();
            if !text && matches!(last, Some('}' | ']')) {
                out.push(',');
            }
            text = !text;
        }
        if !text && matches!(c, '}' | ']') {
            let kept = out.trim_end();
            out.truncate(kept.strip_suffix(',').unwrap_or(kept).len());
        }
        out.push(c);
        rest.drain(..c.len_utf8());
    }
    let out = out.trim();
    let out = if out.starts_with('"') {
        format!("{{{out}}}")
    } else {
        out.to_owned()
    };
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error} in {out}"))
}
