//! A URL to visit: shown whole, never fetched, and opened only with the person's consent.

use super::asker::{decide, hanging, introduce, quote};
use super::console::{Console, Left};
use super::text::{Line, broken, one_line};
use crate::style::{CAREFUL, DIM, GIVEN, MARK, PLAIN, WRONG};
use anstyle::Style;
use refrain_client::UrlAsk;
use url::{Host, Url};

const OPEN: &str = "Open it in the browser";
const GO_ON: &str = "Go on: I have been there, or shall go there now";

pub(super) fn ask(console: &mut dyn Console, ask: &UrlAsk) -> Result<(), Left> {
    introduce(console, &ask.asker, "asks you to visit a page")?;
    quote(console, &ask.message)?;
    show(console, &ask.url)?;
    // One key too many does not agree to anything.
    let mut start = None;
    let host = one_line(ask.url.host_str().unwrap_or_default());
    let label = format!("Visit {host}?");
    while decide(console, &ask.asker, &label, &[OPEN, GO_ON], start)? == 0 {
        let (style, what) = opened(&ask.url);
        hanging(console, "  ", style, &what)?;
        start = Some(1);
    }
    Ok(console.say(&Line::plain("  Visit: ").then(GIVEN, "agreed"))?)
}

fn opened(url: &Url) -> (Style, String) {
    match open::that_detached(url.as_str()) {
        Ok(()) => (DIM, "The browser was told to open it.".to_owned()),
        Err(error) => (
            WRONG,
            format!("No browser could be started ({error}). Please open the page yourself."),
        ),
    }
}

fn show(console: &mut dyn Console, url: &Url) -> std::io::Result<()> {
    let columns = console.columns().saturating_sub(5);
    console.say(&Line::default())?;
    for line in marked(url, columns) {
        console.say(&line)?;
    }
    console.say(&Line::default())?;
    for warning in warnings(url) {
        hanging(console, "  ! ", CAREFUL, &warning)?;
    }
    Ok(())
}

/// The URL in lines of at most so many columns, with its host marked.
fn marked(url: &Url, columns: usize) -> Vec<Line> {
    use url::Position::{AfterHost, BeforeHost};
    let mut parts = [
        (PLAIN, &url[..BeforeHost]),
        (MARK, &url[BeforeHost..AfterHost]),
        (PLAIN, &url[AfterHost..]),
    ]
    .into_iter()
    .flat_map(|(style, text)| {
        one_line(text)
            .chars()
            .map(move |c| (style, c))
            .collect::<Vec<_>>()
    });
    broken(&one_line(url.as_str()), columns)
        .iter()
        .map(|piece| {
            let letters = parts.by_ref().take(piece.chars().count());
            letters.fold(Line::plain("    "), |line, (style, c)| line.then(style, c))
        })
        .collect()
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Warnings about a URL that may look like another.
fn warnings(url: &Url) -> Vec<String> {
    let mut warnings = Vec::new();
    let host = one_line(url.host_str().unwrap_or_default());
    if !url.username().is_empty() || url.password().is_some() {
        warnings.push(format!(
            "What stands before the @ is a user name, not the place: the page is at {host}."
        ));
    }
    if host.split('.').any(|label| label.starts_with("xn--")) {
        let shown = one_line(&url::quirks::domain_to_unicode(&host));
        warnings.push(format!(
            "The host has letters beyond a to z: it reads {shown:?}, and may look like another."
        ));
    }
    let is_local = is_loopback(url);
    if !is_local && !matches!(url.host(), Some(Host::Domain(_))) {
        warnings.push("The host is an address without a name.".to_owned());
    }
    if url.scheme() != "https" && !is_local {
        warnings.push("The connection would not be encrypted.".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(url: &str) -> String {
        warnings(&Url::parse(url).expect("a URL")).join("\n")
    }

    #[test]
    fn tricks_are_named() {
        assert_eq!(warned("https://example.com/a?b#c"), "");
        assert_eq!(warned("http://localhost:8000/"), "");
        assert_eq!(warned("http://127.0.0.1/"), "");
        let user = warned("https://apple.com@evil.example/");
        assert!(user.contains("the page is at evil.example"), "{user}");
        assert!(warned("https://u:p@evil.example/").contains("user name"));
        let greek = warned("https://аpple.com/");
        assert!(greek.contains("\"аpple.com\""), "{greek}");
        assert!(warned("https://192.0.2.7/").contains("without a name"));
        assert!(warned("http://example.com/").contains("not be encrypted"));
    }

    #[test]
    fn a_url_is_shown_whole_with_its_host_marked() {
        let long = format!(
            "https://user@host.example:8443/{}?q=%1b#end",
            "x".repeat(300)
        );
        let url = Url::parse(&long).expect("a URL");
        for columns in [10, 37, 80, 1000] {
            let lines = marked(&url, columns);
            assert!(lines.iter().all(|line| line.width() <= columns + 4));
            let text: String = lines
                .iter()
                .map(|line| line.paint(false).split_off(4))
                .collect();
            assert_eq!(text, url.as_str());
            let painted: String = lines.iter().map(|line| line.paint(true)).collect();
            let host: String = painted
                .split(&MARK.to_string())
                .skip(1)
                .filter_map(|part| part.chars().next())
                .collect();
            assert_eq!(host, "host.example");
        }
    }
}
