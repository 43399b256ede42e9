//! The programs of Postgres, and a server that they run.

use super::ClusterError;
use std::fs::{File, Permissions};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long starting or stopping may take on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a server for as long as somebody holds the other end of its input, however they end.
const WATCH: &str = r#"
exec 3<&0
"$@" 3<&- </dev/null &
server=$!
(read -r _ <&3; kill -INT "$server") &
watch=$!
wait "$server"
code=$?
kill "$watch" 2>/dev/null
exit "$code"
"#;

/// A server with its files.
pub(super) struct Server {
    pub(super) port: u16,
    pub(super) password: String,
    bin: PathBuf,
    user: User,
    running: Option<(Child, ChildStdin)>,
    dir: TempDir,
}

impl Server {
    pub(super) fn start(password: &str) -> Result<Self, ClusterError> {
        let bin = find_programs()?;
        let user = User::to_run_as()?;
        let mut dir = tempfile::Builder::new();
        let dir = dir.prefix("refrain-postgres-");
        let dir = dir.permissions(Permissions::from_mode(0o700)).tempdir();
        let dir = dir.map_err(failed("create a directory"))?;
        user.give(dir.path())?;
        let secret = dir.path().join("password");
        std::fs::write(&secret, password).map_err(failed("write the password file"))?;
        user.give(&secret)?;
        let mut server = Self {
            port: 0,
            password: password.to_owned(),
            bin,
            user,
            running: None,
            dir,
        };
        let mut initdb = server.command("initdb");
        initdb.arg("--pgdata").arg(server.data());
        // The password never leaves the machine, and to derive SCRAM's from it is slow in a client that is not optimised.
        initdb.args(["--username", User::NAME, "--auth", "password"]);
        initdb.arg("--pwfile").arg(&secret);
        initdb.args(["--encoding", "UTF8", "--no-locale", "--no-sync"]);
        let made = initdb.output().map_err(failed("run initdb"))?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr);
            return Err(ClusterError::InitDb {
                stderr: said.into_owned(),
            });
        }
        server.run()?;
        Ok(server)
    }

    /// Starts it, on the port that it had. The first time, on one that is free.
    pub(super) fn run(&mut self) -> Result<(), ClusterError> {
        if self.running.is_some() {
            return Ok(());
        }
        if self.port != 0 {
            return self.run_on(self.port);
        }
        let mut result = Ok(());
        // Another process may take the port between finding it free and using it.
        for _ in 0..5 {
            let port = free_port()?;
            result = self.run_on(port);
            if result.is_ok() {
                self.port = port;
                break;
            }
        }
        result
    }

    fn run_on(&mut self, port: u16) -> Result<(), ClusterError> {
        let log = File::create(self.dir.path().join("log"));
        let log = log.map_err(failed("create the log"))?;
        let mut watch = Command::new("sh");
        self.user.run(&mut watch, self.dir.path());
        watch.args(["-c", WATCH, "sh"]);
        watch
            .arg(self.bin.join("postgres"))
            .arg("-D")
            .arg(self.data());
        watch.args(["-c", "listen_addresses=127.0.0.1"]);
        watch.args(["-c", "unix_socket_directories="]);
        watch.args(["-c", "max_connections=300"]);
        // Stopping waits for whoever has just connected and says nothing; that is a minute otherwise.
        watch.args(["-c", "authentication_timeout=15"]);
        watch.arg("-c").arg(format!("port={port}"));
        watch
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log);
        let mut child = watch.spawn().map_err(failed("start Postgres"))?;
        let held = child.stdin.take();
        let held =
            held.ok_or_else(|| failed("open the input of Postgres")(ErrorKind::BrokenPipe.into()))?;
        let begun = Instant::now();
        loop {
            if self.is_ready(port)? {
                self.running = Some((child, held));
                return Ok(());
            }
            let ended = child.try_wait().map_err(failed("wait for Postgres"))?;
            if ended.is_some() || begun.elapsed() > PATIENCE {
                drop(held);
                let _ = child.wait();
                let log = std::fs::read_to_string(self.dir.path().join("log"));
                let log = log.unwrap_or_default();
                return Err(ClusterError::NotStarted { log });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn is_ready(&self, port: u16) -> Result<bool, ClusterError> {
        let mut ask = self.command("pg_isready");
        ask.args(["--quiet", "--host", "127.0.0.1", "--dbname", "postgres"]);
        ask.arg("--port").arg(port.to_string());
        let said = ask.status().map_err(failed("run pg_isready"))?;
        Ok(said.success())
    }

    /// Ends it: what runs is cut off, what was confirmed is kept.
    pub(super) fn stop(&mut self) -> Result<(), ClusterError> {
        let Some((mut child, held)) = self.running.take() else {
            return Ok(());
        };
        drop(held);
        let ended = child.wait();
        ended.map_err(failed("stop Postgres"))?;
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        self.user.run(&mut command, self.dir.path());
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// Who runs the server. Postgres refuses to be run by root.
pub(super) struct User(Option<(u32, u32)>);

impl User {
    /// The superuser inside of it.
    pub(super) const NAME: &str = "refrain";

    fn to_run_as() -> Result<Self, ClusterError> {
        let me = std::fs::metadata("/proc/self").map_or(1, |me| me.uid());
        if me != 0 {
            return Ok(Self(None));
        }
        let users = std::fs::read_to_string("/etc/passwd");
        let users = users.map_err(failed("read /etc/passwd"))?;
        let find = |wanted: &str| {
            let user = users
                .lines()
                .map(|line| line.split(':').collect::<Vec<_>>());
            let mut user = user.filter(|user| user.len() > 3 && user[0] == wanted);
            let user = user.next()?;
            Some((user[2].parse().ok()?, user[3].parse().ok()?))
        };
        let user = find("postgres").or_else(|| find("nobody"));
        Ok(Self(Some(user.ok_or(ClusterError::NoUser)?)))
    }

    fn give(&self, path: &Path) -> Result<(), ClusterError> {
        match self.0 {
            Some((user, group)) => {
                chown(path, Some(user), Some(group)).map_err(failed("change the owner of a file"))
            }
            None => Ok(()),
        }
    }

    fn run(&self, command: &mut Command, dir: &Path) {
        if let Some((user, group)) = self.0 {
            command.uid(user).gid(group);
        }
        command.current_dir(dir);
    }
}

/// The directory of the programs.
fn find_programs() -> Result<PathBuf, ClusterError> {
    let mut places = Vec::new();
    if let Ok(said) = Command::new("pg_config").arg("--bindir").output() {
        let said = String::from_utf8_lossy(&said.stdout);
        places.push(PathBuf::from(said.trim()));
    }
    // Where Debian has them, the latest first.
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort();
    places.extend(versions.into_iter().rev().map(|(_, bin)| bin));
    let path = std::env::var_os("PATH").unwrap_or_default();
    places.extend(std::env::split_paths(&path));
    let complete = |bin: &PathBuf| {
        let programs = ["initdb", "postgres", "pg_isready"];
        programs.iter().all(|program| bin.join(program).is_file())
    };
    let found = places.into_iter().find(complete);
    found.ok_or(ClusterError::NotInstalled)
}

fn free_port() -> Result<u16, ClusterError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let port = listener.and_then(|listener| listener.local_addr());
    let port = port.map_err(failed("find a free port"))?;
    Ok(port.port())
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> ClusterError {
    move |source| ClusterError::Io { action, source }
}
