//! Tells events to whoever watches: as coloured text, plain text, or JSON lines.
//!
//! Text has a column of labels and a column of what they are about; nothing is wider than [`WIDTH`].

use super::client::{Call, Outcome, Round};
use super::events::{Event, Row, Started};
use super::task::Look;
use crate::Failure;
use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use serde_json::{Map, Value};
use std::io::{self, Stdout, Write};
use std::net::SocketAddr;

/// Columns of text.
const WIDTH: usize = 94;
/// Columns before an arrow: the label.
const LABEL: usize = 12;
/// Columns before the text of a round: label, arrow and instance.
const TEXT: usize = LABEL + 9;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const HELD: Style = AnsiColor::Green.on_default().bold();
const NOT_HELD: Style = AnsiColor::Red.on_default().bold();
const ASKED: Style = AnsiColor::Yellow.on_default();
const PLAIN: Style = Style::new();

/// Where events are told.
pub(super) struct Stage {
    out: AutoStream<Stdout>,
    json: bool,
    after_claim: bool,
}

impl Stage {
    /// Tells to standard output. Colours are only for terminals.
    pub(super) fn new(json: bool) -> Self {
        Self {
            out: AutoStream::auto(io::stdout()),
            json,
            after_claim: false,
        }
    }

    pub(super) fn tell(&mut self, event: &Event<'_>) -> Result<(), Failure> {
        self.print(event)
            .map_err(|error| format!("standard output cannot be written: {error}").into())
    }

    fn print(&mut self, event: &Event<'_>) -> io::Result<()> {
        if self.json {
            let line = serde_json::to_string(event)?;
            return writeln!(self.out, "{line}");
        }
        let goes_on = matches!(
            event,
            Event::Round { .. } | Event::Task { .. } | Event::Note { .. }
        );
        if self.after_claim && goes_on {
            writeln!(self.out)?;
        }
        self.after_claim = matches!(event, Event::Claim { .. });
        match event {
            Event::Fleet {
                instances,
                balancer,
            } => self.fleet(instances, *balancer),
            Event::Story {
                number,
                title,
                watch,
                ..
            } => {
                writeln!(self.out, "\n{BOLD}{number}. {title}{BOLD:#}")?;
                for line in wrapped(watch, WIDTH - 2) {
                    writeln!(self.out, "  {DIM}{line}{DIM:#}")?;
                }
                writeln!(self.out)
            }
            Event::Round {
                principal,
                tool,
                arguments,
                attempt: None,
                round,
                ..
            } => {
                let call = format!("{principal} calls {tool} {arguments}");
                self.round(&call, round)
            }
            Event::Round {
                attempt: Some(attempt),
                round,
                ..
            } => self.attempt(attempt, round),
            Event::Task {
                principal,
                call,
                look,
                ..
            } => self.task(principal, *call, look),
            Event::Note { note, .. } => self.labelled("note", PLAIN, note),
            Event::Claim { row } => self.labelled(verdict(row).0, verdict(row).1, &row.claim),
            Event::Broke { problem, logs, .. } => {
                self.labelled("broke", NOT_HELD, problem)?;
                for log in logs {
                    writeln!(self.out, "  the end of the log of {}:", log.name)?;
                    for line in &log.lines {
                        writeln!(self.out, "    {DIM}{line}{DIM:#}")?;
                    }
                }
                Ok(())
            }
            Event::Table { seconds, rows, .. } => self.table(rows, *seconds),
        }
    }

    fn fleet(&mut self, instances: &[Started], balancer: SocketAddr) -> io::Result<()> {
        let out = &mut self.out;
        writeln!(
            out,
            "{BOLD}Three instances that share nothing but a key, behind a round-robin balancer{BOLD:#}\n"
        )?;
        for instance in instances {
            let style = colour(instance.name);
            let accounts = match instance.accounts {
                1 => "",
                _ => "  newer: it has version 2 of the tool `accounts`",
            };
            writeln!(
                out,
                "  {style}{:<10}{style:#}{}  process {}{accounts}",
                instance.name, instance.address, instance.process
            )?;
        }
        writeln!(out, "  {:<10}{balancer}", "balancer")?;
        let ledger = "The ledger below is a file in which the tools write down what they do, so that it can be \
                      counted; no instance reads it.";
        for line in wrapped(ledger, WIDTH - 2) {
            writeln!(out, "  {DIM}{line}{DIM:#}")?;
        }
        Ok(())
    }

