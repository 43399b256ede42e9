//! Prints the events of the demo, as text or as one JSON object per line.
//!
//! Text has a column of labels and a column of contents. No line is wider than [`WIDTH`].

use super::balancer::{DemoBalancer, RecordedExchange};
use super::caller::{DemoDialogue, DemoRound, DemoTaskReply, RoundReply};
use super::fleet::DemoInstance;
use super::stories::Story;
use crate::style::{BOLD, DIM, PLAIN};
use crate::terminal::display_text::wrapped;
use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::io::{self, Stdout, Write};

/// The width of a line.
const WIDTH: usize = 94;
/// The width of the column of labels.
const LABEL: usize = 12;
/// The indent of texts, after the label and the arrow to the instance.
const TEXT: usize = LABEL + 9;

const PASSED: Style = AnsiColor::Green.on_default().bold();
const FAILED: Style = AnsiColor::Red.on_default().bold();
const ASKED: Style = AnsiColor::Yellow.on_default();

pub(super) struct Printer {
    out: AutoStream<Stdout>,
    json: bool,
    after_claim: bool,
    story: &'static Story,
    rows: Vec<ClaimRow>,
}

#[derive(Clone, Serialize)]
struct ClaimRow {
    story: &'static Story,
    claim: &'static str,
    held: bool,
}

impl Printer {
    pub(super) fn new(json: bool) -> Self {
        Self {
            out: AutoStream::auto(io::stdout()),
            json,
            after_claim: false,
            story: Story::first(),
            rows: Vec::new(),
        }
    }

    /// Prints an event if the output is JSON. `more` is an object with further members.
    fn print_json(
        &mut self,
        event: &str,
        members: Value,
        more: &impl Serialize,
    ) -> io::Result<bool> {
        if self.json {
            let mut object = json!({"event": event, "story": self.story});
            for part in [members, serde_json::to_value(more)?] {
                let part = part.as_object().cloned().unwrap_or_default();
                part.into_iter()
                    .for_each(|(name, value)| object[name] = value);
            }
            writeln!(self.out, "{object}")?;
        }
        Ok(self.json)
    }

    /// Prints an empty line if the story continues after a claim.
    fn separate(&mut self, is_claim: bool) -> io::Result<()> {
        if std::mem::replace(&mut self.after_claim, is_claim) && !is_claim {
            writeln!(self.out)?;
        }
        Ok(())
    }

    pub(super) fn fleet(
        &mut self,
        instances: &[DemoInstance],
        balancer: &DemoBalancer,
    ) -> io::Result<()> {
        let balancer = balancer.address;
        if self.json {
            let started = |instance: &DemoInstance| {
                json!({
                    "name": instance.spec.name,
                    "process": instance.process,
                    "address": instance.address,
                    "accounts": instance.spec.accounts,
                })
            };
            let started: Vec<Value> = instances.iter().map(started).collect();
            let event = json!({"event": "fleet", "instances": started, "balancer": balancer});
            return writeln!(self.out, "{event}");
        }
        writeln!(
            self.out,
            "{BOLD}Three instances that share a key, behind a round-robin balancer{BOLD:#}\n"
        )?;
        for DemoInstance {
            spec,
            address,
            process,
            ..
        } in instances
        {
            let style = colour(spec.name);
            let accounts = match spec.accounts {
                1 => "",
                _ => "  with version 2 of the tool `accounts`",
            };
            let name = spec.name;
            writeln!(
                self.out,
                "  {style}{name:<10}{style:#}{address}  process {process}{accounts}"
            )?;
        }
        writeln!(self.out, "  {:<10}{balancer}", "balancer")?;
        self.dim(
            "The ledger is a file to which the tools append a line for every effect, so that effects can be counted. \
             Most tools are the examples of the proposals that became MCP 2026-07-28.",
        )
    }

    pub(super) fn story(&mut self, story: &'static Story) -> io::Result<()> {
        self.story = story;
        let (number, title, watch) = (story.number(), story.title, story.text);
        let members = json!({"number": number, "title": title, "watch": watch});
        if self.print_json("story", members, &())? {
            return Ok(());
        }
        self.after_claim = false;
        writeln!(self.out, "\n{BOLD}{number}. {title}{BOLD:#}")?;
        self.dim(watch)?;
        writeln!(self.out)
    }

    pub(super) fn note(&mut self, note: &str) -> io::Result<()> {
        if self.print_json("note", json!({"note": note}), &())? {
            return Ok(());
        }
        self.separate(false)?;
        self.labelled("note", PLAIN, note)
    }

