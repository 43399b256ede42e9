//! A client of a server in this process, on a pair of streams with one message per line.

use super::wait::{Serving, success};
use super::{Request, within};
use refrain_server::{Server, ServerBuilder, serve_stdio};
use serde_json::Value;
use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, duplex,
    split,
};

/// The capacity of the pipe between client and server, in bytes.
const PIPE_CAPACITY: usize = 4096;

pub struct StdioClient {
    pub server: Server,
    input: Option<WriteHalf<DuplexStream>>,
    output: Lines<BufReader<ReadHalf<DuplexStream>>>,
    serving: Serving,
}

impl StdioClient {
    pub fn start(builder: ServerBuilder) -> Self {
        let server = builder.build().expect("a usable server");
        let (client, server_end) = duplex(PIPE_CAPACITY);
        let (input, output) = split(server_end);
        let (read, write) = split(client);
        Self {
            server: server.clone(),
            input: Some(write),
            output: BufReader::new(read).lines(),
            serving: Serving::start(|stopped| {
                serve_stdio(server, BufReader::new(input), output, stopped)
            }),
        }
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("the input is open");
        success("writing a line", input.write_all(bytes)).await;
    }

    pub async fn line(&mut self, line: impl AsRef<[u8]>) {
        self.write(line.as_ref()).await;
        self.write(b"\n").await;
    }

    pub async fn send(&mut self, request: &Request) {
        self.line(request.message()).await;
    }

    pub async fn message(&mut self, message: &Value) {
        self.line(message.to_string()).await;
    }

    /// The next message.
    pub async fn read(&mut self) -> Value {
        let next = within("a message", self.next()).await;
        next.expect("a message before the end")
    }

    /// The next message, without a limit; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        let line = self.output.next_line().await.expect("a line")?;
        Some(serde_json::from_str(&line).expect("JSON"))
    }

    pub async fn call(&mut self, request: &Request) -> Value {
        self.send(request).await;
        self.read().await
    }

    /// Tells the server to stop.
    pub fn stop(&mut self) {
        self.serving.stop();
    }

    /// Waits until the server has stopped.
    pub async fn stopped(&mut self) {
        self.serving.ended().await;
    }

    /// The input, for a test that writes to it directly.
    pub fn take_input(&mut self) -> WriteHalf<DuplexStream> {
        self.input.take().expect("the input is open")
    }

    /// Closes both streams and waits until the server has stopped.
    pub async fn leave(mut self) {
        drop((self.input, self.output));
        self.serving.ended().await;
    }

    /// Ends the input, and keeps the output open.
    pub async fn close(&mut self) {
        let mut input = self.take_input();
        input.shutdown().await.expect("the input ends");
    }

    /// Ends the input, and returns all messages up to the end of the server.
    pub async fn end(mut self) -> Vec<Value> {
        self.close().await;
        self.rest().await
    }

    /// All messages up to the end of the server.
    pub async fn rest(mut self) -> Vec<Value> {
        let mut rest = Vec::new();
        while let Some(message) = within("the end", self.next()).await {
            rest.push(message);
        }
        self.stopped().await;
        rest
    }
}
