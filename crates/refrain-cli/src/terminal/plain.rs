//! A line-based console, for terminals that cannot move their cursor.

use super::console::{
    Console, InputPrompt, InvalidInput, POLL, PromptError, PromptSource, Validate, Withdrawal,
    check_boxes, flush_input,
};
use super::display_text::{StyledLine, one_line};
use parking_lot::Mutex;
use std::io::{self, BufRead, Write, stderr, stdin};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

const COLUMNS: usize = 80;

const DECLINE: &str = ":decline";
const CANCEL: &str = ":cancel";
/// No text, or no choices.
const NOTHING: &str = ":nothing";

pub(super) struct PlainConsole {
    withdrawn: Withdrawal,
}

impl PlainConsole {
    pub(super) fn open(withdrawn: Withdrawal) -> Result<Self, PromptError> {
        flush_input()?;
        let lines = lines().lock();
        while let Ok(line) = lines.try_recv() {
            line?;
        }
        Ok(Self { withdrawn })
    }

    fn ask<T>(
        &mut self,
        prompt: &InputPrompt,
        choices: &[String],
        how: &str,
        read: impl Fn(&str) -> Result<T, InvalidInput>,
    ) -> Result<T, PromptError> {
        let mut label = format!("? {}", prompt.label);
        if !prompt.hint.is_empty() {
            label = format!("{label} ({})", prompt.hint);
        }
        let leaving = match &prompt.source {
            PromptSource::Server(address) => {
                label = format!("{label}\n  asked by {address}");
                format!(", or {DECLINE}, {CANCEL}")
            }
            PromptSource::Arguments(_) => format!(", or {CANCEL} to go back to the menu"),
            PromptSource::Menu => String::new(),
        };
        print(&label)?;
        for (i, choice) in choices.iter().enumerate() {
            print(&format!("  {}. {choice}", i + 1))?;
        }
        loop {
            print(&format!("  {how}{leaving}"))?;
            write!(stderr(), "> ")?;
            stderr().flush()?;
            let answer = self.line()?;
            match (answer.as_str(), &prompt.source) {
                (DECLINE, PromptSource::Server(_)) => return Err(PromptError::Declined),
                (CANCEL, PromptSource::Server(_) | PromptSource::Arguments(_)) => {
                    return Err(PromptError::Cancelled);
                }
                (answer, _) => match read(answer) {
                    Ok(answer) => return Ok(answer),
                    Err(why) => print(&format!("  ! {why}"))?,
                },
            }
        }
    }

    fn line(&self) -> Result<String, PromptError> {
        let lines = lines().lock();
        loop {
            self.withdrawn.check()?;
            match lines.recv_timeout(POLL) {
                Ok(line) => return Ok(line?),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(PromptError::Interrupted),
            }
        }
    }
}

impl Console for PlainConsole {
    fn columns(&self) -> usize {
        COLUMNS
    }

    fn say(&mut self, line: &StyledLine) -> io::Result<()> {
        print(&line.paint(false))
    }

    fn choose(
        &mut self,
        prompt: &InputPrompt,
        choices: &[String],
        start: Option<usize>,
    ) -> Result<usize, PromptError> {
        let how = match start {
            Some(start) => format!("a number; empty for {}", start + 1),
            None => "a number".to_owned(),
        };
        self.ask(prompt, choices, &how, |answer| match (answer, start) {
            ("", Some(start)) => Ok(start),
            (answer, _) => index(answer, choices.len()),
        })
    }

    fn choose_many(
        &mut self,
        prompt: &InputPrompt,
        choices: &[String],
        start: &[bool],
        validate: Validate<'_, [bool]>,
    ) -> Result<Vec<bool>, PromptError> {
        let how =
            format!("numbers separated by spaces; empty to keep the ticks, {NOTHING} for none");
        self.ask(prompt, &check_boxes(choices, start), &how, |answer| {
            let mut ticked = vec![false; choices.len()];
            match answer {
                "" => ticked.copy_from_slice(start),
                NOTHING => {}
                answer => {
                    for word in answer.split_whitespace() {
                        ticked[index(word, choices.len())?] = true;
                    }
                }
            }
            validate(&ticked).map(|()| ticked)
        })
    }

    fn read_text(
        &mut self,
        prompt: &InputPrompt,
        start: &str,
        validate: Validate<'_, str>,
    ) -> Result<String, PromptError> {
        let how = match start {
            "" => "one line".to_owned(),
            start => format!(
                "one line; empty for {:?}, {NOTHING} for no text",
                one_line(start)
            ),
        };
        self.ask(prompt, &[], &how, |answer| {
            let text = match answer {
                "" => start,
                NOTHING => "",
                answer => answer,
            };
            validate(text).map(|()| text.to_owned())
        })
    }
}

fn index(answer: &str, count: usize) -> Result<usize, InvalidInput> {
    match answer.parse::<usize>() {
        Ok(n) if (1..=count).contains(&n) => Ok(n - 1),
        _ => Err(InvalidInput::NotAChoice(count)),
    }
}

fn print(text: &str) -> io::Result<()> {
    writeln!(stderr(), "{text}")
}

/// The lines of standard input. A thread reads them, because reading cannot be interrupted.
fn lines() -> &'static Mutex<Receiver<io::Result<String>>> {
    static LINES: OnceLock<Mutex<Receiver<io::Result<String>>>> = OnceLock::new();
    LINES.get_or_init(|| {
        let (sender, receiver) = channel();
        thread::spawn(move || {
            for line in stdin().lock().lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Mutex::new(receiver)
    })
}
