//! Opens pages in the user's browser.

use crate::client::secrets;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use url::Url;

/// Starts the browser with a page, in its own process group, so that Ctrl-C does not end it.
pub(crate) fn open(url: &Url) -> io::Result<()> {
    let mut failed = io::ErrorKind::NotFound.into();
    for mut command in open::commands(url.as_str()) {
        for secret in secrets() {
            command.env_remove(secret);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        match command.spawn() {
            Ok(_) => return Ok(()),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
