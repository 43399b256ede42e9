//! Prints the events of a demo, as text or as one JSON object a line.
//!
//! Text has a column of labels and a column of contents; no line is wider than [`WIDTH`].

use super::balancer::{Balancer, Exchange};
use super::client::{Dialogue, Look, Outcome, Round};
use super::fleet::Instance;
use super::stories::Story;
use crate::style::{BOLD, DIM, PLAIN};
use crate::terminal::text::wrapped;
use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::io::{self, Stdout, Write};

const WIDTH: usize = 94;
/// Columns before an arrow: the label.
const LABEL: usize = 12;
/// Columns before the text of a round: label, arrow and instance.
const TEXT: usize = LABEL + 9;

const HELD: Style = AnsiColor::Green.on_default().bold();
const NOT_HELD: Style = AnsiColor::Red.on_default().bold();
const ASKED: Style = AnsiColor::Yellow.on_default();

pub(super) struct Stage {
    out: AutoStream<Stdout>,
    json: bool,
    after_claim: bool,
    story: Story,
    rows: Vec<Row>,
}

/// A checked claim: one line of the final table.
#[derive(Clone, Debug, Serialize)]
struct Row {
    story: Story,
    claim: &'static str,
    held: bool,
}

impl Stage {
    pub(super) fn new(json: bool) -> Self {
        Self {
            out: AutoStream::auto(io::stdout()),
            json,
            after_claim: false,
            story: Story::Weather,
            rows: Vec::new(),
        }
    }

