//! `docs/protocol.md` tells the truth: every rule has a test that is there, or a reason why it has none.

mod page;

use page::{Proof, Row, counts, has_test, problems, read};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Time for the suite to be installed and to list its scenarios, in seconds.
const SUITE_SECONDS: &str = "1200";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn protocol() -> String {
    fs::read_to_string(root().join("docs/protocol.md")).expect("the page can be read")
}

#[test]
fn every_rule_has_a_test_that_is_there_or_a_reason() {
    let found = problems(&root(), &protocol());
    assert!(found.is_empty(), "docs/protocol.md:\n{}", found.join("\n"));
}

#[test]
fn every_scenario_named_is_one_that_is_run() {
    let listed = Command::new("timeout")
        .args(["--kill-after=5", SUITE_SECONDS])
        .arg(root().join("scripts/conformance"))
        .arg("--list")
        .stdin(Stdio::null())
        .output()
        .expect("timeout(1) could not be started");
    let said = String::from_utf8_lossy(&listed.stderr);
    assert!(listed.status.success(), "{}\n{said}", listed.status);
    let listed = String::from_utf8(listed.stdout).expect("names are text");
    let run: BTreeSet<&str> = listed.lines().collect();
    let rows = read(&protocol()).expect("the other test says what is wrong");
    let named: BTreeSet<String> = rows.iter().flat_map(Row::scenarios).collect();
    assert!(!named.is_empty(), "no scenario is named");
    let missing: Vec<&String> = named
        .iter()
        .filter(|name| !run.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "not run: {missing:?}; run: {run:?}");
}

/// A page of its own with one row in it, and numbers that fit.
fn page_of(row: &str) -> String {
    let table = format!("| id | rule | level | test |\n| --- | --- | --- | --- |\n{row}\n");
    let page = format!("# Page\n\n@\n\n## One\n\n{table}");
    match read(&page) {
        Ok(rows) => page.replace('@', &counts(&rows)),
        Err(_) => page,
    }
}

const HERE: &str = "refrain-conformance/tests/protocol_md.rs";

#[test]
fn what_is_right_is_found_right() {
    let proof = format!("`{HERE}: what_is_right_is_found_right`");
    for (proof, kind) in [
        (proof.clone(), Proof::Test),
        (format!("{proof}, {proof}; but not all of it"), Proof::Test),
        ("`conformance: tools-list`".into(), Proof::Test),
        ("the author's: it is theirs".into(), Proof::Theirs),
        ("the operator's: `x` is theirs".into(), Proof::Theirs),
        ("by shape: there is no way".into(), Proof::Shape),
        ("in writing: [here](x.md)".into(), Proof::Shape),
        ("not met: it is hard".into(), Proof::NotMet),
    ] {
        let page = page_of(&format!("| ONE-1 | A rule. | MUST | {proof} |"));
        assert_eq!(problems(&root(), &page), [""; 0], "{page}");
        assert_eq!(read(&page).expect("a page")[0].proof(), Some(kind));
    }
}

#[test]
fn what_is_wrong_is_found() {
    let good = format!("`{HERE}: what_is_wrong_is_found`");
    let row = |proof: &str| format!("| ONE-1 | A rule. | MUST | {proof} |");
    let in_file =
        |file: &str, name: &str| row(&format!("`refrain-conformance/tests/{file}: {name}`"));
    for (rows, words) in [
        (row(""), "neither"),
        (row("todo"), "neither"),
        (row("by shape:"), "neither"),
        (row("tested well"), "neither"),
        (row("`tested well`"), "neither"),
        (in_file("nowhere.rs", "every"), "no such file"),
        (in_file("page/mod.rs", "read"), "no test"),
        (in_file("protocol_md.rs", "page_of"), "no test"),
        (in_file("protocol_md.rs", "what_is_wrong"), "no test"),
        (
            row("`refrain-server/tests/it/support/mod.rs: start`"),
            "no test",
        ),
        (
            row(&format!("{good}, `refrain-none/tests/x.rs: y`")),
            "no such file",
        ),
        (row(&good).replace("MUST", "OUGHT"), "level"),
        (row(&good).replace("ONE-1", "one"), "id"),
        (row(&good).replace("A rule.", ""), "rule"),
        (row(&good).replace("| MUST ", ""), "cells"),
        (format!("{}\n{}", row(&good), row(&good)), "twice"),
        (
            format!("{}\n{}", row(&good), row(&good).replace("ONE-1", "TWO-2")),
            "TWO-2",
        ),
    ] {
        let found = problems(&root(), &page_of(&rows)).join("\n");
        assert!(
            found.contains(words),
            "{rows}: {words:?} is not in {found:?}"
        );
    }
    let page = page_of(&row(&good)).replace("| 1 |", "| 2 |");
    assert!(problems(&root(), &page).join("\n").contains("numbers"));
    assert!(
        problems(&root(), "# Page\n")
            .join("\n")
            .contains("no rules")
    );
}

#[test]
fn tests_are_told_from_what_only_looks_like_them() {
    let source = r##"
        #[test]
        fn plain() { let url = "https://x//"; let quote = '"'; let slash = '\\'; }
        #[tokio::test(flavor = "multi_thread")]
        #[should_panic]

        // A word.
        async fn with_more() {}
        #[cfg(test)]
        fn helper<'a>(text: &'a str) {}
        #[test]
        #[ignore = "slow"]
        fn left_out() {}
        // #[test]
        // fn commented_out() {}
        /* /* inner */
        #[test]
        fn commented_out() {}
        */
        const TEXT: &str = "
        #[test]
        fn in_a_text() {}
        ";
        const RAW: &str = r#"" "
        #[test]
        fn in_a_text() {}
        "#;
        fn after() {}
        #[test]
        fn last() {}
    "##;
    for name in ["plain", "with_more", "last"] {
        assert!(has_test(source, name), "{name}");
    }
    for name in [
        "helper",
        "left_out",
        "commented_out",
        "in_a_text",
        "after",
        "plai",
        "none",
    ] {
        assert!(!has_test(source, name), "{name}");
    }
}

#[test]
fn a_file_that_no_program_has_is_no_test() {
    let files = Path::new(env!("CARGO_TARGET_TMPDIR")).join("protocol-md");
    let tests = files.join("crates/one/tests/it");
    fs::create_dir_all(&tests).expect("a folder for files");
    fs::write(tests.join("main.rs"), "mod in_it;\n// mod not_in_it;\n").expect("a file");
    for name in ["in_it.rs", "not_in_it.rs"] {
        fs::write(tests.join(name), "#[test]\nfn t() {}\n").expect("a file");
    }
    let found = |name: &str| {
        let row = format!("| ONE-1 | A rule. | MUST | `one/tests/it/{name}.rs: t` |");
        problems(&files, &page_of(&row)).join("\n")
    };
    assert_eq!(found("in_it"), "");
    assert!(
        found("not_in_it").contains("no program"),
        "{}",
        found("not_in_it")
    );
}
