//! A connection to a server, and the calls on it.

mod interrupted;

use super::answerer::Answerer;
use super::exit::{Code, CommandError};
use super::interrupt::{Interrupt, Stop};
use super::json::{self, Fold};
use super::logins::Logins;
use super::options::{AnswerOptions, BearerSource, ConnectOptions, ServerTarget, secrets};
use super::sanitize::one_line;
use super::saved_call::SavedCall;
use super::trace::WireTrace;
use super::unanswered::{MissingAnswer, unanswered_asks};
use super::{ProtocolOption, output, own_info, stderr};
use crate::style::DIM;
use crate::terminal::url::is_loopback;
use interrupted::{Continuation, answered, missing_answers};
use refrain_client::{
    Asker, Bearer, CallSpec, Client, ClientBuilder, ClientLimits, Dialect, Error, ErrorKind,
    IncomingAsk, LogMessage, OAuth, PendingCall, UnansweredAsk,
};
use refrain_wire::CallKind;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use url::Url;

/// How long a server may be silent while connecting and listing.
const SILENCE: Duration = Duration::from_secs(60);
/// The time limit for closing the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct ServerConnection {
    pub(super) client: Client,
    pub(super) interrupt: Interrupt,
    target: ServerTarget,
    answerer: Option<Arc<Answerer>>,
    saved: Option<Arc<SavedCall>>,
    protocol: ProtocolOption,
    bearer: Option<BearerSource>,
    /// How many requests were sent again.
    retries: Arc<AtomicU32>,
    json: bool,
}

impl ServerConnection {
    /// Connects for requests that have no asks.
    pub(super) async fn open(
        options: &ConnectOptions,
        target: ServerTarget,
    ) -> Result<Self, CommandError> {
        let limits = ClientLimits {
            silence: SILENCE,
            deadline: Some(options.deadline()),
            ..ClientLimits::default()
        };
        let builder = Client::builder().limits(limits);
        let interrupt = Interrupt::new(options.deadline())?;
        Self::connect(builder, interrupt, options, target, 0).await
    }

    /// Connects for a call that has made this number of rounds. The call is saved before each further round.
    pub(super) async fn for_call(
        mut interrupt: Interrupt,
        options: &ConnectOptions,
        target: ServerTarget,
        answers: &AnswerOptions,
        saved: Option<SavedCall>,
        rounds: u32,
    ) -> Result<Self, CommandError> {
        let saved = saved.map(Arc::new);
        let (given, json) = (answers.clone(), options.json);
        let answerer = interrupt.read(move || Answerer::new(&given, json)).await?;
        let limits = ClientLimits {
            deadline: Some(options.deadline()),
            ..answers.limits()
        };
        let mut builder = answerer.register(Client::builder().limits(limits));
        if !options.json {
            builder = builder.on_task(stderr::task);
        }
        if !options.json && io::stderr().is_terminal() {
            builder = builder.on_progress(|progress| stderr::progress(&progress));
        }
        if let Some(level) = answers.log {
            builder = builder.on_log(level, |message| stderr::print(&log_line(&message)));
        }
        if let Some(saved) = saved.clone() {
            builder = builder.on_pending(move |pending| {
                if let Err(error) = saved.replace(pending) {
                    stderr::warn(&error.message);
                }
            });
        }
        let connection = Self::connect(builder, interrupt, options, target, rounds).await?;
        Ok(Self {
            answerer: Some(answerer),
            saved,
            ..connection
        })
    }

