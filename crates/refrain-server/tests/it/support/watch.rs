//! A subscriber that remembers the spans and events of one thread.

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

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) spans: Vec<Seen>,
    pub(crate) events: Vec<Said>,
}

#[derive(Debug)]
pub(crate) struct Seen {
    id: Id,
    pub(crate) fields: HashMap<&'static str, String>,
    pub(crate) closed: bool,
}

#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) text: String,
    /// What was said beside the text.
    pub(crate) fields: HashMap<&'static str, String>,
    within: Option<&'static str>,
}

impl Watch {
    /// What was said in a span of this name.
    pub(crate) fn events_in(&self, span: &str) -> impl Iterator<Item = &str> {
        let within = move |said: &&Said| said.within == Some(span);
        self.events
            .iter()
            .filter(within)
            .map(|said| said.text.as_str())
    }
}

#[derive(Clone, Default)]
pub(crate) struct Watching(Arc<Mutex<Watch>>);

impl Watching {
    /// What was seen so far.
    pub(crate) fn take(&self) -> Watch {
        std::mem::take(&mut self.0.lock().expect("no test panics while it looks"))
    }
}

/// Watches the present thread, down to this level, until the guard is dropped.
pub(crate) fn watch(level: LevelFilter) -> (Watching, DefaultGuard) {
    let watching = Watching::default();
    // A filter for all of the subscriber: one for this layer would let spans be made for nobody.
    let registry = tracing_subscriber::registry();
    let subscriber = registry.with(level).with(watching.clone());
    (watching, listen(subscriber))
}

/// Has a subscriber listen to the present thread until the guard is dropped.
///
/// Whether anybody wants a span or an event is found out once, by the first thread that comes to it. Where there is one
/// subscriber only, that thread's own is asked, and the thread of another test has none. So there are two, and then all
/// are asked: the other one wants nothing.
pub(crate) fn listen(subscriber: impl Into<Dispatch>) -> DefaultGuard {
    static OTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));
    LazyLock::force(&OTHER);
    tracing::dispatcher::set_default(&subscriber.into())
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Watching {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let mut texts = Texts::default();
        attributes.record(&mut texts);
        self.0.lock().expect("unpoisoned").spans.push(Seen {
            id: id.clone(),
            fields: texts.0,
            closed: false,
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut texts = Texts::default();
        values.record(&mut texts);
        let mut watch = self.0.lock().expect("unpoisoned");
        let open = |seen: &&mut Seen| seen.id == *id && !seen.closed;
        if let Some(seen) = watch.spans.iter_mut().find(open) {
            seen.fields.extend(texts.0);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut texts = Texts::default();
        event.record(&mut texts);
        self.0.lock().expect("unpoisoned").events.push(Said {
            text: texts.0.remove("message").unwrap_or_default(),
            fields: texts.0,
            within: context.event_span(event).map(|span| span.name()),
        });
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let mut watch = self.0.lock().expect("unpoisoned");
        let open = |seen: &&mut Seen| seen.id == id && !seen.closed;
        if let Some(seen) = watch.spans.iter_mut().find(open) {
            seen.closed = true;
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
