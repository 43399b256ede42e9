//! Answers to asks: by handlers and manually, valid and invalid.

use crate::support::{FakeServer, form, server_asking};
use refrain_client::wire::{AskKind, Content, Role, Root, SamplingAnswer};
use refrain_client::{
    AnswerRejection, AskAnswer, CallSpec, Client, ErrorKind, IncomingAsk, RoundOutcome,
};
use serde_json::{Value, json};

fn sent_answers(server: &FakeServer) -> Value {
    server.requests("tools/call").last().expect("a round")["params"]["inputResponses"].clone()
}

#[tokio::test]
async fn every_kind_of_ask_is_answered() {
    let server = server_asking(json!({
        "form": form("Which?", json!({"colour": {"type": "string", "enum": ["red", "blue"]}})),
        "no_mode": {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}},
        "visit": {"method": "elicitation/create", "params": {"mode": "url", "message": "Go", "url": "https://example.com/x"}},
        "model": {"method": "sampling/createMessage", "params": {"maxTokens": 5, "messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}]}},
        "roots": {"method": "roots/list"},
    }))
    .await;
    let client = Client::builder()
        .on_form(|ask| async move {
            Ok(match ask.key.as_str() {
                "form" => AskAnswer::accept(json!({"colour": "blue"}))?,
                _ => AskAnswer::Decline,
            })
        })
        .on_url(|ask| async move {
            assert_eq!(ask.url.host_str(), Some("example.com"));
            Ok(AskAnswer::visited())
        })
        .on_sampling(|ask| async move {
            assert_eq!(ask.params.max_tokens, 5);
            Ok(SamplingAnswer {
                role: Role::Assistant,
                content: vec![Content::text("Hello").into()],
                model: "m".to_owned(),
                stop_reason: None,
            })
        })
        .on_roots(|_| async {
            Ok(vec![Root {
                uri: "file:///x".to_owned(),
                name: None,
            }])
        })
        .connect(&server.url)
        .await
        .unwrap();
    client.call_tool("t", json!({})).await.unwrap();
    assert_eq!(
        sent_answers(&server),
        json!({
            "form": {"action": "accept", "content": {"colour": "blue"}},
            "no_mode": {"action": "decline"},
            "visit": {"action": "accept"},
            "model": {"role": "assistant", "content": {"type": "text", "text": "Hello"}, "model": "m"},
            "roots": {"roots": [{"uri": "file:///x"}]},
        })
    );
    let capabilities = &server.requests("tools/call")[0]["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    assert_eq!(
        capabilities,
        &json!({
            "elicitation": {"form": {}, "url": {}},
            "sampling": {},
            "roots": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        })
    );
}

#[tokio::test]
async fn form_defaults_are_filled_in_and_invalid_answers_not_sent() {
    let guests = json!({"type": "integer", "minimum": 1, "maximum": 8});
    let asks = json!({"table": form("?", json!({
        "guests": guests,
        "seat": {"type": "string", "enum": ["inside", "outside"], "default": "inside"},
    }))});
    let server = server_asking(asks).await;
    let call = |guests: i64| {
        let url = server.url.clone();
        async move {
            Client::builder()
                .on_form(move |_| async move { Ok(AskAnswer::accept(json!({"guests": guests}))?) })
                .connect(&url)
                .await
                .unwrap()
                .call_tool("t", json!({}))
                .await
        }
    };
    call(3).await.unwrap();
    let sent = json!({"table": {"action": "accept", "content": {"guests": 3, "seat": "inside"}}});
    assert_eq!(sent_answers(&server), sent);

    let before = server.requests("tools/call").len();
    let error = call(9).await.unwrap_err();
    let ErrorKind::Unanswered(unanswered) = &error.kind else {
        panic!("{error}")
    };
    assert_eq!(unanswered[0].key, "table");
    assert!(
        unanswered[0].why.contains("guests"),
        "{}",
        unanswered[0].why
    );
    assert_eq!(
        server.requests("tools/call").len(),
        before + 1,
        "the second round is not sent"
    );
    assert!(error.pending.is_some());
}

#[tokio::test]
async fn failed_handler_does_not_discard_other_answers() {
    let asks = json!({"good": form("?", json!({})), "bad": form("?", json!({}))});
    let server = server_asking(asks).await;
    let client = Client::builder()
        .on_form(|ask| async move {
            if ask.key == "bad" {
                return Err("no display".into());
            }
            Ok(AskAnswer::accept(json!({}))?)
        })
        .connect(&server.url)
        .await
        .unwrap();
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    assert!(error.to_string().contains("bad: no display"), "{error}");
    let mut pending = *error.pending.expect("the error contains the call");
    assert_eq!(pending.unanswered().len(), 1);
    pending.answer("bad", AskAnswer::Decline).unwrap();
    client.finish(pending).await.unwrap();
    let sent = json!({"good": {"action": "accept", "content": {}}, "bad": {"action": "decline"}});
    assert_eq!(sent_answers(&server), sent);
}

#[tokio::test]
async fn unknown_asks_are_listed_but_not_answered() {
    let nested = json!({"address": {"type": "object", "properties": {}}});
    let server = server_asking(json!({
        "dance": {"method": "dance/start", "params": {}},
        "nested": form("?", nested),
        "mode": {"method": "elicitation/create", "params": {"mode": "voice", "message": "?"}},
        "script": {"method": "elicitation/create", "params": {"mode": "url", "message": "?", "url": "javascript:alert(1)"}},
        "fine": {"method": "roots/list"},
    }))
    .await;
    let client = Client::builder()
        .on_roots(|_| async { Ok(Vec::new()) })
        .answer_manually([AskKind::Form, AskKind::Url])
        .connect(&server.url)
        .await
        .unwrap();
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    let ErrorKind::Unanswered(unanswered) = &error.kind else {
        panic!("{error}")
    };
    for (key, word) in [
        ("dance", "dance/start"),
        ("nested", "address"),
        ("mode", "voice"),
        ("script", "javascript"),
    ] {
        let found = unanswered.iter().find(|ask| ask.key == key).expect(key);
        assert!(found.why.contains(word), "{key}: {}", found.why);
    }
    let pending = error.pending.unwrap();
    assert_eq!(pending.asks().len(), 5);
    assert_eq!(pending.unanswered().len(), 4);
    let unknown = pending
        .asks()
        .into_iter()
        .filter(|ask| matches!(ask, IncomingAsk::Unknown(_)));
    assert_eq!(unknown.count(), 4);
}

#[tokio::test]
async fn manual_answers_must_match_their_asks() {
    let server = server_asking(json!({
        "size": form("?", json!({"n": {"type": "integer"}})),
        "roots": {"method": "roots/list"},
    }))
    .await;
    let client = Client::builder()
        .answer_manually([AskKind::Form, AskKind::Roots])
        .connect(&server.url)
        .await
        .unwrap();
    let RoundOutcome::Pending(mut pending) = client.start(CallSpec::tool("t")).await.unwrap()
    else {
        panic!("expected a pending call")
    };
    let rejected = pending.answer("size", AskAnswer::accept(json!({"n": "many"})).unwrap());
    assert_matches!(rejected, Err(AnswerRejection::Invalid { .. }));
    let rejected = pending.answer("size", AskAnswer::Roots(Vec::new()));
    assert_matches!(rejected, Err(AnswerRejection::Invalid { .. }));
    let rejected = pending.answer("colour", AskAnswer::Decline);
    assert_eq!(
        rejected,
        Err(AnswerRejection::UnknownKey("colour".to_owned()))
    );
    pending
        .answer("size", AskAnswer::accept(json!({"n": 3})).unwrap())
        .unwrap();
    let error = client.resume(pending).await.unwrap_err();
    let ErrorKind::Unanswered(open) = &error.kind else {
        panic!("{error}")
    };
    assert_eq!(open[0].key, "roots");
    assert_eq!(
        server.requests("tools/call").len(),
        1,
        "no further round is sent"
    );
    let mut pending = *error.pending.expect("the error contains the call");
    let roots = AskAnswer::read(AskKind::Roots, &json!({"roots": []})).unwrap();
    pending.answer("roots", roots).unwrap();
    let RoundOutcome::Complete(result) = client.resume(pending).await.unwrap() else {
        panic!("expected a complete call")
    };
    assert_eq!(result["content"][0]["text"], "done");
}

#[tokio::test]
async fn panicking_handler_leaves_only_its_ask_open() {
    let server = server_asking(json!({"a": form("?", json!({})), "b": form("?", json!({}))})).await;
    let client = Client::builder()
        .on_form(|ask| {
            assert_ne!(ask.key, "a", "handler panics");
            async { Ok(AskAnswer::accept(json!({}))?) }
        })
        .connect(&server.url)
        .await
        .unwrap();
    let error = client.call_tool("t", json!({})).await.unwrap_err();
    let ErrorKind::Unanswered(unanswered) = &error.kind else {
        panic!("{error}");
    };
    assert_eq!(unanswered.len(), 1);
    assert!(unanswered[0].why.contains("panicked"), "{error}");
    let open = error
        .pending
        .expect("the error contains the call")
        .unanswered();
    let keys: Vec<_> = open.iter().map(IncomingAsk::key).collect();
    assert_eq!(keys, ["a"]);
}
