//! Calls that are read in one pass: the result equals that of the general decoders.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use refrain_wire::ratified::{decode_call, read_call};
use refrain_wire::{Call, CallKind, Id, Message, parse};

const ROUND: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"get_weather","arguments":{"location":"New \"York\"","n":[1,-2.5e3,null]},"inputResponses":{"github_login":{"action":"accept","content":{"name":"octocat"}}},"requestState":"AQID","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}},"sampling":{},"roots":{"listChanged":true},"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}"#;
const PROMPT: &str = r#"{"method":"prompts/get","jsonrpc":"2.0","id":"a\u00e9","params":{"_meta":{"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/logLevel":"info","progressToken":7,"refrain/callId":"c-1","refrain/taskTtl":1000,"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","other":[{"x":{}}]},"name":"gr\u00fc\u00dfe","more":false}}"#;
const RESOURCE: &str = " {\"jsonrpc\" : \"2.0\",\r\n\t\"id\": -1 , \"method\":\"resources/read\", \"params\": { \"uri\":\"note:\u{fc}\",\n\"_meta\": {\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\" , \"io.modelcontextprotocol/clientCapabilities\": { } } } }\n";
const CALLS: [&str; 3] = [ROUND, PROMPT, RESOURCE];

fn read_generally(bytes: &[u8]) -> Option<(Id<'_>, Call<'_>)> {
    let Ok(Message::Request { id, method, params }) = parse(bytes) else {
        return None;
    };
    let call = decode_call(CallKind::from_method(&method)?, params).ok()?;
    Some((id, call))
}

#[test]
fn valid_call_is_read_in_one_pass() {
    for text in CALLS {
        let read = read_call(text.as_bytes()).expect(text);
        let general = read_generally(text.as_bytes()).expect(text);
        assert_eq!(format!("{read:?}"), format!("{general:?}"));
    }
}

#[test]
fn call_with_a_cached_meta_is_read_as_the_first_time() {
    let name = |client: usize| format!(r#""clientInfo":{{"name":"{client}","version":"1"}}"#);
    // More clients than the cache holds. `longer` starts like `meta`.
    for client in (0..30).chain((0..30).rev()) {
        let meta = format!(
            r#"{{"protocolVersion":"2026-07-28",{},"clientCapabilities":{{"roots":{{}}}}}}"#,
            name(client)
        );
        let meta = meta
            .replace(r#""c"#, r#""io.modelcontextprotocol/c"#)
            .replace(r#""p"#, r#""io.modelcontextprotocol/p"#);
        let longer = format!(r#"{},"progressToken":{client}}}"#, &meta[..meta.len() - 1]);
        for meta in [&meta, &meta, &longer, &meta, &format!("{meta}}}")] {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"x","_meta":{meta}}}}}"#
            );
            let (read, general) = (read_call(text.as_bytes()), read_generally(text.as_bytes()));
            assert_eq!(read.is_some(), !meta.ends_with("}}}}"), "{meta}");
            assert_eq!(format!("{read:?}"), format!("{general:?}"));
        }
    }
}

#[test]
fn truncated_call_is_not_read() {
    for text in CALLS.map(str::trim_end) {
        for end in 0..text.len() {
            assert!(read_call(&text.as_bytes()[..end]).is_none(), "{end}");
        }
        assert!(read_call(format!("{text}{{}}").as_bytes()).is_none());
    }
}

/// Inserts, replaces or removes characters at these positions.
fn edit(text: &str, edits: &[(Index, Option<char>, bool)]) -> String {
    let mut text: Vec<char> = text.chars().collect();
    for (at, new, removes) in edits {
        let at = at.index(text.len());
        text.splice(at..at + usize::from(*removes), *new);
    }
    text.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn edited_call_is_read_as_by_the_general_decoders(
        text in select(&CALLS[..]),
        edits in vec(
            (any::<Index>(), proptest::option::of(select("\"\\{}[]:,. \n\u{1}\u{e9}01-enu".chars().collect::<Vec<_>>())), any::<bool>()),
            1..4,
        ),
    ) {
        let text = edit(text, &edits);
        if let Some(read) = read_call(text.as_bytes()) {
            let general = read_generally(text.as_bytes());
            prop_assert_eq!(format!("{:?}", Some(read)), format!("{:?}", general), "{}", text);
        } else {
            prop_assert!(read_generally(text.as_bytes()).is_none(), "read in one pass only: {}", text);
        }
    }
}
