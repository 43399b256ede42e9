//! The dialog for a URL: shown in full, never fetched, and opened only with consent.

use super::asker::{decide, introduce, quote, say_hanging};
use super::console::{Console, PromptError};
use super::display_text::{StyledLine, one_line, split_at_width};
use crate::browser;
use crate::style::{DIM, INVALID, MARK, PLAIN, VALUE, WARNING};
use anstyle::Style;
use refrain_client::UrlAsk;
use url::{Host, Url};

const OPEN: &str = "Open it in the browser";
const CONTINUE: &str = "Continue: I have visited it, or will do so now";

pub(super) fn ask(console: &mut dyn Console, ask: &UrlAsk) -> Result<(), PromptError> {
    introduce(console, &ask.asker, "asks you to visit a page")?;
    quote(console, &ask.message)?;
    show(console, &ask.url)?;
    // No choice is preselected, so that a stray key cannot agree.
    let mut preselected = None;
    let host = one_line(ask.url.host_str().unwrap_or_default());
    let label = format!("Visit {host}?");
    while decide(console, &ask.asker, &label, &[OPEN, CONTINUE], preselected)? == 0 {
        let (style, status) = open_browser(&ask.url);
        say_hanging(console, "  ", style, &status)?;
        // After opening, `CONTINUE` is preselected.
        preselected = Some(1);
    }
    Ok(console.say(&StyledLine::plain("  Visit: ").then(VALUE, "agreed"))?)
}

fn open_browser(url: &Url) -> (Style, String) {
    match browser::open(url) {
        Ok(()) => (DIM, "Opening it in the browser.".to_owned()),
        Err(error) => (
            INVALID,
            format!("Could not start a browser ({error}). Please open the page yourself."),
        ),
    }
}

fn show(console: &mut dyn Console, url: &Url) -> std::io::Result<()> {
    let columns = console.columns().saturating_sub(5);
    console.say(&StyledLine::default())?;
    for line in mark_host(url, columns) {
        console.say(&line)?;
    }
    console.say(&StyledLine::default())?;
    for warning in warnings(url) {
        say_hanging(console, "  ! ", WARNING, &warning)?;
    }
    Ok(())
}

/// Splits the URL into lines of at most `columns`, and marks its host.
fn mark_host(url: &Url, columns: usize) -> Vec<StyledLine> {
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
    split_at_width(&one_line(url.as_str()), columns)
        .iter()
        .map(|piece| {
            let letters = parts.by_ref().take(piece.chars().count());
            letters.fold(StyledLine::plain("    "), |line, (style, c)| {
                line.then(style, c)
            })
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

fn warnings(url: &Url) -> Vec<String> {
    let mut warnings = Vec::new();
    let host = one_line(url.host_str().unwrap_or_default());
    if !url.username().is_empty() || url.password().is_some() {
        warnings.push(format!(
            "The part before the @ is a user name: the page is at {host}."
        ));
    }
    if host.split('.').any(|label| label.starts_with("xn--")) {
        let shown = one_line(&url::quirks::domain_to_unicode(&host));
        warnings.push(format!(
            "The host has letters other than a to z: it reads {shown:?}, and may imitate another host."
        ));
    }
    let is_local = is_loopback(url);
    if !is_local && !matches!(url.host(), Some(Host::Domain(_))) {
        warnings.push("The host is an IP address.".to_owned());
    }
    if url.scheme() != "https" && !is_local {
        warnings.push("The connection is not encrypted.".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings_for(url: &str) -> String {
        warnings(&Url::parse(url).expect("a URL")).join("\n")
    }

    #[test]
    fn misleading_urls_have_warnings() {
        assert_eq!(warnings_for("https://example.com/a?b#c"), "");
        assert_eq!(warnings_for("http://localhost:8000/"), "");
        assert_eq!(warnings_for("http://127.0.0.1/"), "");
        let user = warnings_for("https://apple.com@evil.example/");
        assert!(user.contains("the page is at evil.example"), "{user}");
        assert!(warnings_for("https://u:p@evil.example/").contains("user name"));
        let cyrillic = warnings_for("https://аpple.com/");
        assert!(cyrillic.contains("\"аpple.com\""), "{cyrillic}");
        assert!(warnings_for("https://192.0.2.7/").contains("IP address"));
        assert!(warnings_for("http://example.com/").contains("not encrypted"));
    }

    #[test]
    fn url_is_shown_in_full_with_its_host_marked() {
        let long = format!(
            "https://user@host.example:8443/{}?q=%1b#end",
            "x".repeat(300)
        );
        let url = Url::parse(&long).expect("a URL");
        for columns in [10, 37, 80, 1000] {
            let lines = mark_host(&url, columns);
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
