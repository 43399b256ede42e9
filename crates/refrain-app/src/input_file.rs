//! Files that the user names, read with a size limit: a device or a pipe may have no end.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// The maximum size of a file, in bytes.
pub const SIZE_MAX: u64 = 16 * 1024 * 1024;

/// Reads a file of up to [`SIZE_MAX`] bytes.
pub fn read(file: &Path) -> io::Result<Vec<u8>> {
    read_limited(File::open(file)?, SIZE_MAX)
}

/// Reads a text of up to [`SIZE_MAX`] bytes.
pub fn read_text(file: &Path) -> io::Result<String> {
    to_text(read(file)?)
}

/// Reads a text of up to `limit` bytes.
pub fn read_text_limited(input: impl Read, limit: u64) -> io::Result<String> {
    to_text(read_limited(input, limit)?)
}

fn read_limited(input: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let message = format!("larger than {limit} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

fn to_text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_read_up_to_its_limit() {
        let text = read_text_limited(&b"text"[..], 4).expect("a short text");
        assert_eq!(text, "text");
        let error = read_text_limited(io::repeat(0), 4).expect_err("endless input");
        assert_eq!(error.to_string(), "larger than 4 bytes");
        let error = read_text_limited(&b"\xff"[..], 4).expect_err("no text");
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
