//! Servers of earlier revisions.

use refrain_wire::ErrorCode;
use serde_json::{Value, json};

/// The answer to a request of the server's that belongs to no call: a ping is answered, everything else refused.
pub(crate) fn refuse_stray(id: &Value, method: &str) -> String {
    if method == "ping" {
        return json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string();
    }
    let message = format!("{method} is answered only within the call it belongs to");
    let error = json!({"code": ErrorCode::InvalidParams.as_i32(), "message": message});
    json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()
}