    async fn connect(
        builder: ClientBuilder,
        mut interrupt: Interrupt,
        options: &ConnectOptions,
        target: ServerTarget,
        rounds: u32,
    ) -> Result<Self, CommandError> {
        let retries = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&retries);
        let mut builder = builder
            .info(own_info())
            .on_stderr(stderr::record_server_line)
            .on_retry(move |retry| {
                counted.fetch_add(1, Ordering::Relaxed);
                stderr::note(&retry.to_string());
            });
        builder = options.protocol.configure(builder);
        if let Some(depth) = options.trace {
            let trace = WireTrace::new(depth, rounds);
            builder = builder.on_wire(move |wire| trace.print(wire));
        }
        let mut bearer = None;
        if let ServerTarget::Url(url) = &target {
            let options = options.clone();
            let token = interrupt.read(move || options.token()).await?;
            (builder, bearer) = authorize(builder, token, url)?;
        }
        let connecting = async {
            match &target {
                ServerTarget::Url(url) => builder.connect(url).await,
                ServerTarget::Command(words) => builder.spawn(command(words)).await,
            }
        };
        let in_time = async {
            let connected = tokio::time::timeout(SILENCE, connecting).await;
            connected.unwrap_or_else(|_| Err(ErrorKind::Timeout(SILENCE).into()))
        };
        Ok(Self {
            client: interrupt.unless_stopped(in_time).await?,
            interrupt,
            target,
            answerer: None,
            saved: None,
            protocol: options.protocol,
            bearer,
            retries,
            json: options.json,
        })
    }

    pub(super) async fn make(self, call: CallSpec) -> Result<Code, CommandError> {
        let pending = self.client.prepare(call);
        if let Some(saved) = &self.saved {
            if let Dialect::Revision(_) | Dialect::FirstRevision = self.client.dialect() {
                stderr::note(&format!(
                    "the connection uses {}, whose calls cannot be saved while they wait for an answer",
                    one_line(&self.client.server().version)
                ));
            }
            saved.create(&pending)?;
        }
        self.finish(pending).await
    }

    pub(super) async fn finish(self, mut pending: PendingCall) -> Result<Code, CommandError> {
        if let Err(error) = self.replace_answers(&mut pending) {
            self.close().await;
            return Err(error);
        }
        if self.client.can_execute_twice(&pending) {
            stderr::warn(
                "the call may run twice: an earlier request may have been accepted, and the server does not support call ids",
            );
        }
        self.finish_and_close(pending, true).await
    }

    /// Replaces answers of an earlier command with the preset answers of this one.
    fn replace_answers(&self, pending: &mut PendingCall) -> Result<(), CommandError> {
        let (Some(answerer), Some(saved)) = (&self.answerer, &self.saved) else {
            return Ok(());
        };
        let answered = answered(pending);
        let is_answered = |ask: &IncomingAsk| answered.iter().any(|key| key == ask.key());
        let mut is_changed = false;
        for ask in pending.asks().into_iter().filter(is_answered) {
            let key = ask.key().to_owned();
            let why = match answerer.preset.take(&ask) {
                None => continue,
                Some(Err(error)) => error.to_string(),
                Some(Ok(answer)) => match pending.answer(&key, answer) {
                    Ok(()) => {
                        is_changed = true;
                        continue;
                    }
                    Err(error) => error.to_string(),
                },
            };
            if is_changed {
                saved.replace(pending)?;
            }
            let unanswered = vec![UnansweredAsk { key, why }];
            let error = Error::from(ErrorKind::Unanswered(unanswered.clone()));
            let asks = unanswered_asks(vec![ask], &[], &unanswered);
            let file = Continuation::File(saved.file());
            return Err(self.unanswered(error.into(), pending, &asks, &file));
        }
        if is_changed {
            saved.replace(pending)?;
        }
        Ok(())
    }

    /// Waits for a task, which is not cancelled if this command is interrupted.
    pub(super) async fn watch(self, task: &str) -> Result<Code, CommandError> {
        self.finish_and_close(PendingCall::of_task(task), false)
            .await
    }

    /// Closes the connection, and ends a command that was started for it. An interrupt skips the wait.
    pub(super) async fn close(mut self) {
        tokio::select! {
            _ = tokio::time::timeout(CLOSE_TIMEOUT, self.client.close()) => {}
            () = self.interrupt.signal() => {}
        }
    }

    /// `is_own` is false for a task that this command only watches.
    async fn finish_and_close(
        mut self,
        pending: PendingCall,
        is_own: bool,
    ) -> Result<Code, CommandError> {
        let done = self.drive(pending, is_own).await;
        self.close().await;
        done
    }

    async fn drive(&mut self, pending: PendingCall, is_own: bool) -> Result<Code, CommandError> {
        let asker = pending.asker();
        let mut stop = None;
        let stopped = async { stop = Some(self.interrupt.wait().await) };
        let mut done = self.client.finish_unless(pending, stopped).await;
        if let (Err(error), Some(Stop::Deadline(limit))) = (&mut done, stop) {
            error.kind = ErrorKind::DeadlineExceeded(limit);
        }
        stderr::clear();
        let result = match done {
            Ok(result) => result,
            Err(error) => return Err(self.interrupted(error, &asker, is_own).await),
        };
        output::print_result(asker.kind, &result, self.json)?;
        let checked = self.check_result(&asker, &result).await;
        checked.map_err(CommandError::printed_on_stderr_only)
    }

    async fn check_result(&self, asker: &Asker, result: &Value) -> Result<Code, CommandError> {
        if let Some(saved) = &self.saved {
            saved.remove()?;
        }
        let asks = self.take_unanswered();
        if let Some(why) = self.client.output_schema_mismatch(&asker.target, result) {
            stderr::warn(&format!("invalid result: {why}"));
        }
        self.warn_of_unused_answers();
        if !asks.is_empty() {
            print_asks(asker, "asked and continued without an answer", &asks);
            let error = CommandError::new(Code::Unanswered, missing_answers(&asks));
            let flags: Vec<String> = asks.iter().filter_map(MissingAnswer::example).collect();
            return Err(match flags.is_empty() {
                true => error,
                false => error.hint(format!("call again with\n  {}", flags.join(" "))),
            });
        }
        if asker.kind == CallKind::Tool && output::is_error(result) {
            let message = format!("the tool {} reported an error", asker.target);
            let error = CommandError::new(Code::Failed, message);
            let text = result["content"][0]["text"].as_str().unwrap_or_default();
            let is_about_call = ["Invalid arguments", "Unknown tool"];
            return Err(
                match is_about_call.iter().any(|start| text.starts_with(start)) {
                    true => self.with_list_hint(error, asker).await,
                    false => error,
                },
            );
        }
        Ok(Code::Success)
    }

    fn take_unanswered(&self) -> Vec<MissingAnswer> {
        let answerer = self.answerer.as_ref();
        answerer
            .map(|answerer| answerer.take_unanswered())
            .unwrap_or_default()
    }

    fn warn_of_unused_answers(&self) {
        let answerer = self.answerer.iter();
        for warning in answerer.flat_map(|answerer| answerer.preset.unused_warnings()) {
            stderr::warn(&warning);
        }
    }
}

