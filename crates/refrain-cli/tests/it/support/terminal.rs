//! A pseudoterminal.

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use tokio::io::AsyncReadExt;

/// Both ends of a terminal.
pub(crate) struct Terminal {
    controller: tokio::fs::File,
    device: Option<File>,
}

impl Terminal {
    pub(crate) fn open() -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&controller).expect("a terminal");
        unlockpt(&controller).expect("a terminal");
        let name = ptsname(&controller, Vec::new()).expect("a terminal has a name");
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
        let device = File::options().read(true).write(true).open(path);
        Self {
            controller: tokio::fs::File::from_std(File::from(controller)),
            device: Some(device.expect("the other end")),
        }
    }

    /// The end for the program under test. Can be taken once.
    pub(crate) fn take_device(&mut self) -> File {
        self.device.take().expect("the end was not taken before")
    }

    /// Reads until this text was written.
    pub(crate) async fn read_until(&mut self, text: &str) -> String {
        let mut written = Vec::new();
        loop {
            let read = self.controller.read_buf(&mut written).await;
            assert!(read.expect("the other end is open") > 0, "no {text:?}");
            let written = String::from_utf8_lossy(&written);
            if written.contains(text) {
                return written.into_owned();
            }
        }
    }
}
