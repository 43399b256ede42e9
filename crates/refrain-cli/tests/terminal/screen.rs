//! A real terminal: tmux, with a separate server for each test.

use std::process::{Command, Output};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// More than any test needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the screen is checked.
const POLL: Duration = Duration::from_millis(30);

/// Environment variables that would change the output.
const VARIABLES: [&str; 8] = [
    "CI",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "ENV",
    "NO_COLOR",
    "REFRAIN_TOKEN",
    "RUST_LOG",
    "TMUX",
];

/// Installs tmux if it is missing. Without it the tests fail.
fn require_tmux() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        if Command::new("tmux").arg("-V").output().is_err() {
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
            let tools = Command::new("scripts/tools").current_dir(root).status();
            assert!(tools.is_ok_and(|tools| tools.success()), "no tmux");
        }
    });
}

/// A terminal in which one program runs.
pub(crate) struct Screen {
    socket: String,
}

impl Screen {
    /// Starts a shell command in a terminal of this size. When it ends, the terminal shows its exit code, and whether the
    /// terminal was restored.
    pub(crate) fn start(columns: u16, rows: u16, command: &str) -> Self {
        require_tmux();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let screen = Self {
            socket: format!("refrain-{}-{count}", std::process::id()),
        };
        let script = format!(
            "before=$(stty -g); {command}; code=$?; \
             if [ \"$before\" = \"$(stty -g)\" ]; then echo \"[ended with $code, as before]\"; \
             else echo \"[ended with $code, CHANGED]\"; fi; exec cat"
        );
        let (columns, rows) = (columns.to_string(), rows.to_string());
        screen.tmux(&["new-session", "-d", "-x", &columns, "-y", &rows, &script]);
        screen
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        // Without user settings, and with UTF-8.
        command.args(["-L", &self.socket, "-f", "/dev/null", "-u"]);
        for name in VARIABLES {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C.UTF-8").env("SHELL", "/bin/sh");
        command
    }

    fn tmux(&self, args: &[&str]) -> String {
        let Output {
            status,
            stdout,
            stderr,
        } = self
            .command()
            .args(args)
            .output()
            .expect("tmux can be started");
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "tmux {args:?}: {stderr}");
        String::from_utf8_lossy(&stdout).into_owned()
    }

    /// The visible text.
    pub(crate) fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// The visible text and the scrollback.
    pub(crate) fn history(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-S", "-"])
    }

    /// The visible text with escape sequences.
    pub(crate) fn coloured(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"])
    }

    /// The value of a tmux format variable.
    pub(crate) fn fact(&self, name: &str) -> String {
        let fact = self.tmux(&["display-message", "-p", &format!("#{{{name}}}")]);
        fact.trim().to_owned()
    }

    /// Waits until this text is visible, and returns the screen.
    pub(crate) fn sees(&self, what: &str) -> String {
        self.waits(&format!("{what:?} on the screen"), |text| {
            text.contains(what)
        })
    }

    /// Waits until the screen fulfils a condition, and returns it.
    pub(crate) fn waits(&self, what: &str, is_reached: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if is_reached(&text) {
                return text;
            }
            assert!(Instant::now() < end, "no {what}, but:\n{text}");
            thread::sleep(POLL);
        }
    }

    /// Presses keys, by their tmux names.
    pub(crate) fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a text.
    pub(crate) fn types(&self, text: &str) {
        self.tmux(&["send-keys", "-l", "--", text]);
    }

    /// Pastes a text.
    pub(crate) fn pastes(&self, text: &str) {
        self.tmux(&["set-buffer", "--", text]);
        self.tmux(&["paste-buffer", "-p", "-r"]);
    }

    /// Changes the size.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        self.tmux(&["resize-window", "-x", &columns, "-y", &rows]);
    }

    /// Waits until the program has ended with this code and restored the terminal. Returns all output.
    pub(crate) fn ends(&self, code: u8) -> String {
        self.waits("end of the program", |text| text.contains("[ended with"));
        let history = self.history();
        let end = format!("[ended with {code}, as before]");
        assert!(history.contains(&end), "no {end:?}, but:\n{history}");
        assert_eq!(self.fact("cursor_flag"), "1", "the cursor is hidden");
        history
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The test may have failed before the server was started.
        let _ = self.command().arg("kill-server").output();
    }
}
