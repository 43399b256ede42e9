//! A call that stopped before its end: saving it, and the hint how to go on.

use super::{Caller, show_asks};
use crate::client::exit::Stop;
use crate::client::open_asks::{OpenAsk, open_asks, quoted};
use crate::client::options::Place;
use crate::client::saved_call::SavedCall;
use crate::client::screen;
use refrain_client::{Error, ErrorKind, PendingCall};
use refrain_wire::ErrorCode;
use std::path::Path;
use std::time::Duration;

/// How long cancelling a task may take.
const CANCEL_TIME: Duration = Duration::from_secs(5);

pub(super) enum GoOn<'a> {
    File(&'a Path),
    Task(&'a str),
    Again,
}

impl Caller {
    /// Saves a call that stopped, and describes how to go on.
    pub(super) async fn stopped(&self, error: Error, is_own: bool) -> Stop {
        let mut stop = match &error.kind {
            ErrorKind::Stopped => Stop::interrupted(),
            _ => Stop::from(&error),
        };
        self.warn_of_unused_answers();
        let kept = match (&self.saved, &error.pending) {
            (Some(saved), Some(pending)) => saved.replace(pending).map(|()| Some(saved.file())),
            (Some(saved), None) => saved.remove().map(|()| None),
            (None, _) => Ok(None),
        };
        let unasked = self.save_unasked(&error);
        let file = match kept {
            Ok(None) => unasked.as_ref().map(SavedCall::file),
            Ok(file) => file,
            Err(unsaved) => {
                stop = stop.and(&unsaved.message);
                None
            }
        };
        if let Some(file) = file {
            stop = stop.with("saved", file.display().to_string());
        }
        let Some(pending) = &error.pending else {
            return match error.kind {
                ErrorKind::Unanswered(_) => stop.and("the task was called off"),
                _ => stop,
            };
        };
        if let Some(id) = pending.task_id() {
            stop = stop.with("taskId", id);
        }
        let go_on = match (file, pending.task_id()) {
            (Some(file), _) => GoOn::File(file),
            (None, Some(id)) => GoOn::Task(id),
            (None, None) => GoOn::Again,
        };
        if let ErrorKind::Unanswered(unanswered) = &error.kind {
            let open = open_asks(pending.asks(), self.open(), unanswered);
            return self.unanswered(stop, pending, &open, &go_on);
        }
        self.hint(stop, &error.kind, pending, &go_on, is_own).await
    }

    /// Adds how to go on with a call that failed.
    async fn hint(
        &self,
        mut stop: Stop,
        kind: &ErrorKind,
        pending: &PendingCall,
        go_on: &GoOn<'_>,
        is_own: bool,
    ) -> Stop {
        let mut flags = "";
        if is_foreign_state(kind, pending) && !matches!(go_on, GoOn::Task(_)) {
            let answered = answered(pending);
            let instead = match answered.is_empty() {
                true => String::new(),
                false => format!(
                    "; or it does not want the answer to {}: give another with --answer KEY=JSON",
                    answered.join(", ")
                ),
            };
            stop = stop.and(&format!(
                "this server may not have the keys or the store of the one that asked, or the call has waited for too \
                 long: go on at the right server, or call anew{instead}"
            ));
            // A command is part of the hint in any case.
            if let Place::Url(_) = self.place {
                flags = " --url URL";
            }
        }
        match *go_on {
            GoOn::Task(_) if matches!(kind, ErrorKind::Rpc(_)) => stop,
            GoOn::File(file) if is_refused_anew(kind, pending) => stop.and(&format!(
                "the call stays in {}, as it may have been taken before; go on with\n  {}\nor remove the file",
                file.display(),
                self.resume(file, "")
            )),
            GoOn::File(file) => stop.and(&format!(
                "the call is kept in {}; go on with\n  {}",
                file.display(),
                self.resume(file, flags)
            )),
            GoOn::Task(id) if is_own && matches!(kind, ErrorKind::Stopped) => {
                self.call_off(stop, id).await
            }
            GoOn::Task(id) => stop.and(&self.task_goes_on(id)),
            GoOn::Again if is_refused_anew(kind, pending) => stop.and(
                "it was sent before, and may have been taken then: that response was lost",
            ),
            GoOn::Again if pending.round() > 0 => stop.and(
                "the call is lost; with --save FILE it would be kept for `refrain resume FILE`",
            ),
            GoOn::Again => stop,
        }
    }

    /// Saves a call that broke in the middle without `--save`: its answers would be lost.
    fn save_unasked(&self, error: &Error) -> Option<SavedCall> {
        let pending = error.pending.as_deref()?;
        let is_left = matches!(error.kind, ErrorKind::Unanswered(_) | ErrorKind::Stopped);
        let is_answered = pending.round() > 1 || !answered(pending).is_empty();
        if self.saved.is_some() || is_left || !is_answered || pending.task_id().is_some() {
            return None;
        }
        let file = format!("refrain-call-{}.json", std::process::id());
        let saved = SavedCall::new(Path::new(&file)).and_then(|saved| {
            saved.begin(pending)?;
            Ok(saved)
        });
        saved.inspect_err(|stop| screen::warn(&stop.message)).ok()
    }

    /// Shows the open asks, and how to answer them.
    pub(super) fn unanswered(
        &self,
        mut stop: Stop,
        pending: &PendingCall,
        open: &[OpenAsk],
        go_on: &GoOn<'_>,
    ) -> Stop {
        let examples: Vec<String> = open.iter().filter_map(OpenAsk::example).collect();
        let examples: String = examples.iter().map(|flag| format!(" {flag}")).collect();
        if self.json {
            stop = stop.waiting(open.iter().map(OpenAsk::to_json).collect());
            if let GoOn::File(file) = go_on {
                stop = stop.with("saved", file.display().to_string());
            }
        } else {
            show_asks(&pending.asker(), "asks", open);
        }
        stop.message = match go_on {
            _ if examples.is_empty() => cannot_answer(go_on),
            GoOn::File(file) => format!(
                "not everything was answered; the call is kept in {}. Go on with\n  {}",
                file.display(),
                self.resume(file, &examples)
            ),
            GoOn::Task(id) => format!(
                "not everything was answered; the task goes on. Answer with\n  {}",
                self.watch_command(id, &examples)
            ),
            GoOn::Again => {
                let answerer = self.answerer.as_ref();
                let given = match answerer.is_some_and(|answerer| !answerer.preset.is_empty()) {
                    true => " the answers that were given and",
                    false => "",
                };
                format!(
                    "not everything was answered. Call again with{given}\n {examples}\nor with --save FILE, and go on \
                     with `refrain resume FILE --answer KEY=JSON` whenever you like"
                )
            }
        };
        stop
    }

    /// Cancels a task whose id only this command knows.
    async fn call_off(&self, stop: Stop, id: &str) -> Stop {
        let cancelled = tokio::time::timeout(CANCEL_TIME, self.client.cancel_task(id)).await;
        match cancelled {
            Ok(Ok(())) => stop.and(&format!("the task {id} is cancelled")),
            Ok(Err(_)) | Err(_) => stop.and(&self.task_goes_on(id)),
        }
    }

    fn task_goes_on(&self, id: &str) -> String {
        let watch = self.watch_command(id, "");
        format!("the task goes on; watch it with\n  {watch}")
    }

    /// The command that resumes the call in a file, with further flags. The file contains the dialect.
    fn resume(&self, file: &Path, flags: &str) -> String {
        let file = quoted(&file.display().to_string());
        self.commanded(&format!("resume {file}{flags}"))
    }

    /// The command that watches a task, with further flags.
    fn watch_command(&self, id: &str, flags: &str) -> String {
        let dialect = self.dialect.map(|it| format!(" --dialect {}", it.name()));
        let task = format!("{}{}{flags}", quoted(id), dialect.unwrap_or_default());
        match &self.place {
            Place::Url(url) => format!("refrain task watch {} {task}", quoted(url)),
            Place::Command(_) => self.commanded(&format!("task watch {task}")),
        }
    }

    fn commanded(&self, words: &str) -> String {
        match &self.place {
            Place::Url(_) => format!("refrain {words}"),
            Place::Command(command) => {
                let command = command.iter().map(|word| quoted(&word.to_string_lossy()));
                let command: Vec<String> = command.collect();
                format!("refrain {words} --stdio -- {}", command.join(" "))
            }
        }
    }
}

/// The message for asks that this client cannot answer.
fn cannot_answer(go_on: &GoOn<'_>) -> String {
    let cannot = "the server asks what this client cannot answer";
    match go_on {
        GoOn::File(file) => format!(
            "{cannot}; the call is kept in {} for one that can. Remove the file to give it up",
            file.display()
        ),
        GoOn::Task(_) | GoOn::Again => format!("{cannot}; make the call with one that can"),
    }
}

/// The keys of asks with answers that were not sent yet.
pub(super) fn answered(pending: &PendingCall) -> Vec<String> {
    let open = pending.unanswered();
    let keys = pending.asks().into_iter().map(|ask| ask.key().to_owned());
    keys.filter(|key| open.iter().all(|ask| ask.key() != key))
        .collect()
}

/// Whether the server refused a repeated call that it may have accepted the first time.
fn is_refused_anew(kind: &ErrorKind, pending: &PendingCall) -> bool {
    let is_refused = matches!(
        kind,
        ErrorKind::Rpc(_) | ErrorKind::InvalidTool { .. } | ErrorKind::InvalidArgument(_)
    );
    is_refused && pending.round() == 0 && pending.is_delivery_unknown()
}

/// Whether the server does not know the state or the task that it was sent.
fn is_foreign_state(kind: &ErrorKind, pending: &PendingCall) -> bool {
    let invalid_params = i64::from(ErrorCode::InvalidParams.as_i32());
    matches!(kind, ErrorKind::Rpc(refusal) if refusal.code == invalid_params) && pending.round() > 0
}
