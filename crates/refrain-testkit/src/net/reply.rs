//! Parts of JSON-RPC replies. A part that is missing fails the test with the whole reply.

use serde_json::Value;

#[track_caller]
pub fn result(reply: &Value) -> &Value {
    let result = reply.get("result");
    result.unwrap_or_else(|| panic!("no result in {reply}"))
}

/// The first text of a tool's complete result.
#[track_caller]
pub fn text(reply: &Value) -> &str {
    let result = result(reply);
    assert_eq!(result["resultType"], "complete", "{reply}");
    let text = result["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text in {reply}"))
}

/// The token of a round that asks for input.
#[track_caller]
pub fn token(reply: &Value) -> String {
    let result = result(reply);
    assert_eq!(result["resultType"], "input_required", "{reply}");
    let token = result["requestState"].as_str();
    token
        .unwrap_or_else(|| panic!("no requestState in {reply}"))
        .to_owned()
}

/// The keys of the input requests of a round, sorted.
#[track_caller]
pub fn asked(reply: &Value) -> Vec<&str> {
    let requests = result(reply)["inputRequests"].as_object();
    let requests = requests.unwrap_or_else(|| panic!("no input requests in {reply}"));
    let mut names: Vec<&str> = requests.keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// Asserts that a message contains all these words.
#[track_caller]
pub fn assert_contains(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message:?}");
    }
}