    /// What was sent to whom, what came back, and what it took.
    fn round(&mut self, call: &str, round: &Round) -> io::Result<()> {
        let mut sent: Vec<String> = round
            .exchange
            .passed_over
            .iter()
            .map(|name| format!("({name} does not answer and is passed over)"))
            .collect();
        match round.number {
            1 => sent.push(call.to_owned()),
            _ if round.answers.is_empty() => sent.push("the same call, and the token".into()),
            _ => sent.push(format!(
                "{}, and the token",
                answers(&round.answers).join("\n")
            )),
        }
        let label = format!("round {}", round.number);
        self.arrow(&label, "→", round.instance(), &sent.join("\n"), PLAIN)?;
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

    /// What was asked about a task, and how it stands.
    fn task(&mut self, principal: &str, call: Option<&Call>, look: &Look) -> io::Result<()> {
        let mut sent: Vec<String> = look
            .exchange
            .passed_over
            .iter()
            .map(|name| format!("({name} does not answer and is passed over)"))
            .collect();
        sent.push(match call {
            Some(Call { tool, arguments }) => format!("{principal} calls {tool} {arguments}"),
            None if look.answers.is_empty() => format!("{}: how does it stand?", look.request),
            None => format!("{}: {}", look.request, answers(&look.answers).join("\n")),
        });
        self.arrow("task", "→", look.instance(), &sent.join("\n"), PLAIN)?;
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

    /// A token that should be refused, and what came of it, in one line.
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

    /// The text, the first line of it where the cursor is and the others below.
    fn hanging(&mut self, text: &str, indent: usize, style: Style) -> io::Result<()> {
        for (at, line) in wrapped(text, WIDTH - indent).iter().enumerate() {
            let indent = if at == 0 { 0 } else { indent };
            writeln!(self.out, "{:indent$}{style}{line}{style:#}", "")?;
        }
        Ok(())
    }

    fn table(&mut self, rows: &[Row], seconds: f64) -> io::Result<()> {
        let widest = |text: fn(&Row) -> &str| {
            let widths = rows.iter().map(|row| text(row).chars().count());
            widths.max().unwrap_or_default()
        };
        let (stories, claims) = (widest(|row| row.title), widest(|row| &row.claim));
        writeln!(self.out, "\n{BOLD}What held{BOLD:#}\n")?;
        let mut last = "";
        for row in rows {
            let title = if row.title == last { "" } else { row.title };
            last = row.title;
            let (word, style) = verdict(row);
            writeln!(
                self.out,
                "  {title:<stories$}  {:<claims$}  {style}{word}{style:#}",
                row.claim
            )?;
        }
        let failed = rows.iter().filter(|row| !row.held).count();
        let (summary, style) = match failed {
            0 => (format!("Everything held: {} claims.", rows.len()), HELD),
            _ => (
                format!("{failed} of {} claims did NOT hold.", rows.len()),
                NOT_HELD,
            ),
        };
        writeln!(
            self.out,
            "\n  {style}{summary}{style:#} It took {seconds:.1} seconds."
        )
    }
}

fn verdict(row: &Row) -> (&'static str, Style) {
    if row.held {
        ("held", HELD)
    } else {
        ("NOT HELD", NOT_HELD)
    }
}

/// Each instance has its colour, so that one sees the rounds wander.
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

/// What is asked for, a line for each ask.
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

/// What is answered, a line for each answer.
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

fn counted(count: u32, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Breaks lines between words, so that none is wider than `width` unless a word is.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for given in text.lines() {
        let mut line = String::new();
        for word in given.split(' ') {
            let needed = line.chars().count() + 1 + word.chars().count();
            if !line.is_empty() && needed > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn lines_break_between_words_and_where_they_did() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("one\ntwo three", 20), ["one", "two three"]);
        assert_eq!(wrapped("incomprehensible", 4), ["incomprehensible"]);
    }
}
