//! Calls that end without a result: saves them, and adds hints how to continue.

use super::{ServerConnection, print_asks};
use crate::client::exit::CommandError;
use crate::client::interrupt::DEADLINE_HINT;
use crate::client::options::{BearerSource, ServerTarget};
use crate::client::sanitize::one_line;
use crate::client::saved_call::SavedCall;
use crate::client::stderr;
use crate::client::unanswered::{MissingAnswer, quoted, unanswered_asks};
use refrain_client::{Asker, Error, ErrorKind, IncomingAsk, PendingCall, UnansweredAsk};
use refrain_wire::{CallKind, ErrorCode, did_you_mean};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The timeout for cancelling a task.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout for a list that is searched for similar names.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// How a call can be continued.
pub(super) enum Continuation<'a> {
    File(&'a Path),
    Task(&'a str),
    /// Only by a new call.
    None,
}

impl ServerConnection {
    /// Saves a call that failed, and adds how to continue it. `is_own` is false for a task that this command only watches.
    pub(super) async fn interrupted(
        &self,
        error: Error,
        asker: &Asker,
        is_own: bool,
    ) -> CommandError {
        let mut report = match &error.kind {
            ErrorKind::Stopped => CommandError::interrupted(),
            _ => CommandError::from(&error),
        };
        if matches!(error.kind, ErrorKind::CannotResume(_)) && self.protocol.is_set() {
            report = report.hint("leave out --dialect");
        }
        let retries = self.retries.load(Ordering::Relaxed);
        if retries > 0 {
            report = report.with("retries", retries);
        }
        // A call that can be continued may use the other answers later.
        if error.pending.is_none() || matches!(error.kind, ErrorKind::Unanswered(_)) {
            self.warn_of_unused_answers();
        }
        let saved = match (&self.saved, &error.pending) {
            (Some(saved), Some(pending)) => saved.replace(pending).map(|()| Some(saved.file())),
            (Some(saved), None) => saved.remove().map(|()| None),
            (None, _) => Ok(None),
        };
        let rescued = self.save_answers(&error);
        let file = match saved {
            Ok(None) => rescued.as_ref().map(SavedCall::file),
            Ok(file) => file,
            Err(unsaved) => {
                report = report.note(unsaved.message);
                None
            }
        };
        if let Some(file) = file {
            report = report.with("saved", file.display().to_string());
        }
        let Some(pending) = &error.pending else {
            return match error.kind {
                ErrorKind::Unanswered(_) => report.note("the task was cancelled"),
                rejected if is_own && may_be_unknown_name(&rejected) => {
                    self.with_list_hint(report, asker).await
                }
                _ => report,
            };
        };
        if let Some(id) = pending.task_id() {
            report = report.with("taskId", id);
        }
        let continuation = match (file, pending.task_id()) {
            (Some(file), _) => Continuation::File(file),
            (None, Some(id)) => Continuation::Task(id),
            (None, None) => Continuation::None,
        };
        if let ErrorKind::Unanswered(unanswered) = &error.kind {
            let recorded = self.take_unanswered();
            let is_recorded = |missing: &UnansweredAsk| {
                let mut keys = recorded.iter().map(|recorded| recorded.ask.key());
                keys.any(|key| key == missing.key)
            };
            // `asks` copies the asks, which may be large.
            let asks = match unanswered.iter().all(is_recorded) {
                true => Vec::new(),
                false => pending.asks(),
            };
            let asks = unanswered_asks(asks, &recorded, unanswered);
            return self.unanswered(report, pending, &asks, &continuation);
        }
        self.with_hints(report, &error.kind, pending, &continuation, is_own)
            .await
    }

    async fn with_hints(
        &self,
        mut report: CommandError,
        kind: &ErrorKind,
        pending: &PendingCall,
        continuation: &Continuation<'_>,
        is_own: bool,
    ) -> CommandError {
        let is_task = matches!(continuation, Continuation::Task(_));
        let is_round_rejected = is_invalid_params(kind) && pending.round() > 0 && !is_task;
        if is_round_rejected {
            report = with_rejection_reasons(report, kind, pending);
        }
        if matches!(kind, ErrorKind::DeadlineExceeded(_)) {
            report = report.hint(DEADLINE_HINT);
        }
        let is_unknown = pending.call().kind() == CallKind::Tool && pending.is_delivery_unknown();
        let mut may_run_twice = false;
        if is_unknown && !is_repeat_rejected(kind, pending) {
            report = report
                .note("the outcome is unknown: the request was sent, so the tool may have run")
                .with("outcome", "unknown");
            may_run_twice = self.client.can_execute_twice(pending);
        }
        if may_run_twice {
            report = report.hint(match continuation {
                Continuation::File(file) => format!(
                    "find out whether the call had an effect; if it had no effect, `{}` sends it again",
                    self.resume_command(file, "")
                ),
                _ => "find out whether the call had an effect before you send it again: the server would not recognise the repeated call".to_owned(),
            });
        }
        match *continuation {
            Continuation::Task(_) if matches!(kind, ErrorKind::Rpc(_)) => report,
            Continuation::File(file) if is_repeat_rejected(kind, pending) => report
                .note(format!(
                    "the call is still saved in {}, because an earlier request may have been accepted",
                    file.display()
                ))
                .hint(format!(
                    "remove the file, or continue with\n  {}",
                    self.resume_command(file, "")
                )),
            Continuation::File(file) if may_run_twice => {
                report.note(format!("the call is saved in {}", file.display()))
            }
            Continuation::File(file) => {
                let hint = match is_round_rejected {
                    true => format!(
                        "make a new call, or continue at the server that asked:\n  {}",
                        self.resume_elsewhere_command(file)
                    ),
                    false => format!("continue with\n  {}", self.resume_command(file, "")),
                };
                report
                    .note(format!("the call is saved in {}", file.display()))
                    .hint(hint)
            }
            Continuation::Task(id) if is_own && matches!(kind, ErrorKind::Stopped) => {
                self.cancel(report, id).await
            }
            Continuation::Task(id) => self.with_watch_hint(report, id),
            Continuation::None if is_repeat_rejected(kind, pending) => report
                .note("the request was sent before and may have been accepted; that response was lost"),
            Continuation::None if pending.round() > 0 || is_unknown => report
                .note("the call is lost")
                .hint(format!(
                    "with --save FILE, a call can be continued by `{}`",
                    self.resume_command(Path::new("FILE"), "")
                )),
            Continuation::None => report,
        }
    }

    /// Saves a call that failed after an answer, even without `--save`, so that the answers are not lost.
    fn save_answers(&self, error: &Error) -> Option<SavedCall> {
        let pending = error.pending.as_deref()?;
        let is_deliberate = matches!(error.kind, ErrorKind::Unanswered(_) | ErrorKind::Stopped);
        if self.saved.is_some() || is_deliberate || pending.task_id().is_some() {
            return None;
        }
        if pending.round() <= 1 && answered(pending).is_empty() {
            return None;
        }
        let file = format!("refrain-call-{}.json", std::process::id());
        let saved = SavedCall::new(Path::new(&file)).and_then(|saved| {
            saved.create(pending)?;
            Ok(saved)
        });
        saved.inspect_err(|error| stderr::warn(&error.message)).ok()
    }

    /// Prints the unanswered asks, and adds how to answer them.
    pub(super) fn unanswered(
        &self,
        mut report: CommandError,
        pending: &PendingCall,
        asks: &[MissingAnswer],
        continuation: &Continuation<'_>,
    ) -> CommandError {
        let flags: String = asks
            .iter()
            .filter_map(MissingAnswer::example)
            .map(|flag| format!(" {flag}"))
            .collect();
        if self.json {
            report = report.with_asks(asks.iter().map(MissingAnswer::to_json).collect());
            if let Continuation::File(file) = continuation {
                report = report.with("saved", file.display().to_string());
            }
        } else {
            print_asks(&pending.asker(), "asks", asks);
        }
        report.message = missing_answers(asks);
        if let Continuation::File(file) = continuation {
            report = report.note(format!("the call is saved in {}", file.display()));
        }
        match continuation {
            _ if flags.is_empty() => {
                report.message = "the server asks for input that this client cannot provide".into();
                report.hint(match continuation {
                    Continuation::File(_) => {
                        "continue with a client that can provide it, or remove the file"
                    }
                    _ => "make the call with a client that can provide it",
                })
            }
            Continuation::File(file) => report.hint(format!(
                "continue with\n  {}",
                self.resume_command(file, &flags)
            )),
            Continuation::Task(id) => report
                .note(format!("task {} is waiting for the answer", one_line(id)))
                .hint(format!("answer with\n  {}", self.watch_command(id, &flags))),
            Continuation::None => {
                let answerer = self.answerer.as_ref();
                let also = match answerer.is_some_and(|answerer| !answerer.preset.is_empty()) {
                    true => " your other answers, if any, and",
                    false => "",
                };
                report
                    .hint(format!("call again with{also}\n {flags}"))
                    .hint(format!(
                        "with --save FILE, you can answer later with `{}`",
                        self.resume_command(Path::new("FILE"), "")
                    ))
            }
        }
    }

    /// Cancels a task whose id only this command knows.
    async fn cancel(&self, report: CommandError, id: &str) -> CommandError {
        let cancelled = tokio::time::timeout(CANCEL_TIMEOUT, self.client.cancel_task(id)).await;
        match cancelled {
            Ok(Ok(())) => report.note(format!("task {} was cancelled", one_line(id))),
            Ok(Err(_)) | Err(_) => self.with_watch_hint(report, id),
        }
    }

    fn with_watch_hint(&self, report: CommandError, id: &str) -> CommandError {
        let command = self.watch_command(id, "");
        report
            .note(format!("task {} is still running", one_line(id)))
            .hint(format!("wait for it with\n  {command}"))
    }

    /// Adds similar names, and the command that lists the tools, prompts or resources of the server.
    pub(super) async fn with_list_hint(
        &self,
        mut report: CommandError,
        asker: &Asker,
    ) -> CommandError {
        // The server may have made a suggestion.
        if !report.message.contains("did you mean") {
            let suggestion = tokio::time::timeout(LIST_TIMEOUT, self.suggestion(asker)).await;
            if let Ok(Some(suggestion)) = suggestion {
                report = report.hint(suggestion);
            }
        }
        let (list, content) = match asker.kind {
            CallKind::Tool => ("tools", "the tools and their arguments"),
            CallKind::Prompt => ("prompts", "the prompts and their arguments"),
            CallKind::Resource => ("resources", "the resources"),
        };
        let command = match &self.target {
            ServerTarget::Url(url) => self.command_line(&format!("{list} {}", quoted(url))),
            ServerTarget::Command(_) => self.command_line(list),
        };
        report.hint(format!("`{command}` lists {content}"))
    }

    /// Similar names as "did you mean …?", if the server does not list the name.
    async fn suggestion(&self, asker: &Asker) -> Option<String> {
        let client = &self.client;
        let target = &asker.target;
        match asker.kind {
            CallKind::Tool => {
                let tools = client.tools().await.ok()?;
                similar_name(target, tools.iter().map(|tool| tool.name.as_str()))
            }
            CallKind::Prompt => {
                let prompts = client.prompts().await.ok()?;
                similar_name(target, prompts.iter().map(|prompt| prompt.name.as_str()))
            }
            CallKind::Resource => {
                let resources = client.resources().await.ok()?;
                similar_name(
                    target,
                    resources.iter().map(|resource| resource.uri.as_str()),
                )
            }
        }
    }

    /// The command that resumes a saved call on this server. The file contains the protocol and the address, but
    /// `$REFRAIN_TOKEN` is sent only with `--url`.
    fn resume_command(&self, file: &Path, flags: &str) -> String {
        let url = match (&self.target, &self.bearer) {
            (ServerTarget::Url(url), Some(BearerSource::Environment)) => {
                format!(" --url {}", quoted(url))
            }
            _ => String::new(),
        };
        let file = quoted(&file.display().to_string());
        self.command_line(&format!("resume {file}{url}{flags}"))
    }

    /// The command that resumes a saved call on another server.
    fn resume_elsewhere_command(&self, file: &Path) -> String {
        // With --stdio, the command is part of the hint anyway.
        let url = match self.target {
            ServerTarget::Url(_) => " --url URL",
            ServerTarget::Command(_) => "",
        };
        let file = quoted(&file.display().to_string());
        self.command_line(&format!("resume {file}{url}"))
    }

    fn watch_command(&self, id: &str, flags: &str) -> String {
        let task = format!("{}{}{flags}", quoted(id), self.protocol.flag());
        match &self.target {
            ServerTarget::Url(url) => {
                self.command_line(&format!("task watch {} {task}", quoted(url)))
            }
            ServerTarget::Command(_) => self.command_line(&format!("task watch {task}")),
        }
    }

    /// The command line with these words, and with `--bearer-file` or `--stdio` if that was used.
    fn command_line(&self, words: &str) -> String {
        match &self.target {
            ServerTarget::Url(_) => match &self.bearer {
                Some(BearerSource::File(file)) => {
                    let file = quoted(&file.display().to_string());
                    format!("refrain {words} --bearer-file {file}")
                }
                Some(BearerSource::Environment) | None => format!("refrain {words}"),
            },
            ServerTarget::Command(command) => {
                let command = command.iter().map(|word| quoted(&word.to_string_lossy()));
                let command: Vec<String> = command.collect();
                format!("refrain {words} --stdio -- {}", command.join(" "))
            }
        }
    }
}

pub(super) fn missing_answers(asks: &[MissingAnswer]) -> String {
    let part = |problem: &str, is_invalid: bool| {
        let asks = asks.iter().filter(|ask| ask.is_invalid == is_invalid);
        let keys: Vec<String> = asks.map(|ask| one_line(ask.ask.key())).collect();
        (!keys.is_empty()).then(|| format!("{problem} answer to {}", keys.join(", ")))
    };
    let parts = [part("missing", false), part("invalid", true)];
    Vec::from_iter(parts.into_iter().flatten()).join("; ")
}

/// The keys of asks with answers that were not sent yet.
pub(super) fn answered(pending: &PendingCall) -> Vec<String> {
    let keys = |asks: Vec<IncomingAsk>| Vec::from_iter(asks.iter().map(|ask| ask.key().to_owned()));
    let unanswered = keys(pending.unanswered());
    let mut answered = keys(pending.asks());
    answered.retain(|key| !unanswered.contains(key));
    answered
}

/// Adds why the server may have rejected a round. A message about the state is not about the answers.
fn with_rejection_reasons(
    report: CommandError,
    kind: &ErrorKind,
    pending: &PendingCall,
) -> CommandError {
    let report = report.note(
        "the call may have expired, the server may have restarted without --keys, or it may not share the keys or the store of the server that asked",
    );
    let answered = answered(pending);
    match answered.is_empty() || is_about_state(kind) {
        true => report,
        false => report.hint(format!(
            "the server may have rejected the answer to {}: pass another with --answer KEY=JSON",
            one_line(&answered.join(", "))
        )),
    }
}

/// Whether the server rejected a repeated request that it may have accepted the first time.
fn is_repeat_rejected(kind: &ErrorKind, pending: &PendingCall) -> bool {
    let is_rejected = matches!(
        kind,
        ErrorKind::Rpc(_) | ErrorKind::InvalidTool { .. } | ErrorKind::InvalidArgument(_)
    );
    is_rejected && pending.round() == 0 && pending.is_delivery_unknown()
}

fn is_about_state(kind: &ErrorKind) -> bool {
    matches!(kind, ErrorKind::Rpc(failure) if failure.message.contains("requestState"))
}

fn is_invalid_params(kind: &ErrorKind) -> bool {
    let invalid_params = i64::from(ErrorCode::InvalidParams.as_i32());
    matches!(kind, ErrorKind::Rpc(failure) if failure.code == invalid_params)
}

/// Whether the server may not know the tool, prompt or resource. Legacy revisions have a code for unknown resources.
fn may_be_unknown_name(kind: &ErrorKind) -> bool {
    const NOT_FOUND: i64 = -32002;
    let is_not_found = matches!(kind, ErrorKind::Rpc(failure) if failure.code == NOT_FOUND);
    is_not_found || is_invalid_params(kind)
}

fn similar_name<'a>(target: &str, names: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    match names.clone().any(|name| name == target) {
        true => None,
        false => did_you_mean(target, names),
    }
}
