//! Records every message that is sent, so that a test run can be checked against the protocol's schema.
//!
//! Needs the feature `record`, and the directory in `REFRAIN_RECORD`.

use refrain_wire::legacy::Revision;

/// Records a message in response to a request of this method.
#[cfg(not(feature = "record"))]
#[inline]
pub(crate) fn sent(_: &str, _: &[u8]) {}

/// Records a message in response to a request of this method.
#[cfg(feature = "record")]
pub(crate) fn sent(method: &str, message: &[u8]) {
    use parking_lot::Mutex;
    use std::fs::{File, OpenOptions, create_dir_all};
    use std::io::Write;
    use std::path::Path;
    use std::sync::OnceLock;

    static FILE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let directory = std::env::var_os("REFRAIN_RECORD")?;
        let path = Path::new(&directory).join(format!("{}.jsonl", std::process::id()));
        create_dir_all(&directory).expect("the directory of REFRAIN_RECORD can be made");
        let file = OpenOptions::new().create(true).append(true).open(path);
        Some(Mutex::new(
            file.expect("a file in REFRAIN_RECORD can be opened"),
        ))
    });
    let Some(file) = file else { return };
    let mut line = format!("{{\"method\":{},\"message\":", serde_json::json!(method)).into_bytes();
    line.extend_from_slice(message);
    line.extend_from_slice(b"}\n");
    let mut file = file.lock();
    // One write: a process that is killed leaves whole lines, but for the last.
    file.write_all(&line).expect("the record can be written");
}

/// Records a message to a legacy client, in response to a request of this method.
#[inline]
pub(crate) fn sent_older(revision: Revision, method: &str, message: &[u8]) {
    if cfg!(feature = "record") {
        sent(&format!("{} {method}", revision.as_str()), message);
    }
}
