//! A server that is reached, and a call that is made there until it is done or stops.

mod stopped;

use super::answerer::Answerer;
use super::asked::{Asked, asked};
use super::exit::{Code, Stop};
use super::interrupt::Interrupt;
use super::json::{Fold, shown};
use super::keep::Keep;
use super::options::{Answering, Place, Reach, TOKEN};
use super::output;
use super::screen::Screen;
use super::text::one_line;
use super::trace::Trace;
use anstyle::Style;
use refrain_client::{
    Ask, Asker, Bearer, Call, Client, ClientBuilder, Dialect, Error, ErrorKind, Limits, LogMessage,
    PendingCall, Unanswered,
};
use refrain_wire::{CallKind, Implementation};
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use stopped::{GoOn, answered};
use url::{Host, Url};

const DIM: Style = Style::new().dimmed();
/// How long a server may be silent when it is reached, or is asked for what it has.
const SILENCE: Duration = Duration::from_secs(60);

/// How long the end of a connection may take.
const CLOSE_TIME: Duration = Duration::from_secs(10);

/// A server that is reached.
pub(super) struct Caller {
    pub(super) client: Client,
    pub(super) interrupt: Interrupt,
    place: Place,
    screen: Screen,
    answerer: Option<Arc<Answerer>>,
    /// Where the call is kept until it is done.
    keep: Option<Arc<Keep>>,
    /// What is spoken, if that was chosen.
    dialect: Option<Dialect>,
    json: bool,
}

impl Caller {
    /// Reaches a server, of which nothing is asked that asks back.
    pub(super) async fn reach(reach: &Reach, place: Place) -> Result<Self, Stop> {
        let screen = Screen::new(reach.json);
        let limits = Limits {
            silence: SILENCE,
            ..Limits::default()
        };
        let builder = Client::builder().limits(limits);
        Self::connect(builder, reach, place, screen, 0, SILENCE).await
    }

    /// Reaches a server to make a call, of which there have been so many rounds. It is kept whenever it waits anew.
    pub(super) async fn ready(
        reach: &Reach,
        place: Place,
        answering: &Answering,
        keep: Option<Keep>,
        rounds: u32,
    ) -> Result<Self, Stop> {
        let screen = Screen::new(reach.json);
        let keep = keep.map(Arc::new);
        let answerer = Answerer::new(answering, screen.clone(), reach.json)?;
        let mut builder = answerer.handle(Client::builder().limits(answering.limits()));
        if screen.draws() {
            let screen = screen.clone();
            builder = builder.on_progress(move |progress| screen.progress(&progress));
        }
        if let Some(level) = answering.log {
            let screen = screen.clone();
            builder = builder.on_log(level, move |message| screen.say(&logged(&message)));
        }
        if let Some(keep) = &keep {
            let (keep, screen) = (Arc::clone(keep), screen.clone());
            builder = builder.on_pending(move |pending| {
                if let Err(stop) = keep.replace(pending) {
                    screen.say(&format!("refrain: {stop}"));
                }
            });
        }
        let limit = answering.limits().deadline.unwrap_or(SILENCE).min(SILENCE);
        let reached = Self::connect(builder, reach, place, screen, rounds, limit).await?;
        Ok(Self {
            answerer: Some(answerer),
            keep,
            ..reached
        })
    }