    pub(super) fn claim(&mut self, claim: &'static str, held: bool) -> io::Result<()> {
        let story = self.story;
        self.rows.push(ClaimRow { story, claim, held });
        if self.print_json("claim", json!({"claim": claim, "held": held}), &())? {
            return Ok(());
        }
        self.separate(true)?;
        match held {
            true => self.labelled("ok", PASSED, claim),
            false => self.labelled("FAILED", FAILED, claim),
        }
    }

    pub(super) fn failure(&mut self, problem: &str, instances: &[DemoInstance]) -> io::Result<()> {
        let log =
            |instance: &DemoInstance| json!({"name": instance.spec.name, "lines": instance.log()});
        let logs: Vec<Value> = instances.iter().map(log).collect();
        let members = json!({"problem": problem, "logs": logs});
        if !self.print_json("broke", members, &())? {
            self.labelled("failed", FAILED, problem)?;
            for instance in instances {
                let name = instance.spec.name;
                writeln!(self.out, "  the last log lines of {name}:")?;
                for line in instance.log() {
                    writeln!(self.out, "    {DIM}{line}{DIM:#}")?;
                }
            }
        }
        self.claim("The story is completed", false)
    }

    fn dim(&mut self, text: &str) -> io::Result<()> {
        for line in wrapped(text, WIDTH - 2) {
            writeln!(self.out, "  {DIM}{line}{DIM:#}")?;
        }
        Ok(())
    }

    /// Prints a round of a call. `attempt` describes the use of its token, in the story about tokens.
    pub(super) fn round(
        &mut self,
        dialogue: &DemoDialogue,
        attempt: Option<&str>,
        round: &DemoRound,
    ) -> io::Result<()> {
        let call = dialogue.pending.call();
        let mut members = json!({
            "principal": dialogue.caller.principal,
            "tool": call.target(),
            "arguments": call.arguments(),
        });
        if let Some(attempt) = attempt {
            members["attempt"] = json!(attempt);
        }
        if self.print_json("round", members, round)? {
            return Ok(());
        }
        self.separate(false)?;
        if let Some(attempt) = attempt {
            return self.attempt(attempt, round);
        }
        let sent = match round.number {
            1 => called(dialogue),
            _ if round.answers.is_empty() => "the same call with the token".into(),
            _ => format!("{}, with the token", answers(&round.answers).join("\n")),
        };
        self.sent(&format!("round {}", round.number), &round.exchange, &sent)?;
        let mut cost = Vec::new();
        match &round.reply {
            RoundReply::Incomplete { asks, token_bytes } => {
                let text = match asks.len() {
                    0 => "hands on the rest of the work, without an ask".into(),
                    _ => asked(asks).join("\n"),
                };
                self.arrow("", "←", round.instance(), &text, ASKED)?;
                cost.push(format!("token of {token_bytes} bytes"));
            }
            RoundReply::Complete { text, is_error } => {
                let style = if *is_error { FAILED } else { PASSED };
                self.arrow("", "←", round.instance(), text, style)?;
            }
            RoundReply::Rejected { code, message } => {
                let text = format!("{code} {message}");
                self.arrow("", "←", round.instance(), &text, FAILED)?;
            }
        }
        if let Some(done) = round.cost {
            cost.push(counted(done.replayed, "entry replayed", "entries replayed"));
            cost.push(counted(done.steps, "step run", "steps run"));
        }
        writeln!(self.out, "{:TEXT$}{DIM}{}{DIM:#}", "", cost.join(", "))
    }

    /// Prints a request about a task, and the task's status. `is_call` is true for the call that becomes the task.
    pub(super) fn task(
        &mut self,
        task: &DemoDialogue,
        reply: &DemoTaskReply,
        is_call: bool,
    ) -> io::Result<()> {
        let members = json!({"principal": task.caller.principal});
        if self.print_json("task", members, reply)? {
            return Ok(());
        }
        self.separate(false)?;
        let sent = match is_call {
            true => called(task),
            false if reply.answers.is_empty() => format!("{}: what is its status?", reply.request),
            false => format!("{}: {}", reply.request, answers(&reply.answers).join("\n")),
        };
        self.sent("task", &reply.exchange, &sent)?;
        let status = reply.status.as_deref().unwrap_or("accepted");
        let (mut got, style) = match &reply.text {
            Some(text) => (vec![format!("{status}: {text}")], PASSED),
            None => (vec![status.to_owned()], ASKED),
        };
        got.extend(asked(&reply.asks));
        self.arrow("", "←", reply.instance(), &got.join("\n"), style)?;
        match &reply.message {
            Some(message) => writeln!(self.out, "{:TEXT$}{DIM}{message}{DIM:#}", ""),
            None => Ok(()),
        }
    }

