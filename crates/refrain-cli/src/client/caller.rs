//! A connected server, and a call that is made there until it is done or stops.

mod stopped;

use super::answerer::Answerer;
use super::exit::{Code, Stop};
use super::interrupt::Interrupt;
use super::json::{Fold, shown};
use super::open_asks::{OpenAsk, open_asks};
use super::options::{Answering, Place, Reach, TOKEN};
use super::saved_call::SavedCall;
use super::text::one_line;
use super::trace::Trace;
use super::{output, screen};
use crate::style::DIM;
use crate::terminal::url::is_loopback;
use refrain_client::{
    Asker, Bearer, CallSpec, Client, ClientBuilder, ClientLimits, Dialect, Error, ErrorKind,
    IncomingAsk, LogMessage, PendingCall, UnansweredAsk,
};
use refrain_wire::{CallKind, Implementation};
use serde_json::Value;
use std::ffi::OsString;
use std::io::{IsTerminal, stderr};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use stopped::{GoOn, answered};
use url::Url;

/// How long a server may be silent while connecting or listing.
const SILENCE: Duration = Duration::from_secs(60);
const CLOSE_TIME: Duration = Duration::from_secs(10);

pub(super) struct Caller {
    pub(super) client: Client,
    pub(super) interrupt: Interrupt,
    place: Place,
    answerer: Option<Arc<Answerer>>,
    saved: Option<Arc<SavedCall>>,
    dialect: Option<Dialect>,
    json: bool,
}

impl Caller {
    /// Connects for requests that ask nothing back.
    pub(super) async fn reach(reach: &Reach, place: Place) -> Result<Self, Stop> {
        let limits = ClientLimits {
            silence: SILENCE,
            ..ClientLimits::default()
        };
        let builder = Client::builder().limits(limits);
        Self::connect(builder, reach, place, 0, SILENCE).await
    }

    /// Connects for a call that has had so many rounds. It is saved whenever it waits anew.
    pub(super) async fn ready(
        reach: &Reach,
        place: Place,
        answering: &Answering,
        saved: Option<SavedCall>,
        rounds: u32,
    ) -> Result<Self, Stop> {
        let saved = saved.map(Arc::new);
        let answerer = Answerer::new(answering, reach.json)?;
        let mut builder = answerer.handle(Client::builder().limits(answering.limits()));
        if !reach.json && stderr().is_terminal() {
            builder = builder.on_progress(|progress| screen::progress(&progress));
        }
        if let Some(level) = answering.log {
            builder = builder.on_log(level, |message| screen::say(&logged(&message)));
        }
        if let Some(saved) = saved.clone() {
            builder = builder.on_pending(move |pending| {
                if let Err(stop) = saved.replace(pending) {
                    screen::say(&format!("refrain: {stop}"));
                }
            });
        }
        let limit = answering.limits().deadline.unwrap_or(SILENCE).min(SILENCE);
        let reached = Self::connect(builder, reach, place, rounds, limit).await?;
        Ok(Self {
            answerer: Some(answerer),
            saved,
            ..reached
        })
    }

    async fn connect(
        builder: ClientBuilder,
        reach: &Reach,
        place: Place,
        rounds: u32,
        limit: Duration,
    ) -> Result<Self, Stop> {
        let mut builder = builder.info(Implementation {
            name: "refrain".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Implementation::default()
        });
        if let Some(dialect) = reach.dialect {
            builder = builder.dialect(dialect);
        }
        if let Some(depth) = reach.trace {
            let trace = Trace::new(depth, rounds);
            builder = builder.on_wire(move |wire| trace.show(wire));
        }
        if let Place::Url(url) = &place
            && let Some(token) = reach.token()?
        {
            warn_if_open(url);
            let bearer = Bearer::new(&token).map_err(|error| Stop::usage(error.to_string()))?;
            builder = builder.authorize(bearer);
        }
        let connecting = async {
            match &place {
                Place::Url(url) => builder.connect(url).await,
                Place::Command(words) => builder.spawn(command(words)).await,
            }
        };
        let in_time = async {
            let connected = tokio::time::timeout(limit, connecting).await;
            connected.unwrap_or_else(|_| Err(ErrorKind::Timeout(limit).into()))
        };
        let mut interrupt = Interrupt::new()?;
        Ok(Self {
            client: interrupt.unless(in_time).await?,
            interrupt,
            place,
            answerer: None,
            saved: None,
            dialect: reach.dialect,
            json: reach.json,
        })
    }

    /// Makes a call, which is saved before.
    pub(super) async fn make(self, call: CallSpec) -> Result<Code, Stop> {
        let pending = self.client.prepare(call);
        if let Some(saved) = &self.saved {
            saved.begin(&pending)?;
        }
        self.finish(pending).await
    }

    pub(super) async fn finish(self, mut pending: PendingCall) -> Result<Code, Stop> {
        if let Err(stop) = self.replace_answers(&mut pending) {
            self.close().await;
            return Err(stop);
        }
        if self.client.can_execute_twice(&pending) {
            screen::warn(
                "the call may have been taken before, and this server does not know call ids: it may be done twice",
            );
        }
        self.until_done(pending, true).await
    }

