//! The metrics endpoint of a server, and a strict parser of OpenMetrics text.

use super::wait::Serving;
use super::{Request, Response, http, listen};
use refrain_server::{METRICS_CONTENT_TYPE, Server, serve_metrics};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// A name with its labels, in which backslashes, quotes and line feeds are escaped, and a value.
const SAMPLE: &str = r#"^(([a-z_]+)(?:\{LABEL(?:,LABEL)*\})?) (\S+)$"#;
const LABEL: &str = r#"[a-z_]+="(?:[^"\\]|\\[\\"n])*""#;

/// The metrics endpoint of a server, on a free port.
pub struct MetricsPort {
    pub address: SocketAddr,
    serving: Serving,
}

impl MetricsPort {
    pub async fn start(server: &Server) -> Self {
        let listener = listen().await;
        let address = listener.local_addr().expect("an address");
        let server = server.clone();
        let serving = Serving::start(|stopped| serve_metrics(listener, server, stopped));
        Self { address, serving }
    }

    pub async fn get(&self, path: &str) -> Response {
        http::send(self.address, &Request::get(path)).await
    }

    pub async fn scrape(&self) -> Scrape {
        let response = self.get("/metrics").await;
        assert_eq!(response.status, 200);
        assert_eq!(response.header("content-type"), Some(METRICS_CONTENT_TYPE));
        Scrape::parse(&response.text())
    }

    pub async fn stop(mut self) {
        self.serving.stop();
        self.serving.ended().await;
    }
}

/// The samples of one scrape, by name and labels as written.
#[derive(Debug)]
pub struct Scrape {
    samples: BTreeMap<String, f64>,
    /// Name and type.
    pub families: BTreeMap<String, String>,
}

impl Scrape {
    /// Parses a scrape, and panics if it is invalid.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let text = text.strip_suffix("# EOF\n").expect("the end is marked");
        let (mut samples, mut families) = (BTreeMap::new(), BTreeMap::new());
        let (mut family, mut kind, mut families_with_help) = ("", "", BTreeSet::new());
        let pattern = Regex::new(&SAMPLE.replace("LABEL", LABEL)).expect("a pattern");
        for line in text.lines() {
            let mut words = line.splitn(4, ' ');
            if words.next() != Some("#") {
                let parts = pattern.captures(line).unwrap_or_else(|| panic!("{line}"));
                let [sample, name, value] = parts.extract().1;
                let suffixes: &[&str] = match kind {
                    "counter" => &["_total"],
                    "gauge" => &[""],
                    "info" => &["_info"],
                    _ => &["_bucket", "_count", "_sum"],
                };
                let suffix = name.strip_prefix(family).unwrap_or("?");
                assert!(suffixes.contains(&suffix), "{line} in {family}");
                let value: f64 = value.parse().expect("a number");
                let before = samples.insert(sample.to_owned(), value);
                assert_eq!(before, None, "duplicate sample {sample}");
                continue;
            }
            let [keyword, name, rest] = [(); 3].map(|()| words.next().expect("a comment"));
            match keyword {
                "HELP" => {
                    assert!(rest.ends_with('.') && !rest.ends_with(".."), "{line}");
                    assert!(families_with_help.insert(name), "duplicate family {name}");
                    family = name;
                }
                "TYPE" => {
                    assert!(
                        ["counter", "gauge", "histogram", "info"].contains(&rest),
                        "{line}"
                    );
                    families.insert(name.to_owned(), rest.to_owned());
                    kind = rest;
                }
                "UNIT" => assert!(name.ends_with(&format!("_{rest}")), "{line}"),
                _ => panic!("{line}"),
            }
            assert_eq!(name, family, "the help text comes first");
        }
        Self { samples, families }
    }

    /// The value of a sample, by name and labels as written.
    #[track_caller]
    pub fn get(&self, sample: &str) -> f64 {
        let found = self.samples.get(sample);
        *found.unwrap_or_else(|| panic!("no {sample} in {:#?}", self.samples))
    }

    /// The labels and values of all samples of this name that are not zero.
    pub fn all(&self, name: &str) -> Vec<(&str, f64)> {
        let has_name = |sample: &str| sample.split('{').next() == Some(name);
        self.samples
            .iter()
            .filter(|(sample, value)| has_name(sample) && **value != 0.0)
            .map(|(sample, value)| (&sample[name.len()..], *value))
            .collect()
    }

    /// The rounds of one method: target and outcome, and their count.
    pub fn rounds(&self, method: &str) -> Vec<(String, f64)> {
        let start = format!("{{method=\"{method}\",target=\"");
        self.all("refrain_rounds_total")
            .into_iter()
            .filter_map(|(labels, value)| {
                let rest = labels.strip_prefix(&start)?.strip_suffix("\"}")?;
                Some((rest.replace("\",outcome=\"", " "), value))
            })
            .collect()
    }
}
