//! A tracing subscriber that records the spans and events of one thread.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::sync::{Arc, LazyLock, Mutex};
use tracing::Dispatch;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// The recorded spans and events.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub(crate) spans: Vec<RecordedSpan>,
    pub(crate) events: Vec<LoggedEvent>,
}

#[derive(Debug)]
pub(crate) struct RecordedSpan {
    id: Id,
    pub(crate) fields: HashMap<&'static str, String>,
    pub(crate) closed: bool,
}

#[derive(Debug)]
pub(crate) struct LoggedEvent {
    pub(crate) text: String,
    /// The fields other than the text.
    pub(crate) fields: HashMap<&'static str, String>,
    within: Option<&'static str>,
}

impl Recording {
    /// The texts of events in a span with this name.
    pub(crate) fn events_in(&self, span: &str) -> impl Iterator<Item = &str> {
        let within = move |event: &&LoggedEvent| event.within == Some(span);
        self.events
            .iter()
            .filter(within)
            .map(|event| event.text.as_str())
    }
}

#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Recording>>);

impl Recorder {
    /// Takes the spans and events recorded so far.
    pub(crate) fn take(&self) -> Recording {
        std::mem::take(&mut self.0.lock().expect("unpoisoned"))
    }
}

/// Records the current thread, down to this level, until the guard is dropped.
pub(crate) fn watch(level: LevelFilter) -> (Recorder, DefaultGuard) {
    let recorder = Recorder::default();
    // A global filter: a filter of the layer would still create unused spans.
    let registry = tracing_subscriber::registry();
    let subscriber = registry.with(level).with(recorder.clone());
    (recorder, listen(subscriber))
}

/// Installs a subscriber for the current thread until the guard is dropped.
///
/// `tracing` caches the interest in a callsite when it is first reached. With a single subscriber, it asks only that of
/// the current thread, which may be another test's thread without one. A second subscriber makes it ask all of them.
pub(crate) fn listen(subscriber: impl Into<Dispatch>) -> DefaultGuard {
    static OTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));
    LazyLock::force(&OTHER);
    tracing::dispatcher::set_default(&subscriber.into())
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        // Spans inside of requests and tasks.
        if matches!(attributes.metadata().name(), "ask" | "step") {
            return;
        }
        let mut texts = Texts::default();
        attributes.record(&mut texts);
        self.0.lock().expect("unpoisoned").spans.push(RecordedSpan {
            id: id.clone(),
            fields: texts.0,
            closed: false,
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut texts = Texts::default();
        values.record(&mut texts);
        let mut recording = self.0.lock().expect("unpoisoned");
        let open = |span: &&mut RecordedSpan| span.id == *id && !span.closed;
        if let Some(span) = recording.spans.iter_mut().find(open) {
            span.fields.extend(texts.0);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut texts = Texts::default();
        event.record(&mut texts);
        self.0.lock().expect("unpoisoned").events.push(LoggedEvent {
            text: texts.0.remove("message").unwrap_or_default(),
            fields: texts.0,
            within: context.event_span(event).map(|span| span.name()),
        });
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let mut recording = self.0.lock().expect("unpoisoned");
        let open = |span: &&mut RecordedSpan| span.id == id && !span.closed;
        if let Some(span) = recording.spans.iter_mut().find(open) {
            span.closed = true;
        }
    }
}

/// Fields as text.
#[derive(Default)]
struct Texts(HashMap<&'static str, String>);

impl Texts {
    fn put(&mut self, field: &Field, value: impl Display) {
        self.0.insert(field.name(), value.to_string());
    }
}

impl Visit for Texts {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, format_args!("{value:?}"));
    }
}