    /// Replaces answers of an earlier command by preset answers of this one.
    fn replace_answers(&self, pending: &mut PendingCall) -> Result<(), Stop> {
        let (Some(answerer), Some(saved)) = (&self.answerer, &self.saved) else {
            return Ok(());
        };
        let answered = answered(pending);
        let is_answered = |ask: &IncomingAsk| answered.iter().any(|key| key == ask.key());
        for ask in pending.asks().into_iter().filter(is_answered) {
            let key = ask.key().to_owned();
            let why = match answerer.preset.take(&ask) {
                None => continue,
                Some(Err(error)) => error.to_string(),
                Some(Ok(answer)) => match pending.answer(&key, answer) {
                    Ok(()) => {
                        saved.replace(pending)?;
                        continue;
                    }
                    Err(error) => error.to_string(),
                },
            };
            let unanswered = vec![UnansweredAsk { key, why }];
            let stop = Stop::from(Error::from(ErrorKind::Unanswered(unanswered.clone())));
            let open = open_asks(vec![ask], Vec::new(), &unanswered);
            return Err(self.unanswered(stop, pending, &open, &GoOn::File(saved.file())));
        }
        Ok(())
    }

    /// Watches a task until it is done. The task goes on without this command.
    pub(super) async fn watch(self, task: &str) -> Result<Code, Stop> {
        self.until_done(PendingCall::of_task(task), false).await
    }

    /// Closes the connection, and ends a command that was started for it. An interrupt skips the wait.
    pub(super) async fn close(mut self) {
        tokio::select! {
            _ = tokio::time::timeout(CLOSE_TIME, self.client.close()) => {}
            () = self.interrupt.wait() => {}
        }
    }

    async fn until_done(mut self, pending: PendingCall, is_own: bool) -> Result<Code, Stop> {
        let done = self.drive(pending, is_own).await;
        self.close().await;
        done
    }

    async fn drive(&mut self, pending: PendingCall, is_own: bool) -> Result<Code, Stop> {
        let kind = pending.call().kind();
        let asker = pending.asker();
        let interrupted = self.interrupt.wait();
        let done = self.client.finish_unless(pending, interrupted).await;
        screen::clear();
        let result = match done {
            Ok(result) => result,
            Err(error) => return Err(self.stopped(error, is_own).await),
        };
        output::result(kind, &result, self.json)?;
        // Programs have the result; the rest is for people.
        self.done(kind, &asker, &result).map_err(Stop::told)
    }

    fn done(&self, kind: CallKind, asker: &Asker, result: &Value) -> Result<Code, Stop> {
        if let Some(saved) = &self.saved {
            saved.remove()?;
        }
        let open = self.open();
        if let Some(why) = self.client.output_schema_mismatch(&asker.target, result) {
            screen::warn(&format!("the result is not as it should be: {why}"));
        }
        self.warn_of_unused_answers();
        if !open.is_empty() {
            show_asks(asker, "asked, and went on without an answer", &open);
            let examples: Vec<String> = open.iter().filter_map(OpenAsk::example).collect();
            let mut message = "not everything was answered".to_owned();
            if !examples.is_empty() {
                message = format!("{message}. Call again with\n  {}", examples.join(" "));
            }
            return Err(Stop::new(Code::Unanswered, message));
        }
        if kind == CallKind::Tool && output::is_error(result) {
            let message = format!("{} says that it failed", asker.target);
            return Err(Stop::new(Code::Refused, message));
        }
        Ok(Code::Done)
    }

    fn open(&self) -> Vec<OpenAsk> {
        let answerer = self.answerer.as_ref();
        answerer.map(|answerer| answerer.open()).unwrap_or_default()
    }

    fn warn_of_unused_answers(&self) {
        let answerer = self.answerer.iter();
        for key in answerer.flat_map(|answerer| answerer.preset.unused()) {
            screen::warn(&format!("nothing asked for the answer {key:?}"));
        }
    }
}

fn show_asks(asker: &Asker, verb: &str, open: &[OpenAsk]) {
    let server = asker.server.as_deref().unwrap_or("a server without a name");
    let mut lines = vec![format!(
        "{} at {} ({}) {verb}:",
        one_line(&asker.target),
        one_line(server),
        one_line(&asker.address)
    )];
    lines.extend(open.iter().flat_map(OpenAsk::lines));
    screen::say(&lines.join("\n"));
}

/// Warns if the access token would be sent without encryption.
fn warn_if_open(url: &str) {
    let Ok(mut url) = Url::parse(url) else { return };
    // Such a URL is refused; the secrets in it are not shown before that.
    if url.set_username("").is_err() || url.set_password(None).is_err() {
        return;
    }
    if url.scheme() == "http" && !is_loopback(&url) {
        screen::say(&format!(
            "refrain: the access token is sent to {url} without encryption; use https if the server has it"
        ));
    }
}

/// A command in its own process group: Ctrl-C does not reach it, so that it ends with the connection. It does not get
/// the access token, which is for servers behind a URL.
fn command(words: &[OsString]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().map(OsString::as_os_str).unwrap_or_default());
    command.args(words).process_group(0).env_remove(TOKEN);
    command
}

fn logged(message: &LogMessage) -> String {
    let logger = message.logger.as_deref().map(one_line);
    let logger = logger.map_or(String::new(), |logger| format!(" {logger}"));
    let text = match &message.data {
        Value::String(text) => one_line(text),
        data => {
            let line = shown(data, Fold::NOTHING, 0);
            let plain = anstream::adapter::strip_str(&line).to_string();
            plain.replace('\n', " ")
        }
    };
    format!("{DIM}{}{logger}: {text}{DIM:#}", one_line(&message.level))
}
