//! A Postgres server in a temporary directory.

use super::TestPostgresError;
use std::fs::{File, Permissions};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

type Result<T> = std::result::Result<T, TestPostgresError>;

/// The superuser of the database.
pub(super) const SUPERUSER: &str = "refrain";

/// The time limit for starting on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A shell script that runs a server until the script's standard input is closed. That happens at
/// the latest when the test process ends.
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

pub(super) struct PostgresServer {
    pub(super) port: u16,
    bin: PathBuf,
    /// The user and group that run the server, if this process is root.
    user: Option<(u32, u32)>,
    running: Option<(Child, ChildStdin)>,
    dir: TempDir,
}

impl PostgresServer {
    pub(super) fn start(password: &str) -> Result<Self> {
        let mut server = Self::new(password)?;
        let mut initdb = server.command(server.bin.join("initdb"));
        // Not SCRAM: it is slow in an unoptimised client, and the password stays on this machine.
        initdb.args(["--pgdata", "data", "--username", SUPERUSER]);
        initdb.args(["--auth", "password", "--pwfile", "password"]);
        initdb.args(["--encoding", "UTF8", "--no-locale", "--no-sync"]);
        run_program("initdb", initdb)?;
        server.run()?;
        Ok(server)
    }

    /// Starts a standby of a server on this port.
    pub(super) fn start_standby(password: &str, primary: u16) -> Result<Self> {
        let mut server = Self::new(password)?;
        let mut copy = server.command(server.bin.join("pg_basebackup"));
        copy.env("PGPASSWORD", password);
        copy.args(["--pgdata", "data", "--username", SUPERUSER, "--no-password"]);
        copy.args(["--host", "127.0.0.1", "--port", &primary.to_string()]);
        copy.args(["--write-recovery-conf", "--checkpoint", "fast", "--no-sync"]);
        run_program("pg_basebackup", copy)?;
        server.run()?;
        Ok(server)
    }

    /// Makes a standby accept writes.
    pub(super) fn promote(&self) -> Result<()> {
        let mut promote = self.command(self.bin.join("pg_ctl"));
        promote.args(["promote", "--pgdata", "data", "--wait", "--silent"]);
        run_program("pg_ctl", promote)
    }

    /// Kills the server with SIGKILL.
    pub(super) fn kill(&mut self) -> Result<()> {
        let Some((mut child, _input)) = self.running.take() else {
            return Ok(());
        };
        let pid = std::fs::read_to_string(self.dir.path().join("data/postmaster.pid"));
        let pid = pid.map_err(failed("read the process id of Postgres"))?;
        let mut kill = Command::new("kill");
        kill.args(["-KILL", pid.lines().next().unwrap_or_default()]);
        run_program("kill", kill)?;
        child.wait().map_err(failed("wait for Postgres"))?;
        Ok(())
    }

