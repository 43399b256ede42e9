//! The client side of the protocol: writes requests and reads server messages.
//!
//! ```
//! use refrain_wire::CallKind;
//! use refrain_wire::client::{CallReply, Request, ServerMessage, read_message};
//!
//! let request = Request::call(CallKind::Tool, "ping", &Default::default()).write(1, None);
//! assert!(request.contains(r#""method":"tools/call""#));
//!
//! let reply = r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","content":[]}}"#;
//! let (_, ServerMessage::Response(Ok(result))) = read_message(reply)? else { panic!("expected a result") };
//! assert!(matches!(CallReply::read(&result)?, CallReply::Complete(_)));
//! # Ok::<(), refrain_wire::client::ReadError>(())
//! ```

mod as_sent;
mod message;
mod reply;
mod request;
mod server;
mod task;

pub use as_sent::AsSent;
pub use message::{
    ReadError, RpcFailure, ServerMessage, cancelled_request, read_message, split_messages,
};
pub use reply::{CallReply, check_complete, check_no_asks, read_complete, requested_urls};
pub use request::{
    DISCOVER, Request, RequestMeta, URLS_REQUIRED, write_cancelled, write_error, write_initialized,
    write_result,
};
pub use server::ServerInfo;
pub use task::{Task, TaskStatus};
