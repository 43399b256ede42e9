//! Prints events as text or as JSON lines.
//!
//! Text has a column of labels and a column of contents; no line is wider than [`WIDTH`].

use super::balancer::Exchange;
use super::client::{Outcome, Round};
use super::events::{Event, Row, Started};
use super::task::Look;
use crate::Failure;
use crate::terminal::text::wrapped;
use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use refrain_client::Call;
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

/// Prints events to standard output.
pub(super) struct Stage {
    out: AutoStream<Stdout>,
    json: bool,
    after_claim: bool,
}

impl Stage {
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
                self.dim(watch)?;
                writeln!(self.out)
            }
            Event::Round {
                principal,
                tool,
                arguments,
                attempt,
                round,
                ..
            } => match attempt {
                Some(attempt) => self.attempt(attempt, round),
                None => self.round(&called(principal, tool, arguments), round),
            },
            Event::Task {
                principal,
                call,
                look,
                ..
            } => self.task(principal, *call, look),
            Event::Note { note, .. } => self.labelled("note", PLAIN, note),
            Event::Claim { row } => self.labelled(verdict(row).0, verdict(row).1, row.claim),
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
        writeln!(
            self.out,
            "{BOLD}Three instances that share nothing but a key, behind a round-robin balancer{BOLD:#}\n"
        )?;
        for instance in instances {
            let style = colour(instance.name);
            let accounts = match instance.accounts {
                1 => "",
                _ => "  newer: it has version 2 of the tool `accounts`",
            };
            writeln!(
                self.out,
                "  {style}{:<10}{style:#}{}  process {}{accounts}",
                instance.name, instance.address, instance.process
            )?;
        }
        writeln!(self.out, "  {:<10}{balancer}", "balancer")?;
        self.dim(
            "The ledger below is a file in which the tools write down what they do, so that it can be counted; no \
             instance reads it.",
        )
    }

    fn dim(&mut self, text: &str) -> io::Result<()> {
        for line in wrapped(text, WIDTH - 2) {
            writeln!(self.out, "  {DIM}{line}{DIM:#}")?;
        }
        Ok(())
    }

    /// The request of a round, its reply, and its cost.
    fn round(&mut self, call: &str, round: &Round) -> io::Result<()> {
        let sent = match round.number {
            1 => call.to_owned(),
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

    /// A request about a task, and the task's status.
    fn task(&mut self, principal: &str, call: Option<&Call>, look: &Look) -> io::Result<()> {
        let sent = match call {
            Some(call) => called(principal, call.target(), call.arguments()),
            None if look.answers.is_empty() => format!("{}: how does it stand?", look.request),
            None => format!("{}: {}", look.request, answers(&look.answers).join("\n")),
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

    fn table(&mut self, rows: &[Row], seconds: f64) -> io::Result<()> {
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

fn called(principal: &str, tool: &str, arguments: &Map<String, Value>) -> String {
    format!(
        "{principal} calls {tool} {}",
        Value::from(arguments.clone())
    )
}

fn counted(count: u32, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
