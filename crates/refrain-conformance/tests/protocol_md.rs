//! Checks `docs/project/conformance/server-rules.md` and `client-rules.md`: every rule has an existing test, or a reason why
//! it has no test.

mod page;

use page::{
    CLIENT_SCENARIO, Proof, Row, SCENARIO, counts, has_test, listed_scenarios, problems, read,
};
use refrain_testkit::net::installed::root;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The timeout in seconds for installing the suite and listing its scenarios.
const SUITE_SECONDS: &str = "1200";

/// The pages of rules, for servers and for clients.
const PAGES: [&str; 2] = [
    "docs/project/conformance/server-rules.md",
    "docs/project/conformance/client-rules.md",
];

fn text(page: &str) -> String {
    fs::read_to_string(root().join(page)).expect("the page can be read")
}

/// All rules, of both pages.
fn rows() -> Vec<Row> {
    let rows = PAGES.map(|page| read(&text(page)).expect("the page is valid, see the other test"));
    rows.into_iter().flatten().collect()
}

/// The scenarios that the rules name, for servers or clients.
fn scenarios(of: &str) -> BTreeSet<String> {
    let named: BTreeSet<String> = rows().iter().flat_map(|row| row.scenarios(of)).collect();
    assert!(!named.is_empty(), "the rules name no scenario: {of}");
    named
}

#[test]
fn every_rule_has_an_existing_test_or_a_reason() {
    for page in PAGES {
        let found = problems(&root(), &text(page));
        assert!(found.is_empty(), "{page}:\n{}", found.join("\n"));
    }
}

#[test]
fn rule_ids_are_unique_across_pages() {
    let rows = rows();
    let ids: BTreeSet<&str> = rows.iter().map(Row::id).collect();
    assert_eq!(ids.len(), rows.len());
}

#[test]
fn server_scenarios_in_the_pages_are_run() {
    let listed = Command::new("timeout")
        .args(["--kill-after=5", SUITE_SECONDS])
        .arg(root().join("scripts/conformance"))
        .arg("--list")
        .stdin(Stdio::null())
        .output()
        .expect("timeout(1) starts");
    let stderr = String::from_utf8_lossy(&listed.stderr);
    assert!(listed.status.success(), "{}\n{stderr}", listed.status);
    let listed = String::from_utf8(listed.stdout).expect("the names are UTF-8");
    let run: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    assert_eq!(missing(SCENARIO, &run), [""; 0], "run: {run:?}");
}

#[test]
fn client_scenarios_in_the_pages_are_run() {
    let listed = listed_scenarios(include_str!("it/official_client.rs"));
    let run: BTreeSet<String> = listed.into_iter().collect();
    assert_eq!(missing(CLIENT_SCENARIO, &run), [""; 0], "run: {run:?}");
}

/// The scenarios that the rules name but that are not run.
fn missing(of: &str, run: &BTreeSet<String>) -> Vec<String> {
    scenarios(of).difference(run).cloned().collect()
}

#[test]
fn scenarios_are_read_only_from_their_list() {
    let source = r#"
const OTHERS: [&str; 1] = [
    ("other", 1),
];
const SCENARIOS: [(&str, usize); 2] = [
    ("one", 1),
    // ("no", 1),
    (
        "auth/two",
        2,
    ),
    ("three", 12),
];
    ("late", 1),
"#;
    assert_eq!(listed_scenarios(source), ["one", "auth/two", "three"]);
}

/// A page with one row and correct counts.
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
fn valid_rows_have_no_problems() {
    let proof = format!("`{HERE}: valid_rows_have_no_problems`");
    for (proof, kind) in [
        (proof.clone(), Proof::Test),
        (format!("{proof}, {proof}; but not all of it"), Proof::Test),
        ("`conformance: tools-list`".into(), Proof::Test),
        ("`conformance client: tools_call`".into(), Proof::Test),
        ("the author's: it is theirs".into(), Proof::Theirs),
        ("the host's: it is theirs".into(), Proof::Theirs),
        ("the operator's: `x` is theirs".into(), Proof::Theirs),
        ("by construction: there is no way".into(), Proof::Shape),
        ("in writing: [here](x.md)".into(), Proof::Shape),
        ("not met: it is hard".into(), Proof::NotMet),
    ] {
        let page = page_of(&format!("| ONE-1 | A rule. | MUST | {proof} |"));
        assert_eq!(problems(&root(), &page), [""; 0], "{page}");
        let long = page.replace("ONE-1", "C-ONE-1");
        assert_eq!(problems(&root(), &long), [""; 0], "{long}");
        assert_eq!(read(&page).expect("a page")[0].proof(), Some(kind));
    }
}

#[test]
fn invalid_rows_are_reported() {
    let good = format!("`{HERE}: invalid_rows_are_reported`");
    let row = |proof: &str| format!("| ONE-1 | A rule. | MUST | {proof} |");
    let in_file =
        |file: &str, name: &str| row(&format!("`refrain-conformance/tests/{file}: {name}`"));
    for (rows, words) in [
        (row(""), "neither"),
        (row("todo"), "neither"),
        (row("by construction:"), "neither"),
        (row("tested well"), "neither"),
        (row("`tested well`"), "neither"),
        (in_file("nowhere.rs", "every"), "no such file"),
        (in_file("page/mod.rs", "read"), "no test"),
        (in_file("protocol_md.rs", "page_of"), "no test"),
        (in_file("protocol_md.rs", "invalid_rows"), "no test"),
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
        (row(&good).replace("ONE-1", "C--1"), "id"),
        (row(&good).replace("ONE-1", "C-ONE"), "id"),
        (row(&good).replace("ONE-1", "1"), "id"),
        (row(&good).replace("A rule.", ""), "rule is empty"),
        (row(&good).replace("| MUST ", ""), "cells"),
        (format!("{}\n{}", row(&good), row(&good)), "duplicate id"),
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
    assert!(
        problems(&root(), &page)
            .join("\n")
            .contains("table of counts")
    );
    assert!(
        problems(&root(), "# Page\n")
            .join("\n")
            .contains("no rules")
    );
}

#[test]
fn only_real_tests_are_found() {
    let source = r##"
        #[test]
        fn plain() { let url = "https://x//"; let quote = '"'; let slash = '\\'; }
        #[tokio::test(flavor = "multi_thread")]
        #[should_panic]

        // A comment.
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
fn file_outside_all_test_programs_is_reported() {
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
        found("not_in_it").contains("no test program"),
        "{}",
        found("not_in_it")
    );
}
