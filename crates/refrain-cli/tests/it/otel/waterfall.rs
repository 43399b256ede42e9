//! A picture of a trace: one row per span, drawn from received spans.
//!
//! `REFRAIN_WRITE_PICTURE=yes` writes it into the documentation. Otherwise the rows of the picture there must be those of
//! this run; times differ.

use super::collector::ReceivedSpan;
use crate::support::root;
use std::collections::BTreeMap;
use std::fmt::Write;

const ROW: usize = 20;
const LABELS: usize = 400;
const BARS: usize = 520;
const TOP: usize = 34;
const COLOURS: [(&str, &str); 4] = [
    ("client", "#8250df"),
    ("gateway", "#0969da"),
    ("a", "#1a7f37"),
    ("b", "#bc4c00"),
];

struct Row<'a> {
    span: &'a ReceivedSpan,
    depth: usize,
}

pub(super) fn check(spans: &[ReceivedSpan]) {
    let rows = rows(spans);
    let picture = draw(&rows);
    let file = root().join("docs/images/trace.svg");
    if std::env::var_os("REFRAIN_WRITE_PICTURE").is_some() {
        std::fs::write(&file, picture).expect("the picture can be written");
        return;
    }
    let committed = std::fs::read_to_string(&file).expect("the picture of the documentation");
    let run = "REFRAIN_WRITE_PICTURE=yes cargo test -p refrain-cli --test it one_trace";
    assert_eq!(labels(&picture), labels(&committed), "run {run}");
}

/// The text of each row.
fn labels(svg: &str) -> Vec<&str> {
    let texts = svg.split("class=\"label\">").skip(1);
    texts
        .filter_map(|text| Some(text.split_once('<')?.0))
        .collect()
}

/// The rows in the order of the tree. Later siblings with the same name and service, such as polls, are left out.
fn rows(spans: &[ReceivedSpan]) -> Vec<Row<'_>> {
    let mut children: BTreeMap<String, Vec<&ReceivedSpan>> = BTreeMap::new();
    for span in spans {
        children.entry(span.parent()).or_default().push(span);
    }
    for siblings in children.values_mut() {
        siblings.sort_by_key(|span| span.span.start_time_unix_nano);
    }
    let mut rows = Vec::new();
    add_rows(&children, "", 0, &mut rows);
    rows
}

fn add_rows<'a>(
    children: &BTreeMap<String, Vec<&'a ReceivedSpan>>,
    parent: &str,
    depth: usize,
    rows: &mut Vec<Row<'a>>,
) {
    let mut polls = Vec::new();
    for span in children.get(parent).into_iter().flatten() {
        let name = &span.span.name;
        if name == "tasks/get" {
            // Requests to the two instances alternate, so only the first poll is the same in every run.
            if polls.contains(name) {
                continue;
            }
            polls.push(name.clone());
        }
        rows.push(Row { span, depth });
        if name != "tasks/get" {
            add_rows(children, &span.id(), depth + 1, rows);
        }
    }
}

fn draw(rows: &[Row<'_>]) -> String {
    let times = rows.iter().map(|row| &row.span.span);
    let begin = times.clone().map(|it| it.start_time_unix_nano).min();
    let end = times.map(|it| it.end_time_unix_nano).max();
    let (begin, end) = (begin.unwrap_or(0), end.unwrap_or(1));
    let total = (end - begin).max(1) as f64;
    let at = |nanos: u64| LABELS as f64 + (nanos - begin) as f64 / total * BARS as f64;
    let (width, height) = (LABELS + BARS + 80, TOP + rows.len() * ROW + 10);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <title>One call as a trace: client, gateway, two instances, steps and a task</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let mut legend = 10;
    for (service, colour) in COLOURS {
        let text = match service {
            "a" | "b" => format!("instance {service}"),
            other => other.to_owned(),
        };
        let _ = writeln!(
            svg,
            "<rect x=\"{legend}\" y=\"9\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"19\" fill=\"#1f2328\">{text}</text>",
            legend + 18
        );
        legend += 100;
    }
    for (index, row) in rows.iter().enumerate() {
        draw_row(&mut svg, row, TOP + index * ROW, &at);
    }
    draw_links(&mut svg, rows, &at);
    svg + "</svg>\n"
}

fn draw_row(svg: &mut String, row: &Row<'_>, y: usize, at: &impl Fn(u64) -> f64) {
    let (span, service) = (&row.span.span, &row.span.service);
    let colour = COLOURS.iter().find(|(name, _)| name == service);
    let colour = colour.map_or("#57606a", |(_, colour)| colour);
    let (start, end) = (at(span.start_time_unix_nano), at(span.end_time_unix_nano));
    let millis = (span.end_time_unix_nano - span.start_time_unix_nano) as f64 / 1e6;
    let name = span.name.replace('&', "&amp;").replace('<', "&lt;");
    let kind = match row.span.kind() {
        "internal" => String::new(),
        kind => format!(" ({kind})"),
    };
    let (x, base, top) = (10 + 14 * row.depth, y + 14, y + 4);
    let bar = (end - start).max(2.0);
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{base}\" fill=\"#1f2328\" class=\"label\">{name}{kind}</text>\
         <rect x=\"{start:.1}\" y=\"{top}\" width=\"{bar:.1}\" height=\"12\" rx=\"2\" fill=\"{colour}\"/>\
         <text x=\"{:.1}\" y=\"{base}\" fill=\"#57606a\" font-size=\"10\">{millis:.1} ms</text>",
        start + bar + 4.0
    );
}

/// Dashed lines from a span to the earlier span that it is linked to.
fn draw_links(svg: &mut String, rows: &[Row<'_>], at: &impl Fn(u64) -> f64) {
    let middle = |index: usize| TOP + index * ROW + 10;
    for (index, row) in rows.iter().enumerate() {
        for link in row.span.links() {
            let Some(to) = rows.iter().position(|row| row.span.id() == link) else {
                continue;
            };
            let (from_x, to_x) = (
                at(row.span.span.start_time_unix_nano),
                at(rows[to].span.span.end_time_unix_nano),
            );
            let _ = writeln!(
                svg,
                "<path d=\"M{from_x:.1} {} L{to_x:.1} {}\" fill=\"none\" stroke=\"#cf222e\" stroke-dasharray=\"3 3\"/>",
                middle(index),
                middle(to)
            );
        }
    }
}