    fn attempt(&mut self, attempt: &str, round: &DemoRound) -> io::Result<()> {
        let (text, style) = match &round.reply {
            RoundReply::Rejected { code, .. } => (format!("rejected, {code}"), ASKED),
            RoundReply::Complete { .. } => ("accepted".into(), PASSED),
            RoundReply::Incomplete { .. } => ("continued".into(), FAILED),
        };
        let who = colour(round.instance());
        writeln!(
            self.out,
            "  {:<10}→ {who}{:<7}{who:#}{attempt:<50} ← {style}{text}{style:#}",
            "token",
            round.instance()
        )
    }

    fn sent(&mut self, label: &str, exchange: &RecordedExchange, text: &str) -> io::Result<()> {
        let skipped = exchange.passed_over.iter();
        let mut lines: Vec<String> = skipped
            .map(|name| format!("({name} does not respond and is skipped)"))
            .collect();
        lines.push(text.to_owned());
        self.arrow(label, "→", exchange.instance, &lines.join("\n"), PLAIN)
    }

    fn arrow(
        &mut self,
        label: &str,
        arrow: &str,
        instance: &str,
        text: &str,
        style: Style,
    ) -> io::Result<()> {
        let who = colour(instance);
        write!(self.out, "  {label:<10}{arrow} {who}{instance:<7}{who:#}")?;
        self.hanging(text, TEXT, style)
    }

    fn labelled(&mut self, label: &str, style: Style, text: &str) -> io::Result<()> {
        write!(self.out, "  {style}{label:<10}{style:#}")?;
        self.hanging(text, LABEL, PLAIN)
    }

    /// Prints text from the cursor on; further lines are indented.
    fn hanging(&mut self, text: &str, indent: usize, style: Style) -> io::Result<()> {
        for (at, line) in wrapped(text, WIDTH - indent).iter().enumerate() {
            let indent = if at == 0 { 0 } else { indent };
            writeln!(self.out, "{:indent$}{style}{line}{style:#}", "")?;
        }
        Ok(())
    }

    /// Prints the summary, with the failed checks. Returns true if all passed.
    pub(super) fn summary(&mut self, seconds: f64) -> io::Result<bool> {
        let (rows, count) = (&self.rows, self.rows.len());
        let failed = || rows.iter().filter(|row| !row.held);
        let held = !rows.is_empty() && failed().count() == 0;
        if self.json {
            let event = json!({"event": "table", "held": held, "seconds": seconds, "rows": rows});
            writeln!(self.out, "{event}")?;
            return Ok(held);
        }
        let (summary, style) = match failed().count() {
            0 => (format!("All {count} checks passed."), PASSED),
            failed => (format!("{failed} of {count} checks FAILED."), FAILED),
        };
        writeln!(
            self.out,
            "\n{style}{summary}{style:#} It took {seconds:.1} seconds."
        )?;
        for ClaimRow { story, claim, .. } in failed() {
            writeln!(self.out, "  {}: {claim}", story.title)?;
        }
        Ok(held)
    }
}

fn colour(instance: &str) -> Style {
    match instance {
        "a" => AnsiColor::Cyan,
        "b" => AnsiColor::Magenta,
        "c" => AnsiColor::Blue,
        _ => AnsiColor::Yellow,
    }
    .on_default()
    .bold()
}

fn asked(asks: &Map<String, Value>) -> Vec<String> {
    let line = |(key, ask): (&String, &Value)| {
        let params = &ask["params"];
        match ask["method"].as_str().unwrap_or_default() {
            "elicitation/create" => {
                let message = params["message"].as_str().unwrap_or_default();
                format!("asks {key}: {message}")
            }
            "sampling/createMessage" => {
                let question = params["messages"][0]["content"]["text"].as_str();
                format!("asks {key} of a model: {}", question.unwrap_or_default())
            }
            "roots/list" => format!("asks {key}: which directories does the project have?"),
            other => format!("asks {key} with {other}"),
        }
    };
    asks.iter().map(line).collect()
}

fn answers(answers: &Map<String, Value>) -> Vec<String> {
    let line = |(key, answer): (&String, &Value)| match answer {
        _ if answer["action"] == "accept" => format!("{key} = {}", answer["content"]),
        _ if answer["roots"].is_array() => {
            let roots = answer["roots"].as_array().into_iter().flatten();
            let uris: Vec<&str> = roots.filter_map(|root| root["uri"].as_str()).collect();
            format!("{key} = {}", uris.join(" and "))
        }
        _ => format!("{key} = {}", answer["content"]["text"]),
    };
    answers.iter().map(line).collect()
}

fn called(dialogue: &DemoDialogue) -> String {
    let (principal, call) = (dialogue.caller.principal, dialogue.pending.call());
    format!(
        "{principal} calls {} {}",
        call.target(),
        json!(call.arguments())
    )
}

fn counted(count: u32, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