fn print_asks(asker: &Asker, verb: &str, asks: &[MissingAnswer]) {
    let server = match &asker.server {
        Some(name) => format!("server \"{}\"", one_line(name)),
        None => "an unnamed server".to_owned(),
    };
    let kind = match asker.kind {
        CallKind::Tool => "tool",
        CallKind::Prompt => "prompt",
        CallKind::Resource => "resource",
    };
    let mut lines = vec![format!(
        "{kind} {} of {server} ({}) {verb}:",
        one_line(&asker.target),
        one_line(&asker.address)
    )];
    lines.extend(asks.iter().flat_map(MissingAnswer::lines));
    stderr::print(&lines.join("\n"));
}

/// Authorizes requests with an access token, or with the login for this URL.
fn authorize(
    builder: ClientBuilder,
    token: Option<(String, BearerSource)>,
    url: &str,
) -> Result<(ClientBuilder, Option<BearerSource>), CommandError> {
    if let Some((token, source)) = token {
        warn_if_unencrypted(url);
        let token = Bearer::new(&token).map_err(|error| {
            CommandError::usage(error.to_string()).hint(format!("check {source}"))
        })?;
        return Ok((builder.authorize(token), Some(source)));
    }
    let logins = Logins::find().zip(Url::parse(url).ok());
    let logins = logins.filter(|(logins, url)| logins.contains(url));
    let builder = match logins {
        Some((logins, _)) => {
            let oauth = OAuth::by_stored_grants(logins).build();
            builder.authorize(oauth.map_err(|error| CommandError::usage(error.to_string()))?)
        }
        None => builder,
    };
    Ok((builder, None))
}

fn warn_if_unencrypted(url: &str) {
    let Ok(mut url) = Url::parse(url) else { return };
    // A URL with secrets is rejected later, and must not be printed.
    if url.set_username("").is_err() || url.set_password(None).is_err() {
        return;
    }
    if url.scheme() == "http" && !is_loopback(&url) {
        stderr::warn(&format!(
            "the access token is sent to {url} without encryption; use https if the server supports it"
        ));
    }
}

/// A command in its own process group, so that Ctrl-C does not end it before the connection is closed.
fn command(words: &[OsString]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().map(OsString::as_os_str).unwrap_or_default());
    command.args(words).process_group(0);
    for secret in secrets() {
        command.env_remove(secret);
    }
    command
}

fn log_line(message: &LogMessage) -> String {
    let logger = message.logger.as_deref().map(one_line);
    let logger = logger.map_or(String::new(), |logger| format!(" {logger}"));
    let text = match &message.data {
        Value::String(text) => one_line(text),
        data => {
            let line = json::format(data, Fold::NOTHING, 0);
            let plain = anstream::adapter::strip_str(&line).to_string();
            plain.replace('\n', " ")
        }
    };
    format!("{DIM}{}{logger}: {text}{DIM:#}", one_line(&message.level))
}