    async fn connect(
        builder: ClientBuilder,
        reach: &Reach,
        place: Place,
        screen: Screen,
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
            let trace = Trace::new(screen.clone(), depth, rounds);
            builder = builder.on_wire(move |wire| trace.show(wire));
        }
        let mut interrupt = Interrupt::new()?;
        let client = match &place {
            Place::Url(url) => {
                if let Some(token) = reach.token()? {
                    warn_if_open(url, &screen);
                    let bearer =
                        Bearer::new(&token).map_err(|error| Stop::usage(error.to_string()))?;
                    builder = builder.authorize(bearer);
                }
                let connected = in_time(limit, builder.connect(url));
                interrupt.unless(connected).await?
            }
            Place::Command(words) => {
                let spawned = in_time(limit, builder.spawn(command(words)));
                interrupt.unless(spawned).await?
            }
        };
        Ok(Self {
            client,
            interrupt,
            place,
            screen,
            answerer: None,
            keep: None,
            dialect: reach.dialect,
            json: reach.json,
        })
    }

    /// Makes a call. Where it is kept, it is so before it is made.
    pub(super) async fn make(self, call: Call) -> Result<Code, Stop> {
        let pending = self.client.prepare(call);
        if let Some(keep) = &self.keep {
            keep.begin(&pending)?;
        }
        self.finish(pending).await
    }

    /// Takes up a call, until it is done or stops.
    pub(super) async fn finish(self, mut pending: PendingCall) -> Result<Code, Stop> {
        if let Err(stop) = self.answer_anew(&mut pending) {
            self.close().await;
            return Err(stop);
        }
        if self.client.might_repeat(&pending) {
            self.screen.say(
                "refrain: the call may have been taken before, and this server does not know call ids: it may be done twice",
            );
        }
        self.until_done(pending, true).await
    }

    /// What was answered by an earlier command is answered anew, if an answer to it was given to this one.
    fn answer_anew(&self, pending: &mut PendingCall) -> Result<(), Stop> {
        let (Some(answerer), Some(keep)) = (&self.answerer, &self.keep) else {
            return Ok(());
        };
        let answered = answered(pending);
        let is_answered = |ask: &Ask| answered.iter().any(|key| key == ask.key());
        for ask in pending.asks().into_iter().filter(is_answered) {
            let key = ask.key().to_owned();
            let Some(given) = answerer.given(&ask) else {
                continue;
            };
            let taken = given.and_then(|answer| {
                let taken = pending.answer(&key, answer);
                taken.map_err(|error| error.to_string())
            });
            if let Err(why) = taken {
                let unanswered = vec![Unanswered { key, why }];
                let stop = Stop::from(Error::from(ErrorKind::Unanswered(unanswered.clone())));
                let asked = asked(vec![ask], Vec::new(), &unanswered);
                return Err(self.unanswered(stop, pending, &asked, &GoOn::File(keep.file())));
            }
            keep.replace(pending)?;
        }
        Ok(())
    }

    /// Looks after a task until it is done. It goes on when nobody does.
    pub(super) async fn watch(self, task: &str) -> Result<Code, Stop> {
        self.until_done(PendingCall::of_task(task), false).await
    }

    /// Ends the connection, and a command that was started for it. Whoever interrupts this does not want to wait for it.
    pub(super) async fn close(mut self) {
        tokio::select! {
            // What takes longer is left behind.
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
        let done = self
            .client
            .finish_unless(pending, self.interrupt.wait())
            .await;
        self.screen.clear();
        let result = match done {
            Ok(result) => result,
            Err(error) => return Err(self.stopped(error, is_own).await),
        };
        output::result(kind, &result, self.json)?;
        self.done(kind, &asker, &result).map_err(Stop::told)
    }

    /// The result is told. What else there is to say is for people.
    fn done(&self, kind: CallKind, asker: &Asker, result: &Value) -> Result<Code, Stop> {
        if let Some(keep) = &self.keep {
            keep.remove()?;
        }
        let open = self.open();
        if let Some(why) = self.client.broken_promise(&asker.target, result) {
            self.say(&format!("the result is not as it should be: {why}"));
        }
        self.tell_left();
        if !open.is_empty() {
            self.show_asks(asker, "asked, and went on without an answer", &open);
            let examples: Vec<String> = open.iter().filter_map(Asked::example).collect();
            let message = match examples.is_empty() {
                true => "not everything was answered".to_owned(),
                false => format!(
                    "not everything was answered. Call again with\n  {}",
                    examples.join(" ")
                ),
            };
            return Err(Stop::new(Code::Unanswered, message));
        }
        if kind == CallKind::Tool && output::is_error(result) {
            let message = format!("{} says that it failed", asker.target);
            return Err(Stop::new(Code::Refused, message));
        }
        Ok(Code::Done)
    }

    fn show_asks(&self, asker: &Asker, verb: &str, asked: &[Asked]) {
        let server = asker.server.as_deref().unwrap_or("a server without a name");
        let mut lines = vec![format!(
            "{} at {} ({}) {verb}:",
            one_line(&asker.target),
            one_line(server),
            one_line(&asker.address)
        )];
        lines.extend(asked.iter().flat_map(Asked::lines));
        self.screen.say(&lines.join("\n"));
    }

    /// What was asked and not answered so far.
    fn open(&self) -> Vec<Asked> {
        let answerer = self.answerer.as_ref();
        answerer.map(|answerer| answerer.open()).unwrap_or_default()
    }

    /// Says something that is no reason to stop.
    pub(super) fn say(&self, text: &str) {
        self.screen.say(&format!("refrain: {}", one_line(text)));
    }

    /// An answer that nothing asked for may have been meant for something else.
    fn tell_left(&self) {
        let left = self.answerer.as_ref().map(|answerer| answerer.left());
        for key in left.unwrap_or_default() {
            self.say(&format!("nothing asked for the answer {key:?}"));
        }
    }
}

/// Says so, if everybody on the way can read the access token.
fn warn_if_open(url: &str, screen: &Screen) {
    let Ok(mut url) = Url::parse(url) else { return };
    // Such a URL is refused; what is secret in it is not shown before that.
    if url.set_username("").is_err() || url.set_password(None).is_err() {
        return;
    }
    let is_here = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => true,
    };
    if url.scheme() == "http" && !is_here {
        screen.say(&format!(
            "refrain: the access token is sent to {url} without encryption; use https if the server has it"
        ));
    }
}

/// A command that does not hear of Ctrl-C itself: it ends when it is told that the call is over. The access token is for
/// servers behind a URL.
fn command(words: &[OsString]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().map(OsString::as_os_str).unwrap_or_default());
    command.args(words).process_group(0).env_remove(TOKEN);
    command
}

/// What a call logged, in one line.
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

/// Connects, but not for longer than this.
async fn in_time(
    limit: Duration,
    connecting: impl Future<Output = Result<Client, Error>>,
) -> Result<Client, Error> {
    let connected = tokio::time::timeout(limit, connecting).await;
    connected.unwrap_or_else(|_| Err(ErrorKind::Late(limit).into()))
}