    /// A server without data.
    fn new(password: &str) -> Result<Self> {
        let bin = find_programs()?;
        let user = find_user()?;
        let dir = tempfile::Builder::new()
            .prefix("refrain-postgres-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir()
            .map_err(failed("create a directory"))?;
        let secret = dir.path().join("password");
        std::fs::write(&secret, password).map_err(failed("write the password file"))?;
        if let Some((user, group)) = user {
            for path in [dir.path(), &secret] {
                let owned = chown(path, Some(user), Some(group));
                owned.map_err(failed("change the owner of a file"))?;
            }
        }
        Ok(Self {
            port: 0,
            bin,
            user,
            running: None,
            dir,
        })
    }

    /// Starts the server on its port, which is a free one at the first start.
    pub(super) fn run(&mut self) -> Result<()> {
        if self.running.is_some() {
            return Ok(());
        }
        if self.port != 0 {
            return self.run_on(self.port);
        }
        let mut result = Ok(());
        // Another process may take the port before the server does.
        for _ in 0..5 {
            let port = free_port().map_err(failed("find a free port"))?;
            result = self.run_on(port);
            if result.is_ok() {
                self.port = port;
                break;
            }
        }
        result
    }

    fn run_on(&mut self, port: u16) -> Result<()> {
        let log = File::create(self.dir.path().join("log"));
        let log = log.map_err(failed("create the log"))?;
        let mut watch = self.command("sh".into());
        watch.args(["-c", WATCH, "sh"]);
        watch.arg(self.bin.join("postgres")).args(["-D", "data"]);
        for setting in [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=300",
            // Otherwise stopping waits up to a minute for unauthenticated connections.
            "authentication_timeout=15",
            &format!("port={port}"),
        ] {
            watch.args(["-c", setting]);
        }
        watch.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = watch
            .stderr(log)
            .spawn()
            .map_err(failed("start Postgres"))?;
        let input = child.stdin.take().ok_or(ErrorKind::BrokenPipe.into());
        let input = input.map_err(failed("open the input of Postgres"))?;
        let begun = Instant::now();
        while !self.is_ready(port)? {
            let ended = child.try_wait().map_err(failed("wait for Postgres"))?;
            if ended.is_some() || begun.elapsed() > START_TIMEOUT {
                drop(input);
                let _ = child.wait();
                let output = std::fs::read_to_string(self.dir.path().join("log"));
                let (program, output) = ("postgres", output.unwrap_or_default());
                return Err(TestPostgresError::Program { program, output });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.running = Some((child, input));
        Ok(())
    }

    fn is_ready(&self, port: u16) -> Result<bool> {
        let mut ready = self.command(self.bin.join("pg_isready"));
        ready.args(["--quiet", "--host", "127.0.0.1", "--dbname", "postgres"]);
        ready.args(["--port", &port.to_string()]);
        let status = ready.stdin(Stdio::null()).status();
        Ok(status.map_err(failed("run pg_isready"))?.success())
    }

    /// Stops the server. Connections are closed; confirmed writes are kept.
    pub(super) fn stop(&mut self) -> Result<()> {
        if let Some((mut child, input)) = self.running.take() {
            drop(input);
            child.wait().map_err(failed("stop Postgres"))?;
        }
        Ok(())
    }

    fn command(&self, program: PathBuf) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.path());
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// Runs a program to its end.
fn run_program(program: &'static str, mut command: Command) -> Result<()> {
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(failed("run a program of Postgres"))?;
    if done.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&done.stderr).into();
    Err(TestPostgresError::Program { program, output })
}

/// The user and group of the server, since Postgres does not run as root.
fn find_user() -> Result<Option<(u32, u32)>> {
    if std::fs::metadata("/proc/self").map_or(1, |me| me.uid()) != 0 {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd");
    let users = users.map_err(failed("read /etc/passwd"))?;
    let find = |wanted: &str| {
        let mut lines = users.lines();
        let user = lines.find(|line| line.split(':').next() == Some(wanted))?;
        let mut ids = user.split(':').skip(2).map(|id| id.parse::<u32>().ok());
        Some((ids.next()??, ids.next()??))
    };
    let user = find("postgres").or_else(|| find("nobody"));
    user.map(Some).ok_or(TestPostgresError::NoUser)
}

/// The directory of the programs: from `pg_config`, then Debian's with the latest version first, then `PATH`.
fn find_programs() -> Result<PathBuf> {
    let mut dirs = Vec::new();
    if let Ok(config) = Command::new("pg_config").arg("--bindir").output() {
        let bin = String::from_utf8_lossy(&config.stdout);
        dirs.push(PathBuf::from(bin.trim()));
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort();
    dirs.extend(versions.into_iter().rev().map(|(_, bin)| bin));
    let path = std::env::var_os("PATH").unwrap_or_default();
    dirs.extend(std::env::split_paths(&path));
    let complete = |bin: &PathBuf| {
        let programs = [
            "initdb",
            "postgres",
            "pg_basebackup",
            "pg_ctl",
            "pg_isready",
        ];
        programs.iter().all(|program| bin.join(program).is_file())
    };
    let found = dirs.into_iter().find(complete);
    found.ok_or(TestPostgresError::NotInstalled)
}

fn free_port() -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> TestPostgresError {
    move |source| TestPostgresError::Io { action, source }
}
