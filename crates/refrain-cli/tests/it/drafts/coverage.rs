//! Every example of the documents is used by a story, and listed in docs/reference/dialects.md.

use super::stories::NAMES;
use super::{example, examples};
use crate::support::root;
use aws_lc_rs::digest;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The documents and their number of examples.
const DOCUMENTS: [(u8, &str, u8); 5] = [
    (0, "0-streamless-sketch.md", 4),
    (1, "1-sep-first-draft.md", 17),
    (2, "2-sep-second-draft.md", 31),
    (3, "3-request-association.md", 0),
    (4, "4-brief.md", 0),
];

/// The SHA-256 digest of all examples in sequence.
const DIGEST: &str = "cdab8d244477cd7a56ff548abd4708ebf4f000a9ea8e503f343bd9d3c08483c0";

/// The numbers of the examples of a document.
fn example_numbers(document: u8) -> Vec<u8> {
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

/// The table of examples: document and number, and the story.
pub(super) fn listed_examples() -> BTreeMap<(u8, u8), String> {
    let page = std::fs::read_to_string(root().join("docs/reference/dialects.md"))
        .expect("the page is readable");
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

#[test]
fn every_example_is_listed_with_a_story() {
    let listed = listed_examples();
    for (document, ..) in DOCUMENTS {
        for number in example_numbers(document) {
            let story = listed.get(&(document, number));
            let story =
                story.unwrap_or_else(|| panic!("example {document}/{number} is not listed"));
            assert!(NAMES.contains(&story.as_str()), "unknown story {story}");
        }
    }
    for (document, number) in listed.keys() {
        assert!(
            example_numbers(*document).contains(number),
            "missing example {document}/{number}"
        );
    }
}

#[test]
fn examples_have_their_recorded_checksum() {
    let mut all = digest::Context::new(&digest::SHA256);
    for (document, _, count) in DOCUMENTS {
        let numbers: Vec<u8> = (1..=count).collect();
        assert_eq!(example_numbers(document), numbers, "document {document}");
        for number in numbers {
            let mut example = example(document, number);
            example.sort_all_objects();
            all.update(example.to_string().as_bytes());
        }
    }
    let digest: String = all
        .finish()
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(digest, DIGEST);
}

#[test]
fn every_json_block_of_the_documents_is_an_example() {
    let seeds = root().join("../shared/seeds");
    if !seeds.is_dir() {
        eprintln!("skipped: the documents are not available");
        return;
    }
    for (document, file, ..) in DOCUMENTS {
        let blocks = blocks(&seeds.join(file));
        let numbers: Vec<u8> = (1..).take(blocks.len()).collect();
        assert_eq!(example_numbers(document), numbers, "{file}");
        for (number, block) in numbers.into_iter().zip(blocks) {
            let mut shown = repaired(&block);
            if (document, number) == (0, 4) {
                // This example responds to the third message, but has the id of the second.
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

/// Parses a block: removes comments, fixes commas, and wraps a single member into an object.
fn repaired(block: &str) -> Value {
    let mut out = String::new();
    let mut in_text = false;
    // The documents contain wrongly decoded degree signs.
    let mut rest = block.replace("Â°", "°");
    while let Some(c) = rest.chars().next() {
        if !in_text && rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            rest.drain(..end);
            continue;
        }
        if in_text && c == '\\' {
            out.extend(rest.drain(..2));
            continue;
        }
        if c == '"' {
            let last = out.trim_end().chars().last();
            if !in_text && matches!(last, Some('}' | ']')) {
                out.push(',');
            }
            in_text = !in_text;
        }
        if !in_text && matches!(c, '}' | ']') {
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
