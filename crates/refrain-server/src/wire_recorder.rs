//! Records sent messages, so that tests can check them against the protocol's schema.
//!
//! Enabled by the cargo feature `record`. `REFRAIN_RECORD` names the output directory.

use refrain_wire::legacy::Revision;

/// The method of a request that was rejected before its message was read.
pub(crate) const NO_METHOD: &str = "";

/// Records a message sent in response to a request of this method.
#[cfg(not(feature = "record"))]
#[inline]
pub(crate) fn record(_: &str, _: &[u8]) {}

#[cfg(feature = "record")]
pub(crate) fn record(method: &str, message: &[u8]) {
    use parking_lot::Mutex;
    use std::fs::{File, OpenOptions, create_dir_all};
    use std::io::Write;
    use std::path::Path;
    use std::sync::OnceLock;

    // Tests mark messages that come from another server and need not match the schema.
    const FOREIGN: &[u8] = b"\"x-foreign\"";
    if message.windows(FOREIGN.len()).any(|part| part == FOREIGN) {
        return;
    }
    static FILE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let directory = std::env::var_os("REFRAIN_RECORD")?;
        let path = Path::new(&directory).join(format!("{}.jsonl", std::process::id()));
        create_dir_all(&directory).expect("the directory in REFRAIN_RECORD can be created");
        let file = OpenOptions::new().create(true).append(true).open(path);
        Some(Mutex::new(
            file.expect("the directory in REFRAIN_RECORD is writable"),
        ))
    });
    let Some(file) = file else { return };
    let mut line = format!("{{\"method\":{},\"message\":", serde_json::json!(method)).into_bytes();
    line.extend_from_slice(message);
    line.extend_from_slice(b"}\n");
    let mut file = file.lock();
    // A single write: a killed process truncates at most the last line.
    file.write_all(&line)
        .expect("the directory in REFRAIN_RECORD is writable");
}

#[inline]
pub(crate) fn record_legacy(revision: Revision, method: &str, message: &[u8]) {
    if cfg!(feature = "record") {
        record(&format!("{} {method}", revision.as_str()), message);
    }
}
