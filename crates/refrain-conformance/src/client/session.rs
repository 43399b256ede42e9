//! Requests to one server, and the rounds that a request may take.
//!
//! Always: every message has an id of its own, says in `_meta` who asks in which revision, and repeats in its headers
//! what the revision wants there. The state a server hands out goes back unread, with the answers to what it
//! asked, in the next round of the same request and nowhere else.

use super::answers::{answer, capabilities};
use super::exchange::{Endpoint, ExchangeError};
use super::headers::{InvalidArgument, Mirrors, encode};
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue, InvalidHeaderValue};
use refrain::PROTOCOL_VERSION;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The rounds after which a request is given up.
const ROUNDS_MAX: usize = 10;
/// The pages after which a list is given up.
const PAGES_MAX: usize = 100;
/// The pause before a round that brings nothing but the state back.
const PAUSE: Duration = Duration::from_millis(100);
/// The error of a server that does not speak the revision of the request.
const UNSUPPORTED_VERSION: i64 = -32022;

/// The requests of this client to one server.
#[derive(Debug)]
pub(super) struct Session {
    endpoint: Endpoint,
    last_id: AtomicU64,
}

/// A tool that may be called.
#[derive(Debug)]
pub(super) struct Tool {
    pub(super) name: String,
    /// What its arguments are like.
    pub(super) schema: Value,
    mirrors: Mirrors,
}

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("{method}: {source}")]
    Exchange {
        method: &'static str,
        source: ExchangeError,
    },
    #[error("{method}: the server refused: {message} ({code})")]
    Refused {
        method: &'static str,
        code: i64,
        message: String,
    },
    #[error("{method}: the server's answer makes no sense: {answer}")]
    Answer { method: &'static str, answer: Value },
    #[error("{method}: this cannot be answered: {ask}")]
    Ask { method: &'static str, ask: Value },
    #[error("{method}: not done after {ROUNDS_MAX} rounds")]
    Rounds { method: &'static str },
    #[error("{method}: more than {PAGES_MAX} pages")]
    Pages { method: &'static str },
    #[error("{tool}: the tool failed: {content}")]
    Tool { tool: String, content: Value },
    #[error("{tool}: {source}")]
    Argument {
        tool: String,
        source: InvalidArgument,
    },
    #[error("{method}: {source}")]
    Name {
        method: &'static str,
        source: InvalidHeaderValue,
    },
}

/// A result that is not the last of its request.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Incomplete {
    #[serde(default)]
    input_requests: Map<String, Value>,
    request_state: Option<String>,
}

/// The error member of an answer.
#[derive(Deserialize)]
struct Refusal {
    code: i64,
    message: String,
    #[serde(default)]
    data: Value,
}

impl Session {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            last_id: AtomicU64::new(0),
        }
    }

    /// The tools of the server. One whose annotations are invalid is left out, with a warning.
    pub(super) async fn tools(&self) -> Result<Vec<Tool>, SessionError> {
        let method = "tools/list";
        let mut tools = Vec::new();
        for mut tool in self.list(method, "tools").await? {
            let Some(name) = tool["name"].as_str().map(str::to_owned) else {
                return Err(SessionError::Answer {
                    method,
                    answer: tool,
                });
            };
            let schema = tool["inputSchema"].take();
            match Mirrors::read(&schema) {
                Ok(mirrors) => tools.push(Tool {
                    name,
                    schema,
                    mirrors,
                }),
                Err(reason) => eprintln!("warning: tool {name:?} is left out: {reason}"),
            }
        }
        Ok(tools)
    }

    /// Calls a tool, in as many rounds as it takes.
    pub(super) async fn call(
        &self,
        tool: &Tool,
        arguments: &Map<String, Value>,
    ) -> Result<Value, SessionError> {
        let headers = tool
            .mirrors
            .headers(arguments)
            .map_err(|source| SessionError::Argument {
                tool: tool.name.clone(),
                source,
            })?;
        let mut params = Map::new();
        params.insert("name".to_owned(), tool.name.as_str().into());
        params.insert("arguments".to_owned(), arguments.clone().into());
        let mut result = self.rounds("tools/call", &params, &headers).await?;
        if result["isError"] == true {
            return Err(SessionError::Tool {
                tool: tool.name.clone(),
                content: result["content"].take(),
            });
        }
        Ok(result)
    }

    /// All pages of a list.
    pub(super) async fn list(
        &self,
        method: &'static str,
        member: &str,
    ) -> Result<Vec<Value>, SessionError> {
        let mut params = Map::new();
        let mut items = Vec::new();
        for _ in 0..PAGES_MAX {
            let mut page = self.send(method, &params, &HeaderMap::new()).await?;
            match page[member].take() {
                Value::Array(more) if is_complete(&page) => items.extend(more),
                _ => {
                    return Err(SessionError::Answer {
                        method,
                        answer: page,
                    });
                }
            }
            match page["nextCursor"].take() {
                Value::Null => return Ok(items),
                cursor => params.insert("cursor".to_owned(), cursor),
            };
        }
        Err(SessionError::Pages { method })
    }

    /// Makes a request that has no headers of its own, in as many rounds as it takes.
    pub(super) async fn request(
        &self,
        method: &'static str,
        params: &Map<String, Value>,
    ) -> Result<Value, SessionError> {
        self.rounds(method, params, &HeaderMap::new()).await
    }

    async fn rounds(
        &self,
        method: &'static str,
        params: &Map<String, Value>,
        headers: &HeaderMap,
    ) -> Result<Value, SessionError> {
        let mut round = params.clone();
        for _ in 0..ROUNDS_MAX {
            let result = self.send(method, &round, headers).await?;
            if is_complete(&result) {
                return Ok(result);
            }
            let Some(incomplete) = Incomplete::read(&result) else {
                return Err(SessionError::Answer {
                    method,
                    answer: result,
                });
            };
            // From the request as it was: nothing of one round is left over in the next.
            round = params.clone();
            incomplete.answer(method, &mut round)?;
            if !round.contains_key("inputResponses") {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Err(SessionError::Rounds { method })
    }

    /// Sends one message, and once more if the server at first denies that it speaks the revision.
    async fn send(
        &self,
        method: &'static str,
        params: &Map<String, Value>,
        headers: &HeaderMap,
    ) -> Result<Value, SessionError> {
        let mut refusal = match self.send_once(method, params, headers).await? {
            Ok(result) => return Ok(result),
            Err(refusal) => refusal,
        };
        if refusal.code == UNSUPPORTED_VERSION && refusal.offers(PROTOCOL_VERSION) {
            refusal = match self.send_once(method, params, headers).await? {
                Ok(result) => return Ok(result),
                Err(refusal) => refusal,
            };
        }
        Err(SessionError::Refused {
            method,
            code: refusal.code,
            message: refusal.message,
        })
    }

    async fn send_once(
        &self,
        method: &'static str,
        params: &Map<String, Value>,
        headers: &HeaderMap,
    ) -> Result<Result<Value, Refusal>, SessionError> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut headers = headers.clone();
        add_standard_headers(&mut headers, method, params)
            .map_err(|source| SessionError::Name { method, source })?;
        let mut params = params.clone();
        params.insert("_meta".to_owned(), meta());
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut answer = self
            .endpoint
            .post(headers, &message, id)
            .await
            .map_err(|source| SessionError::Exchange { method, source })?;
        if let Ok(refusal) = Refusal::deserialize(&answer["error"]) {
            return Ok(Err(refusal));
        }
        if answer["id"] == id && answer["result"].is_object() {
            return Ok(Ok(answer["result"].take()));
        }
        Err(SessionError::Answer { method, answer })
    }
}

impl Incomplete {
    fn read(result: &Value) -> Option<Self> {
        if result["resultType"] != "input_required" {
            return None;
        }
        let incomplete = Self::deserialize(result).ok()?;
        let is_empty = incomplete.input_requests.is_empty() && incomplete.request_state.is_none();
        (!is_empty).then_some(incomplete)
    }

    /// Adds the answers, and the state as it came, to the params of the next round.
    fn answer(
        self,
        method: &'static str,
        round: &mut Map<String, Value>,
    ) -> Result<(), SessionError> {
        let mut answers = Map::new();
        for (key, ask) in self.input_requests {
            let Some(answer) = answer(&ask) else {
                return Err(SessionError::Ask { method, ask });
            };
            answers.insert(key, answer);
        }
        if !answers.is_empty() {
            round.insert("inputResponses".to_owned(), answers.into());
        }
        if let Some(state) = self.request_state {
            round.insert("requestState".to_owned(), state.into());
        }
        Ok(())
    }
}

impl Refusal {
    fn offers(&self, version: &str) -> bool {
        let supported = self.data["supported"].as_array();
        supported.is_some_and(|supported| supported.iter().any(|offer| offer == version))
    }
}

/// Servers of earlier revisions do not say of what type a result is; it is complete then.
fn is_complete(result: &Value) -> bool {
    result
        .get("resultType")
        .is_none_or(|kind| kind == "complete")
}

fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
        "io.modelcontextprotocol/clientInfo": {
            "name": "refrain-conformance",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "io.modelcontextprotocol/clientCapabilities": capabilities(),
    })
}

