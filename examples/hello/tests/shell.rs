//! The command line of `refrain-app` around an example server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

fn hello(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain-example-hello"));
    command.args(args).env_remove("REFRAIN_KEYS");
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn version_is_the_server_version() {
    let output = hello(&["--version"]).output().unwrap();
    assert_eq!(text(&output), "refrain-example-hello 1.0\n");
}

#[test]
fn help_lists_the_commands() {
    let help = text(&hello(&["--help"]).output().unwrap());
    for command in ["serve", "worker", "store", "keys", "config"] {
        assert!(help.contains(&format!("\n  {command}")), "{help}");
    }
    let defaults = text(&hello(&["config", "defaults"]).output().unwrap());
    assert!(defaults.contains("\n[limits] "), "{defaults}");
}

#[test]
fn errors_are_printed_as_error_lines() {
    let output = hello(&["serve", "--config", "absent.toml"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.starts_with("error: cannot read configuration file absent.toml"),
        "{error}"
    );
}

#[test]
fn server_stops_on_sigterm() {
    let args = ["serve", "--listen", "127.0.0.1:0", "--store", "memory:"];
    let mut child = hello(&args).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut lines = stderr.lines().map(Result::unwrap);
    let listening = "refrain-example-hello: listening on http://";
    let address = lines.find_map(|line| Some(line.strip_prefix(listening)?.to_owned()));
    let address = address.unwrap();
    let mut stream = TcpStream::connect(address.strip_suffix("/mcp").unwrap()).unwrap();
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    let process = child.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &process]).status();
    assert!(sent.unwrap().success());
    lines.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
