//! nginx, HAProxy and Caddy as processes. `scripts/tools` installs them.

use super::{Files, Process, root, within};
use refrain_testkit::net::installed::install;
use std::net::SocketAddr;
use std::path::Path;
use tokio::net::TcpStream;
use tokio::process::Command;

/// The configuration that the documentation recommends, changed for a test.
pub(crate) struct Recipe(String);

impl Recipe {
    /// The code block of this language on the page about load balancers.
    pub(crate) fn of(language: &str) -> Self {
        let page = root().join("docs/operate/load-balancers.md");
        let page = std::fs::read_to_string(page).expect("the page is readable");
        let start = format!("```{language}\n");
        let mut blocks = page.split(&start).skip(1);
        let (block, _) = blocks
            .next()
            .and_then(|rest| rest.split_once("```"))
            .expect("a code block");
        assert!(blocks.next().is_none(), "several blocks in {language}");
        Self(block.to_owned())
    }

    /// Replaces all occurrences of a text, which must be there.
    pub(crate) fn with(self, text: &str, replacement: &str) -> Self {
        assert!(self.0.contains(text), "no {text:?} in\n{}", self.0);
        Self(self.0.replace(text, replacement))
    }

    /// Replaces the path of a file.
    pub(crate) fn with_file(self, file: &str, replacement: &Path) -> Self {
        self.with(file, &replacement.display().to_string())
    }

    /// Starts nginx as one process, with its files in a temporary directory.
    pub(crate) async fn start_nginx(self, files: &Files) -> Process {
        let mut http = "http {\n    access_log off;\n".to_owned();
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            let dir = files.path(kind);
            http += &format!("    {kind}_temp_path {};\n", dir.display());
        }
        let config = self.with("http {\n", &http);
        let file = files.write("nginx.conf", &config.0);
        let pid = files.path("nginx.pid");
        let global = format!(
            "daemon off; master_process off; error_log stderr notice; pid {};",
            pid.display()
        );
        let mut command = program("nginx").await;
        command.arg("-c").arg(file).args(["-g", &global]);
        start(command, "event method").await
    }

    /// Starts HAProxy, which must listen on this address.
    pub(crate) async fn start_haproxy(self, files: &Files, address: SocketAddr) -> Process {
        let file = files.write("haproxy.cfg", &self.0);
        let mut command = program("haproxy").await;
        command.args(["-V", "-db", "-f"]).arg(file);
        let process = start(command, "polling mechanism").await;
        // It logs nothing when it listens.
        let listening = async { while TcpStream::connect(address).await.is_err() {} };
        within("HAProxy", listening).await;
        process
    }
}

impl From<&str> for Recipe {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

pub(crate) async fn start_caddy(files: &Files, config: &str) -> Process {
    let file = files.write("Caddyfile", config);
    let mut command = program("caddy").await;
    command
        .args(["run", "--adapter", "caddyfile", "--config"])
        .arg(file)
        .env("HOME", files.path("home"))
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_DATA_HOME");
    start(command, "serving initial configuration").await
}

async fn start(command: Command, up: &str) -> Process {
    Process::start(command, up, None).await.0
}

/// An installed program. Debian has servers in a directory that users do not search.
async fn program(name: &str) -> Command {
    install().await;
    let servers = Path::new("/usr/sbin").join(name);
    match servers.exists() {
        true => Command::new(servers),
        false => Command::new(name),
    }
}
