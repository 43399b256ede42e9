//! Logging to standard error, as text or JSON, filtered by `$RUST_LOG`, and the export of traces.

use crate::AppError;
pub use crate::config::LogFormat;
use crate::error::with_hint;
use crate::telemetry::{self, Telemetry};
use anstream::{AutoStream, ColorChoice};
use opentelemetry::trace::TracerProvider;
use std::env::VarError;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{EnvFilter, Layer};

const FILTER: &str = "RUST_LOG";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Starts logging to `writer` (standard error), and the [export of traces](telemetry) if the environment asks for it. `level`
/// is the filter without `$RUST_LOG`, `service` the name of the service in traces.
pub fn start<W>(
    service: &str,
    level: &str,
    format: LogFormat,
    writer: W,
) -> Result<Telemetry, AppError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = match std::env::var(FILTER) {
        Ok(text) => filter(&text)?,
        Err(VarError::NotPresent) => default_filter(level),
        Err(VarError::NotUnicode(_)) => return Err(format!("${FILTER} is not UTF-8").into()),
    };
    // Colours if stderr is a terminal, unless NO_COLOR or the like is set.
    let colours = AutoStream::choice(&std::io::stderr()) != ColorChoice::Never;
    let provider = telemetry::start(service)?;
    let Some(exporter) = &provider else {
        // One filter for everything costs less than a filter per layer.
        let lines = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(writer)
            .with_ansi(colours);
        match format {
            LogFormat::Text => lines.init(),
            LogFormat::Json => lines.json().init(),
        }
        return Ok(Telemetry(None));
    };
    let exported = tracing_opentelemetry::layer()
        .with_tracer(exporter.tracer("refrain"))
        .with_location(false)
        .with_target(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(filter_fn(telemetry::is_exported).with_max_level_hint(LevelFilter::DEBUG));
    let exported = tracing_subscriber::registry().with(exported);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(colours);
    match format {
        LogFormat::Text => exported.with(lines.with_filter(filter)).init(),
        LogFormat::Json => exported.with(lines.json().with_filter(filter)).init(),
    }
    Ok(Telemetry(provider))
}

/// Events of this level, but only errors of h2, which logs each misbehaving client, and of rmcp, which logs each call.
fn default_filter(level: &str) -> EnvFilter {
    EnvFilter::new(format!("{level},h2=error,rmcp=error"))
}

/// Parses a filter. An empty filter is `info`.
fn filter(text: &str) -> Result<EnvFilter, AppError> {
    let invalid = |reason: &str| {
        with_hint(
            format!("invalid ${FILTER} {text:?}: {reason}"),
            format!(
                "write a level ({}) or TARGET=LEVEL, separated by commas",
                LEVELS.join(", ")
            ),
        )
    };
    let mut directives = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .peekable();
    if directives.peek().is_none() {
        return Ok(default_filter("info"));
    }
    // A misspelt level would be taken for the name of a target, and would disable everything else.
    for part in directives {
        let word = part.to_ascii_lowercase();
        let distance = |level: &str| strsim::damerau_levenshtein(&word, level);
        let is_similar =
            |level: &&str| distance(level) <= 2 || strsim::jaro_winkler(&word, level) >= 0.85;
        let similar = LEVELS.into_iter().filter(is_similar);
        if !LEVELS.contains(&word.as_str())
            && let Some(level) = similar.min_by_key(|level| distance(level))
        {
            return Err(invalid(&format!(
                "unknown level {part:?}; did you mean {level:?}?"
            )));
        }
    }
    EnvFilter::builder()
        .parse(text)
        .map_err(|error| invalid(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_filters_are_accepted() {
        for good in [
            "",
            " ",
            "info",
            "DEBUG",
            "off",
            "refrain=debug",
            "warn,refrain_server=trace",
            "hyper",
            "3",
            "refrain_server[request{method=x}]=debug",
            "info,",
        ] {
            assert!(filter(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn clients_cannot_cause_warnings_of_the_http2_library() {
        let default = filter("").expect("a filter").to_string();
        assert!(default.contains("h2=error"), "{default}");
        assert!(default.contains("info"), "{default}");
    }

    #[test]
    fn misspelt_levels_are_rejected_with_a_suggestion() {
        for (bad, part) in [
            ("debgu", "did you mean \"debug\"?"),
            ("inf", "did you mean \"info\"?"),
            ("infos", "did you mean \"info\"?"),
            ("Warning", "did you mean \"warn\"?"),
            ("refrain=verbose", "level"),
            ("info,tarce", "did you mean \"trace\"?"),
            ("=", "RUST_LOG"),
        ] {
            let error = filter(bad).expect_err(bad).to_string();
            assert!(
                error.contains(part) && error.contains("RUST_LOG"),
                "{bad:?}: {error}"
            );
        }
    }
}
