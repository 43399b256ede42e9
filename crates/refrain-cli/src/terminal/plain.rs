//! A console of lines, for terminals that cannot move their cursor.

use super::console::{
    Check, Console, Invalid, Left, POLL, Question, Withdrawn, boxes, forget_typed,
};
use super::text::{Line, one_line};
use parking_lot::Mutex;
use std::io::{self, BufRead, Write, stderr, stdin};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

const COLUMNS: usize = 80;

const DECLINE: &str = ":decline";
const CANCEL: &str = ":cancel";
/// An empty text or no choices, where there is a preset.
const NOTHING: &str = ":nothing";

pub(super) struct Plain {
    withdrawn: Withdrawn,
}

impl Plain {
    pub(super) fn open(withdrawn: Withdrawn) -> Result<Self, Left> {
        forget_typed()?;
        let lines = lines().lock();
        while let Ok(line) = lines.try_recv() {
            line?;
        }
        Ok(Self { withdrawn })
    }

    fn ask<T>(
        &mut self,
        question: &Question,
        choices: &[String],
        how: &str,
        read: impl Fn(&str) -> Result<T, Invalid>,
    ) -> Result<T, Left> {
        let mut prompt = format!("? {}", question.label);
        if !question.hint.is_empty() {
            prompt = format!("{prompt} ({})", question.hint);
        }
        print(&format!("{prompt}\n  asked by {}", question.asker))?;
        for (i, choice) in choices.iter().enumerate() {
            print(&format!("  {}. {choice}", i + 1))?;
        }
        loop {
            print(&format!("  {how}, or {DECLINE}, {CANCEL}"))?;
            write!(stderr(), "> ")?;
            stderr().flush()?;
            let answer = self.line()?;
            match answer.as_str() {
                DECLINE => return Err(Left::Declined),
                CANCEL => return Err(Left::Cancelled),
                answer => match read(answer) {
                    Ok(answer) => return Ok(answer),
                    Err(why) => print(&format!("  ! {why}"))?,
                },
            }
        }
    }

    fn line(&self) -> Result<String, Left> {
        let lines = lines().lock();
        loop {
            self.withdrawn.check()?;
            match lines.recv_timeout(POLL) {
                Ok(line) => return Ok(line?),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Left::Interrupted),
            }
        }
    }
}

impl Console for Plain {
    fn columns(&self) -> usize {
        COLUMNS
    }

    fn say(&mut self, line: &Line) -> io::Result<()> {
        print(&line.paint(false))
    }

    fn choose(
        &mut self,
        question: &Question,
        choices: &[String],
        start: Option<usize>,
    ) -> Result<usize, Left> {
        let how = match start {
            Some(start) => format!("a number; nothing is {}", start + 1),
            None => "a number".to_owned(),
        };
        self.ask(question, choices, &how, |answer| match (answer, start) {
            ("", Some(start)) => Ok(start),
            (answer, _) => place(answer, choices.len()),
        })
    }

    fn tick(
        &mut self,
        question: &Question,
        choices: &[String],
        start: &[bool],
        check: Check<'_, [bool]>,
    ) -> Result<Vec<bool>, Left> {
        let how = format!("numbers with spaces between; nothing is as shown, {NOTHING} is none");
        self.ask(question, &boxes(choices, start), &how, |answer| {
            let mut ticked = vec![false; choices.len()];
            match answer {
                "" => ticked.copy_from_slice(start),
                NOTHING => {}
                answer => {
                    for word in answer.split_whitespace() {
                        ticked[place(word, choices.len())?] = true;
                    }
                }
            }
            check(&ticked).map(|()| ticked)
        })
    }

    fn write(
        &mut self,
        question: &Question,
        start: &str,
        check: Check<'_, str>,
    ) -> Result<String, Left> {
        let how = match start {
            "" => "one line".to_owned(),
            start => format!(
                "one line; nothing is {:?}, {NOTHING} is an empty one",
                one_line(start)
            ),
        };
        self.ask(question, &[], &how, |answer| {
            let text = match answer {
                "" => start,
                NOTHING => "",
                answer => answer,
            };
            check(text).map(|()| text.to_owned())
        })
    }
}

fn place(answer: &str, count: usize) -> Result<usize, Invalid> {
    match answer.parse::<usize>() {
        Ok(n) if (1..=count).contains(&n) => Ok(n - 1),
        _ => Err(Invalid::NotAChoice(count)),
    }
}

fn print(text: &str) -> io::Result<()> {
    writeln!(stderr(), "{text}")
}

/// The lines of standard input, read by a thread because reading cannot be interrupted.
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