    /// Prints an event as JSON, if that is wanted. `more` is an object with further members.
    fn printed_json(
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

    /// Separates what goes on after a claim.
    fn after_claim(&mut self, is_claim: bool) -> io::Result<()> {
        if std::mem::replace(&mut self.after_claim, is_claim) && !is_claim {
            writeln!(self.out)?;
        }
        Ok(())
    }

    pub(super) fn fleet(&mut self, instances: &[Instance], balancer: &Balancer) -> io::Result<()> {
        let balancer = balancer.address;
        if self.json {
            let started = |instance: &Instance| {
                json!({
                    "name": instance.recipe.name,
                    "process": instance.process,
                    "address": instance.address,
                    "accounts": instance.recipe.accounts,
                })
            };
            let started: Vec<Value> = instances.iter().map(started).collect();
            let event = json!({"event": "fleet", "instances": started, "balancer": balancer});
            return writeln!(self.out, "{event}");
        }
        writeln!(
            self.out,
            "{BOLD}Three instances that share nothing but a key, behind a round-robin balancer{BOLD:#}\n"
        )?;
        for Instance {
            recipe,
            address,
            process,
            ..
        } in instances
        {
            let style = colour(recipe.name);
            let accounts = match recipe.accounts {
                1 => "",
                _ => "  newer: it has version 2 of the tool `accounts`",
            };
            let name = recipe.name;
            writeln!(
                self.out,
                "  {style}{name:<10}{style:#}{address}  process {process}{accounts}"
            )?;
        }
        writeln!(self.out, "  {:<10}{balancer}", "balancer")?;
        self.dim(
            "The ledger below is a file in which the tools write down what they do, so that it can be counted; no \
             instance reads it.",
        )
    }

    pub(super) fn story(&mut self, story: Story) -> io::Result<()> {
        self.story = story;
        let (number, (title, watch)) = (story.number(), story.text());
        let members = json!({"number": number, "title": title, "watch": watch});
        if self.printed_json("story", members, &())? {
            return Ok(());
        }
        self.after_claim = false;
        writeln!(self.out, "\n{BOLD}{number}. {title}{BOLD:#}")?;
        self.dim(watch)?;
        writeln!(self.out)
    }

    pub(super) fn note(&mut self, note: &str) -> io::Result<()> {
        if self.printed_json("note", json!({"note": note}), &())? {
            return Ok(());
        }
        self.after_claim(false)?;
        self.labelled("note", PLAIN, note)
    }

    pub(super) fn claim(&mut self, claim: &'static str, held: bool) -> io::Result<()> {
        let story = self.story;
        self.rows.push(Row { story, claim, held });
        if self.printed_json("claim", json!({"claim": claim, "held": held}), &())? {
            return Ok(());
        }
        self.after_claim(true)?;
        let (label, style) = verdict(held);
        self.labelled(label, style, claim)
    }

    /// A story could not be played to its end.
    pub(super) fn broke(&mut self, problem: &str, instances: &[Instance]) -> io::Result<()> {
        let log =
            |instance: &Instance| json!({"name": instance.recipe.name, "lines": instance.log()});
        let logs: Vec<Value> = instances.iter().map(log).collect();
        let members = json!({"problem": problem, "logs": logs});
        if !self.printed_json("broke", members, &())? {
            self.labelled("broke", NOT_HELD, problem)?;
            for instance in instances {
                let name = instance.recipe.name;
                writeln!(self.out, "  the end of the log of {name}:")?;
                for line in instance.log() {
                    writeln!(self.out, "    {DIM}{line}{DIM:#}")?;
                }
            }
        }
        self.claim("The story is played to its end", false)
    }

    fn dim(&mut self, text: &str) -> io::Result<()> {
        for line in wrapped(text, WIDTH - 2) {
            writeln!(self.out, "  {DIM}{line}{DIM:#}")?;
        }
        Ok(())
    }

    /// A round of a call. `attempt` describes its token, where something is wrong with it.
    pub(super) fn round(
        &mut self,
        dialogue: &Dialogue,
        attempt: Option<&str>,
        round: &Round,
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
        if self.printed_json("round", members, round)? {
            return Ok(());
        }
        self.after_claim(false)?;
        if let Some(attempt) = attempt {
            return self.attempt(attempt, round);
        }
        let sent = match round.number {
            1 => called(dialogue),
            _ if round.answers.is_empty() => "the same call, and the token".into(),
            _ => format!("{}, and the token", answers(&round.answers).join("\n")),
        };
        self.sent(&format!("round {}", round.number), &round.exchange, &sent)?;
        let mut cost = Vec::new();
        match &round.outcome {
            Outcome::Incomplete { asks, token_bytes } => {
                let text = match asks.len() {
                    0 => "hands on the rest of the work, and asks for nothing".into(),
                    _ => asked(asks).join("\n"),
                };
                self.arrow("", "←", round.instance(), &text, ASKED)?;
                cost.push(format!("token of {token_bytes} bytes"));
            }
            Outcome::Complete { text, is_error } => {
                let style = if *is_error { NOT_HELD } else { HELD };
                self.arrow("", "←", round.instance(), text, style)?;
            }
            Outcome::Refused { code, message } => {
                let text = format!("{code} {message}");
                self.arrow("", "←", round.instance(), &text, NOT_HELD)?;
            }
        }
        if let Some(did) = round.did {
            cost.push(counted(did.replayed, "entry replayed", "entries replayed"));
            cost.push(counted(did.steps, "step run", "steps run"));
        }
        writeln!(self.out, "{:TEXT$}{DIM}{}{DIM:#}", "", cost.join(", "))
    }

    /// A request about a task, and the task's status. `is_call` is true for the call that becomes the task.
    pub(super) fn task(&mut self, task: &Dialogue, look: &Look, is_call: bool) -> io::Result<()> {
        let members = json!({"principal": task.caller.principal});
        if self.printed_json("task", members, look)? {
            return Ok(());
        }
        self.after_claim(false)?;
        let sent = match is_call {
            true => called(task),
            false if look.answers.is_empty() => format!("{}: how does it stand?", look.request),
            false => format!("{}: {}", look.request, answers(&look.answers).join("\n")),
        };
        self.sent("task", &look.exchange, &sent)?;
        let status = look.status.as_deref().unwrap_or("taken");
        let (mut got, style) = match &look.text {
            Some(text) => (vec![format!("{status}: {text}")], HELD),
            None => (vec![status.to_owned()], ASKED),
        };
        got.extend(asked(&look.asks));
        self.arrow("", "←", look.instance(), &got.join("\n"), style)?;
        match &look.message {
            Some(message) => writeln!(self.out, "{:TEXT$}{DIM}{message}{DIM:#}", ""),
            None => Ok(()),
        }
    }

    /// The use of a token and its outcome, on one line.
    fn attempt(&mut self, attempt: &str, round: &Round) -> io::Result<()> {
        let (text, style) = match &round.outcome {
            Outcome::Refused { code, .. } => (format!("refused, {code}"), ASKED),
            Outcome::Complete { .. } => ("accepted".into(), HELD),
            Outcome::Incomplete { .. } => ("went on".into(), NOT_HELD),
        };
        let who = colour(round.instance());
        writeln!(
            self.out,
            "  {:<10}→ {who}{:<7}{who:#}{attempt:<50} ← {style}{text}{style:#}",
            "token",
            round.instance()
        )
    }

    fn sent(&mut self, label: &str, exchange: &Exchange, text: &str) -> io::Result<()> {
        let passed_over = exchange.passed_over.iter();
        let mut lines: Vec<String> = passed_over
            .map(|name| format!("({name} does not answer and is passed over)"))
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

    /// Text from the cursor on, with its further lines indented.
    fn hanging(&mut self, text: &str, indent: usize, style: Style) -> io::Result<()> {
        for (at, line) in wrapped(text, WIDTH - indent).iter().enumerate() {
            let indent = if at == 0 { 0 } else { indent };
            writeln!(self.out, "{:indent$}{style}{line}{style:#}", "")?;
        }
        Ok(())
    }

    /// Prints the final table. True if every claim held.
    pub(super) fn table(&mut self, seconds: f64) -> io::Result<bool> {
        let rows = &self.rows;
        let failed = rows.iter().filter(|row| !row.held).count();
        let held = !rows.is_empty() && failed == 0;
        if self.json {
            let event = json!({"event": "table", "held": held, "seconds": seconds, "rows": rows});
            writeln!(self.out, "{event}")?;
            return Ok(held);
        }
        let widest = |text: fn(&Row) -> &str| {
            let widths = rows.iter().map(|row| text(row).chars().count());
            widths.max().unwrap_or_default()
        };
        let (stories, claims) = (widest(|row| row.story.title()), widest(|row| row.claim));
        writeln!(self.out, "\n{BOLD}What held{BOLD:#}\n")?;
        let mut last = None;
        for row in rows {
            let is_new = last.replace(row.story) != Some(row.story);
            let title = if is_new { row.story.title() } else { "" };
            let ((word, style), claim) = (verdict(row.held), row.claim);
            writeln!(
                self.out,
                "  {title:<stories$}  {claim:<claims$}  {style}{word}{style:#}"
            )?;
        }
        let count = rows.len();
        let (summary, style) = match failed {
            0 => (format!("Everything held: {count} claims."), HELD),
            _ => (
                format!("{failed} of {count} claims did NOT hold."),
                NOT_HELD,
            ),
        };
        writeln!(
            self.out,
            "\n  {style}{summary}{style:#} It took {seconds:.1} seconds."
        )?;
        Ok(held)
    }
}

fn verdict(held: bool) -> (&'static str, Style) {
    match held {
        true => ("held", HELD),
        false => ("NOT HELD", NOT_HELD),
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
                format!("asks {key}, of a model: {}", question.unwrap_or_default())
            }
            "roots/list" => format!("asks {key}: which roots does the project have?"),
            other => format!("asks {key} by {other}"),
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

fn called(dialogue: &Dialogue) -> String {
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