fn add_standard_headers(
    headers: &mut HeaderMap,
    method: &'static str,
    params: &Map<String, Value>,
) -> Result<(), InvalidHeaderValue> {
    let mut add = |name, value| headers.insert(HeaderName::from_static(name), value);
    add(
        "mcp-protocol-version",
        HeaderValue::from_static(PROTOCOL_VERSION),
    );
    add("mcp-method", HeaderValue::from_static(method));
    let subject = match method {
        "tools/call" | "prompts/get" => params.get("name"),
        "resources/read" => params.get("uri"),
        _ => None,
    };
    if let Some(subject) = subject.and_then(Value::as_str) {
        add("mcp-name", encode(subject)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next_round(result: &Value) -> Option<Value> {
        let mut round = Map::new();
        Incomplete::read(result)?
            .answer("tools/call", &mut round)
            .unwrap();
        Some(round.into())
    }

    #[test]
    fn a_round_brings_back_the_state_and_the_answers() {
        let state = " {\"b\":1, \"a\":\"é\\n\"} ";
        let result = json!({
            "resultType": "input_required",
            "inputRequests": {"where": {"method": "roots/list"}},
            "requestState": state,
        });
        let expected = json!({"inputResponses": {"where": {"roots": []}}, "requestState": state});
        assert_eq!(next_round(&result), Some(expected));
    }

    #[test]
    fn a_round_has_only_what_it_was_given() {
        let only_state = json!({"resultType": "input_required", "requestState": ""});
        assert_eq!(next_round(&only_state), Some(json!({"requestState": ""})));
        let nothing = json!({"resultType": "input_required"});
        assert_eq!(next_round(&nothing), None);
        let other = json!({"resultType": "task", "requestState": "x"});
        assert_eq!(next_round(&other), None);
    }

    #[test]
    fn what_cannot_be_answered_is_an_error() {
        let ask = json!({"resultType": "input_required", "inputRequests": {"x": {"method": "y"}}});
        let answered = Incomplete::read(&ask)
            .unwrap()
            .answer("tools/call", &mut Map::new());
        assert!(matches!(answered, Err(SessionError::Ask { .. })));
    }

    #[test]
    fn a_result_without_a_type_is_complete() {
        assert!(is_complete(&json!({"content": []})));
        assert!(is_complete(&json!({"resultType": "complete"})));
        assert!(!is_complete(&json!({"resultType": "input_required"})));
        assert!(!is_complete(&json!({"resultType": null})));
    }

    #[test]
    fn names_are_encoded_where_they_must_be() {
        let mut headers = HeaderMap::new();
        let params = json!({"uri": "test://ö"});
        add_standard_headers(&mut headers, "resources/read", params.as_object().unwrap()).unwrap();
        assert_eq!(headers["mcp-method"], "resources/read");
        assert_eq!(headers["mcp-name"], "=?base64?dGVzdDovL8O2?=");
    }
}
