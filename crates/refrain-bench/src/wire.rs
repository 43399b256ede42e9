//! One keep-alive HTTP/1.1 connection, reading no more of a reply than it has to.

use std::io;
use std::net::SocketAddr;

use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The longest reply that is read.
const REPLY_LIMIT: usize = 256 * 1024;

/// A reply that did not come or is not the right one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server closed in the middle.
    #[error("the server closed the connection before its reply was complete")]
    Closed,
    /// The head of the reply is not HTTP.
    #[error("the reply is not HTTP/1.1: {0}")]
    NotHttp(#[from] httparse::Error),
    /// A status other than 200.
    #[error("HTTP status {status}, body: {body}")]
    Status { status: u16, body: String },
    /// No length: a stream, where a single JSON answer was expected.
    #[error("the reply has no usable content-length")]
    NoLength,
    /// Longer than this client reads.
    #[error("the reply has more than {REPLY_LIMIT} bytes")]
    TooLong,
    /// Bytes that nobody asked for.
    #[error("{0} bytes came after the end of the reply")]
    Surplus(usize),
    /// A reply of the wrong content.
    #[error("the reply does not contain {expected:?}: {body}")]
    Unexpected {
        expected: &'static str,
        body: String,
    },
    /// The dialogue as a whole took too long.
    #[error("no reply in time")]
    TimedOut,
}

/// An open connection and the bytes of the last reply.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// Where the parts of a reply lie.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    body: usize,
    end: usize,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, WireError> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: vec![0; 8 * 1024],
        })
    }

    /// Sends one request and gives back the body of its reply, which must have status 200.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<&[u8], WireError> {
        self.stream.write_all(request).await?;
        let mut filled = 0;
        let mut head = None;
        loop {
            let read = self.stream.read(&mut self.buffer[filled..]).await?;
            if read == 0 {
                return Err(WireError::Closed);
            }
            filled += read;
            if head.is_none() {
                head = parse_head(&self.buffer[..filled])?;
            }
            if let Some(Head { status, body, end }) = head {
                if filled > end {
                    return Err(WireError::Surplus(filled - end));
                }
                if filled == end {
                    let body = &self.buffer[body..end];
                    if status != 200 {
                        let body = excerpt(body);
                        return Err(WireError::Status { status, body });
                    }
                    return Ok(body);
                }
                if end > REPLY_LIMIT {
                    return Err(WireError::TooLong);
                }
                if end > self.buffer.len() {
                    self.buffer.resize(end, 0);
                }
            } else if filled == self.buffer.len() {
                return Err(WireError::TooLong);
            }
        }
    }
}

fn parse_head(bytes: &[u8]) -> Result<Option<Head>, WireError> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(body) = response.parse(bytes)? else {
        return Ok(None);
    };
    let length: usize = response
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))
        .and_then(|header| std::str::from_utf8(header.value).ok())
        .and_then(|value| value.trim().parse().ok())
        .ok_or(WireError::NoLength)?;
    Ok(Some(Head {
        status: response.code.unwrap_or(0),
        body,
        end: body.checked_add(length).ok_or(WireError::TooLong)?,
    }))
}

/// Refuses a body without the expected text.
pub(crate) fn expect(body: &[u8], expected: &'static str) -> Result<(), WireError> {
    if memmem::find(body, expected.as_bytes()).is_some() {
        return Ok(());
    }
    Err(WireError::Unexpected {
        expected,
        body: excerpt(body),
    })
}

/// The token of an `input_required` reply.
pub(crate) fn token(body: &[u8]) -> Result<&str, WireError> {
    const FIELD: &str = "\"requestState\":\"";
    memmem::find(body, FIELD.as_bytes())
        .map(|at| &body[at + FIELD.len()..])
        .and_then(|rest| rest.split(|&byte| byte == b'"').next())
        .and_then(|token| std::str::from_utf8(token).ok())
        .filter(|token| !token.is_empty())
        .ok_or_else(|| WireError::Unexpected {
            expected: FIELD,
            body: excerpt(body),
        })
}

/// Enough of a body to see what it was.
fn excerpt(body: &[u8]) -> String {
    const SHOWN: usize = 400;
    let mut text = String::from_utf8_lossy(&body[..body.len().min(SHOWN)]).into_owned();
    if body.len() > SHOWN {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_found_when_it_is_whole() {
        let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        let whole = Head {
            status: 200,
            body: 38,
            end: 40,
        };
        assert_eq!(parse_head(&reply[..20]).unwrap(), None);
        assert_eq!(parse_head(&reply[..38]).unwrap(), Some(whole));
    }

    #[test]
    fn a_stream_is_not_taken_for_an_answer() {
        let reply = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert!(matches!(parse_head(reply), Err(WireError::NoLength)));
    }

    #[test]
    fn the_token_is_cut_out() {
        assert_eq!(token(br#"{"requestState":"a-b_c"}"#).unwrap(), "a-b_c");
        assert!(token(br#"{"requestState":""}"#).is_err());
        assert!(token(b"{}").is_err());
    }

    #[test]
    fn a_wrong_body_is_shown() {
        let error = expect(br#"{"error":1}"#, "Echo:").unwrap_err();
        assert!(error.to_string().contains(r#"{"error":1}"#));
    }
}
