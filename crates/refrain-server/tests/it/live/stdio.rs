//! Live tools on a pair of streams.

use super::*;
use refrain_server::serve_stdio;
use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, duplex,
    split,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

struct Client {
    input: WriteHalf<DuplexStream>,
    output: Lines<BufReader<ReadHalf<DuplexStream>>>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
}

fn client(builder: ServerBuilder) -> Client {
    let server = builder.build().expect("a usable server");
    let (ours, theirs) = duplex(4096);
    let (input, output) = split(theirs);
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let serving = serve_stdio(server, BufReader::new(input), output, stopped);
    let (read, write) = split(ours);
    Client {
        input: write,
        output: BufReader::new(read).lines(),
        stop,
        serving: tokio::spawn(serving),
    }
}

impl Client {
    async fn line(&mut self, line: &[u8]) {
        let line = [line, b"\n"].concat();
        let written = within("a line to be taken", self.input.write_all(&line)).await;
        written.expect("a line is taken");
    }

    async fn read(&mut self) -> Value {
        let line = within("a reply", self.output.next_line()).await;
        let line = line.expect("a reply").expect("a reply before the end");
        serde_json::from_str(&line).expect("JSON")
    }

    async fn send(&mut self, request: &Request) -> Value {
        self.line(&request.message()).await;
        self.read().await
    }
}

/// Asks, works until it is dropped, and has its end seen.
async fn asks_and_works(cx: Cx, ledger: Books) -> Result<String> {
    let name: crate::support::Login = cx.elicit("name", "?").await?;
    ledger.write(name.name);
    works(cx, ledger).await
}

#[tokio::test]
async fn a_handler_goes_on_where_it_was() {
    let ledger = Arc::<Ledger>::default();
    let mut client = client(builder(&ledger, &keys()));
    let asks = client.send(&first("inline").id(json!(1))).await;
    let answer = second("inline", &token(&asks)).id(json!(2));
    assert_eq!(text(&client.send(&answer).await), "Done for Ada.");
    // Sent again, it has the same reply.
    assert_eq!(text(&client.send(&answer).await), "Done for Ada.");
    assert_eq!(ledger.lines(), ["mutation 1", "mutation 2"]);
}

#[tokio::test]
async fn a_cancelled_request_ends_its_call_in_any_round() {
    let ledger = Arc::<Ledger>::default();
    let tool = Tool::new("asks_and_works", asks_and_works).live();
    let mut client = client(builder(&ledger, &keys()).tool(tool));
    let request = first("asks_and_works").meta("refrain/callId", json!("c-1"));
    let asks = client.send(&request.id(json!(1))).await;
    let answer = second("asks_and_works", &token(&asks)).id(json!(2));
    client.line(&answer.message()).await;
    ledger.has("begun").await;
    let params = json!({"requestId": 2});
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
    client.line(cancelled.to_string().as_bytes()).await;
    ledger.has("dropped").await;
    assert_eq!(ledger.lines(), ["Ada", "begun", "dropped"]);
    // The call is over, and says so.
    let over = client.send(&answer.id(json!(3))).await;
    let message = over["error"]["message"].as_str().expect("an error");
    names(message, &["cancelled"]);
}

#[tokio::test]
async fn what_waits_is_given_up_when_it_is_told_to_stop() {
    let ledger = Arc::<Ledger>::default();
    let mut client = client(builder(&ledger, &keys()));
    client.send(&first("waits")).await;
    drop(client.stop);
    let served = within("the server to end", client.serving).await;
    served.expect("no panic").expect("no error");
    assert_eq!(ledger.lines(), ["begun", "dropped"]);
}
