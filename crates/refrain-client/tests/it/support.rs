//! Helpers shared by the tests, in addition to `refrain_testkit::net`.

pub(crate) use refrain_testkit::net::{
    FakeServer, Received, Respond, serve_forever, until, within,
};

use serde_json::{Value, json};

/// A form with these optional properties.
pub(crate) fn form(message: &str, properties: Value) -> Value {
    let mut schema = json!({"type": "object"});
    schema["properties"] = properties;
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    json!({"method": "elicitation/create", "params": params})
}
