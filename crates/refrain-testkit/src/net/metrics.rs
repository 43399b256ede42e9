//! The metrics endpoint of a server, and a strict parser of OpenMetrics text.

use super::{Request, Response, http, listen, within};
use refrain_server::{METRICS_CONTENT_TYPE, Server, serve_metrics};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The metrics endpoint of a server, on a port of its own.
pub struct MetricsPort {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<io::Result<()>>,
}

impl MetricsPort {
    pub async fn start(server: &Server) -> Self {
        let listener = listen().await;
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel::<()>();
        // Sending and dropping both stop the server.
        let shutdown = async move { drop(stopped.await) };
        Self {
            address,
            stop,
            serving: tokio::spawn(serve_metrics(listener, server.clone(), shutdown)),
        }
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

    pub async fn stop(self) {
        drop(self.stop);
        let ended = within("the port to close", self.serving).await;
        ended
            .expect("serving does not panic")
            .expect("no I/O error");
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
    /// Parses a scrape, and panics at anything out of place.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let text = text.strip_suffix("# EOF\n").expect("the end is marked");
        let (mut samples, mut families) = (BTreeMap::new(), BTreeMap::new());
        let (mut family, mut kind, mut helped) = (String::new(), "", BTreeSet::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("a help text");
                assert!(help.ends_with('.') && !help.ends_with(".."), "{line}");
                assert!(helped.insert(name), "{name} is there twice");
                family = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, of) = rest.split_once(' ').expect("a type");
                assert_eq!(name, family, "the help text comes first");
                assert!(
                    ["counter", "gauge", "histogram", "info"].contains(&of),
                    "{line}"
                );
                families.insert(name.to_owned(), of.to_owned());
                kind = of;
            } else if let Some(rest) = line.strip_prefix("# UNIT ") {
                let (name, unit) = rest.split_once(' ').expect("a unit");
                assert!(
                    name == family && name.ends_with(&format!("_{unit}")),
                    "{line}"
                );
            } else {
                let (sample, value) = line.rsplit_once(' ').expect("a value");
                let name = sample.split('{').next().expect("a name");
                let suffixes: &[&str] = match kind {
                    "counter" => &["_total"],
                    "gauge" => &[""],
                    "info" => &["_info"],
                    _ => &["_bucket", "_count", "_sum"],
                };
                let suffix = name.strip_prefix(family.as_str()).unwrap_or("?");
                assert!(suffixes.contains(&suffix), "{line} in {family}");
                assert!(
                    name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
                    "{line}"
                );
                check_labels(&sample[name.len()..]);
                let value: f64 = value.parse().expect("a number");
                let before = samples.insert(sample.to_owned(), value);
                assert_eq!(before, None, "{sample} is there twice");
            }
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
        let same = |sample: &str| sample.split('{').next() == Some(name);
        self.samples
            .iter()
            .filter(|(sample, value)| same(sample) && **value != 0.0)
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

/// Checks labels in the form `{name="value",…}` with correct escapes.
#[track_caller]
fn check_labels(labels: &str) {
    if labels.is_empty() {
        return;
    }
    let inner = labels.strip_prefix('{').and_then(|l| l.strip_suffix('}'));
    let mut rest = inner.unwrap_or_else(|| panic!("{labels}"));
    loop {
        let (name, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{labels}"));
        assert!(
            name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
            "{labels}"
        );
        let mut escaped = false;
        let end = value.find(|c| {
            let ends = c == '"' && !escaped;
            assert!(!escaped || ['\\', '"', 'n'].contains(&c), "{labels}");
            escaped = c == '\\' && !escaped;
            ends
        });
        rest = &value[end.unwrap_or_else(|| panic!("{labels}")) + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    assert_eq!(rest, "", "{labels}");
}
