//! Legacy revisions: everything that a revision supports survives a round trip. `legacy_losses.rs` tests the rest.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use refrain_wire::legacy::{self, Revision, SessionSettings, decode_initialize, write_ask};
use refrain_wire::{
    Action, Annotations, Ask, AskKind, Cache, CallKind, Capabilities, Choice, Content,
    ElicitAnswer, Field, Form, Icon, Id, ListEntry, ListResult, LogLevel, Message, PromptArgument,
    PromptInfo, PromptMessage, PromptResult, ReadResult, Reply, ResourceContents, ResourceInfo,
    ResourceLink, ResourceTemplateInfo, ResultBody, Role, Root, RootsAnswer, RpcError,
    SamplingAnswer, SamplingParams, TaskSupport, ToolAnnotations, ToolExecution, ToolInfo,
    ToolResult, check_answer_shape, parse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::slice::from_ref;
use std::time::Duration;

use crate::drafts_round_trip::values;
use crate::support::{to_raw, written};

pub(crate) const FIRST: Revision = Revision::V2025_03_26;
pub(crate) const SECOND: Revision = Revision::V2025_06_18;
pub(crate) const THIRD: Revision = Revision::V2025_11_25;

fn revisions() -> impl Strategy<Value = Revision> {
    prop_oneof![Just(FIRST), Just(SECOND), Just(THIRD)]
}

fn texts() -> impl Strategy<Value = String> {
    "\\PC{0,8}"
}

fn objects() -> impl Strategy<Value = Map<String, Value>> {
    btree_map("\\PC{0,6}", values(), 0..3).prop_map(|map| map.into_iter().collect())
}

/// An optional value that exists since a revision.
fn since<T: std::fmt::Debug + Clone + 'static>(
    revision: Revision,
    first: Revision,
    some: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Option<T>> {
    if revision < first {
        return Just(None).boxed();
    }
    option::of(some).boxed()
}

fn icons(revision: Revision) -> impl Strategy<Value = Vec<Icon>> {
    let icon = texts().prop_map(Icon::new);
    since(revision, THIRD, vec(icon, 0..3)).prop_map(Option::unwrap_or_default)
}

fn metas(revision: Revision) -> impl Strategy<Value = Option<Map<String, Value>>> {
    since(revision, SECOND, objects())
}

fn hints(revision: Revision) -> impl Strategy<Value = Option<Annotations>> {
    let audience = vec(prop_oneof![Just(Role::User), Just(Role::Assistant)], 0..3);
    let hints = (
        audience,
        option::of(0.0..1.0),
        since(revision, SECOND, texts()),
    );
    option::of(
        hints.prop_map(|(audience, priority, last_modified)| Annotations {
            audience,
            priority,
            last_modified,
        }),
    )
}

fn contents(revision: Revision) -> impl Strategy<Value = ResourceContents> {
    let parts = (texts(), option::of(texts()), texts(), metas(revision));
    (parts, any::<bool>()).prop_map(|((uri, mime_type, what, meta), is_text)| {
        let meta = meta.map(Value::Object);
        if is_text {
            ResourceContents::Text {
                uri,
                mime_type,
                text: what,
                meta,
            }
        } else {
            ResourceContents::Blob {
                uri,
                mime_type,
                blob: what,
                meta,
            }
        }
    })
}

fn links(revision: Revision) -> impl Strategy<Value = Content> {
    let names = (texts(), texts(), option::of(texts()), option::of(texts()));
    let facts = (
        option::of(texts()),
        option::of(0..1_000_000_u64),
        icons(revision),
    );
    (names, facts, hints(revision), metas(revision)).prop_map(
        |(names, facts, annotations, meta)| {
            let (uri, name, title, description) = names;
            let (mime_type, size, icons) = facts;
            Content::from(ResourceLink {
                uri,
                name,
                title,
                description,
                mime_type,
                size,
                icons,
                annotations,
                meta: meta.map(Value::Object),
            })
        },
    )
}

/// Content that is also allowed in model messages.
fn model_content(revision: Revision) -> impl Strategy<Value = Content> {
    let parts = (texts(), texts(), hints(revision), metas(revision));
    (parts, 0..3).prop_map(|((data, mime_type, annotations, meta), kind)| {
        let meta = meta.map(Value::Object);
        match kind {
            0 => Content::Text {
                text: data,
                annotations,
                meta,
            },
            1 => Content::Image {
                data,
                mime_type,
                annotations,
                meta,
            },
            _ => Content::Audio {
                data,
                mime_type,
                annotations,
                meta,
            },
        }
    })
}

fn blocks(revision: Revision) -> BoxedStrategy<Content> {
    let resource = (contents(revision), hints(revision), metas(revision)).prop_map(
        |(resource, annotations, meta)| Content::Resource {
            resource,
            annotations,
            meta: meta.map(Value::Object),
        },
    );
    if revision < SECOND {
        return prop_oneof![model_content(revision), resource].boxed();
    }
    prop_oneof![model_content(revision), resource, links(revision)].boxed()
}

fn tool_results(revision: Revision) -> impl Strategy<Value = ToolResult> {
    let structured = since(revision, SECOND, objects());
    (vec(blocks(revision), 0..3), structured, any::<bool>()).prop_map(
        |(content, structured, is_error)| ToolResult {
            content,
            structured_content: structured.map(Value::Object),
            is_error,
            meta: None,
        },
    )
}

fn tools(revision: Revision) -> impl Strategy<Value = ToolInfo> {
    let annotations = option::of((option::of(texts()), option::of(any::<bool>())).prop_map(
        |(title, read_only_hint)| ToolAnnotations {
            title,
            read_only_hint,
            ..ToolAnnotations::default()
        },
    ));
    let output = objects().prop_map(|mut schema| {
        schema.insert("type".to_owned(), "object".into());
        Value::Object(schema)
    });
    let names = (
        texts(),
        since(revision, SECOND, texts()),
        option::of(texts()),
    );
    let schemas = (objects(), since(revision, SECOND, output));
    let execution = prop_oneof![
        Just(TaskSupport::Forbidden),
        Just(TaskSupport::Optional),
        Just(TaskSupport::Required),
    ]
    .prop_map(|task_support| ToolExecution { task_support });
    let execution = since(revision, THIRD, execution);
    (
        names,
        schemas,
        annotations,
        (icons(revision), execution),
        metas(revision),
    )
        .prop_map(|(names, schemas, annotations, (icons, execution), meta)| {
            let (name, title, description) = names;
            let (input, output_schema) = schemas;
            ToolInfo {
                name,
                title,
                description,
                input_schema: Value::Object(input),
                output_schema,
                annotations,
                icons,
                execution,
                meta,
            }
        })
}

fn prompts(revision: Revision) -> impl Strategy<Value = PromptInfo> {
    let argument = (
        texts(),
        since(revision, SECOND, texts()),
        option::of(texts()),
    );
    let argument = argument.prop_map(|(name, title, description)| PromptArgument {
        name,
        title,
        description,
        ..PromptArgument::default()
    });
    let names = (
        texts(),
        since(revision, SECOND, texts()),
        option::of(texts()),
    );
    (names, vec(argument, 0..3), icons(revision), metas(revision)).prop_map(
        |((name, title, description), arguments, icons, meta)| PromptInfo {
            name,
            title,
            description,
            arguments,
            icons,
            meta,
        },
    )
}

fn resources(revision: Revision) -> impl Strategy<Value = ResourceInfo> {
    let names = (texts(), texts(), since(revision, SECOND, texts()));
    (names, hints(revision), icons(revision), metas(revision)).prop_map(
        |((uri, name, title), annotations, icons, meta)| ResourceInfo {
            uri,
            name,
            title,
            annotations,
            icons,
            meta,
            ..ResourceInfo::default()
        },
    )
}

fn templates(revision: Revision) -> impl Strategy<Value = ResourceTemplateInfo> {
    resources(revision).prop_map(|resource| ResourceTemplateInfo {
        uri_template: resource.uri,
        name: resource.name,
        title: resource.title,
        annotations: resource.annotations,
        icons: resource.icons,
        meta: resource.meta,
        ..ResourceTemplateInfo::default()
    })
}

/// A revision, and a value that it supports.
fn with_revision<T, S>(of: impl Fn(Revision) -> S + 'static) -> impl Strategy<Value = (Revision, T)>
where
    T: std::fmt::Debug,
    S: Strategy<Value = T> + 'static,
{
    revisions().prop_flat_map(move |revision| (Just(revision), of(revision)))
}

/// A result, as a client of the revision receives it.
pub(crate) fn received_result(revision: Revision, result: impl Serialize) -> Value {
    let id = to_raw(7);
    let reply = Reply::Complete(ResultBody::from_members(result).unwrap());
    let id = Id::from_raw(&id).unwrap();
    let message = written(|out| legacy::write_reply(out, id, &reply, revision));
    assert_eq!(message["id"], 7);
    message["result"].clone()
}

pub(crate) fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

/// A list, as a client of the revision receives it.
pub(crate) fn received_list<T: ListEntry + DeserializeOwned>(
    revision: Revision,
    items: &[T],
) -> Vec<T> {
    let items: Vec<&T> = items.iter().collect();
    let list = ListResult {
        items: &items,
        next_cursor: Some("next"),
        cache: Cache::public(Duration::from_secs(1)),
    };
    let received_result = received_result(revision, list);
    assert_eq!(received_result["nextCursor"], "next");
    assert_eq!(
        received_result.as_object().unwrap().len(),
        2,
        "{received_result}"
    );
    read(&received_result[T::MEMBER])
}

pub(crate) fn written_ask(revision: Revision, ask: &Ask) -> Value {
    let message = written(|out| write_ask(out, "an id", ask, revision));
    assert_eq!(message["id"], "an id");
    assert_eq!(message["method"], ask.kind().method());
    message.get("params").cloned().unwrap_or_default()
}

/// Forms whose fields are not sorted by name.
fn forms() -> impl Strategy<Value = Form> {
    let choices = btree_map("[a-z]{1,5}", "[A-Z]{1,5}", 1..4);
    vec((0..5, texts(), choices), 0..4).prop_map(|fields| {
        let count = fields.len();
        let field = |(place, (kind, name, choices)): (usize, (i32, String, _))| {
            let name = format!("{}{name}", count - place);
            let choices: std::collections::BTreeMap<String, String> = choices;
            match kind {
                0 => Field::string(name),
                1 => Field::integer(name),
                2 => Field::boolean(name),
                3 => Field::one_of(name, choices.into_keys().map(Choice::new)),
                _ => {
                    let titled = |(value, title): (String, String)| Choice::new(value).title(title);
                    Field::one_of(name, choices.into_iter().map(titled))
                }
            }
        };
        Form::new(fields.into_iter().enumerate().map(field))
    })
}

/// The capabilities that the server reads from an `initialize` with these capabilities.
pub(crate) fn negotiated(revision: Revision, can: Capabilities) -> Capabilities {
    let mut declared = json!({});
    for (has, name) in [(can.form, "form"), (can.url, "url")] {
        if has {
            declared["elicitation"][name] = json!({});
        }
    }
    if can.sampling {
        declared["sampling"] = json!({});
    }
    for (has, name) in [
        (can.sampling_tools, "tools"),
        (can.sampling_context, "context"),
    ] {
        if has {
            declared["sampling"][name] = json!({});
        }
    }
    if can.roots {
        declared["roots"] = json!({});
    }
    let greeting = json!({"protocolVersion": revision.as_str(), "capabilities": declared,
        "clientInfo": {"name": "c", "version": "1"}});
    let greeting = decode_initialize(Some(&to_raw(greeting))).unwrap();
    assert_eq!(greeting.revision, revision);
    greeting.capabilities
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tool_result_survives_the_round_trip((revision, result) in with_revision(tool_results)) {
        prop_assert_eq!(read::<ToolResult>(&received_result(revision, &result)), result);
    }

    #[test]
    fn prompt_result_survives_the_round_trip(
        (revision, content) in with_revision(blocks),
        description in option::of(texts()),
    ) {
        let messages = vec![PromptMessage::user(content.clone()), PromptMessage::assistant(content)];
        let result = PromptResult { description, messages, meta: None };
        prop_assert_eq!(read::<PromptResult>(&received_result(revision, &result)), result);
    }

    #[test]
    fn resource_contents_survive_the_round_trip((revision, contents) in with_revision(contents)) {
        let result = ReadResult { contents: vec![contents], ..ReadResult::default() };
        let received_result = received_result(revision, &result);
        prop_assert_eq!(read::<Vec<ResourceContents>>(&received_result["contents"]), result.contents);
    }

    #[test]
    fn lists_survive_the_round_trip(
        (revision, tool) in with_revision(tools),
        (second, prompt) in with_revision(prompts),
        (third, resource) in with_revision(resources),
        (fourth, template) in with_revision(templates),
    ) {
        prop_assert_eq!(received_list(revision, from_ref(&tool)), [tool]);
        prop_assert_eq!(received_list(second, from_ref(&prompt)), [prompt]);
        prop_assert_eq!(received_list(third, from_ref(&resource)), [resource]);
        prop_assert_eq!(received_list(fourth, from_ref(&template)), [template]);
    }

    #[test]
    fn result_meta_survives_the_round_trip(revision in revisions(), meta in objects()) {
        let id = to_raw("x");
        let body = ResultBody::from_members(json!({"completion": {"values": []}})).unwrap();
        let body = Reply::Complete(body.with_meta(&meta).unwrap());
        let message = written(|out| legacy::write_reply(out, Id::from_raw(&id).unwrap(), &body, revision));
        prop_assert_eq!(&message["result"]["completion"], &json!({"values": []}));
        let received_result = message["result"].get("_meta").cloned().unwrap_or(json!({}));
        prop_assert_eq!(received_result, Value::Object(meta));
    }

    #[test]
    fn errors_survive_the_round_trip(why in texts(), data in option::of(objects()), kind in 0..4) {
        let mut error = match kind {
            0 => RpcError::invalid_params(why),
            1 => RpcError::internal(why),
            2 => RpcError::method_not_found(&why),
            _ => RpcError::missing_capability(&[]),
        };
        if let Some(data) = &data {
            error = error.with_data(data);
        }
        let received_result = written(|out| legacy::write_error(out, Some("7"), &error))["error"].clone();
        prop_assert_eq!(&received_result["code"], &json!(error.code.as_i32()));
        prop_assert_eq!(&received_result["message"], &json!(error.message));
        let data = error.data.map(|data| serde_json::from_str::<Value>(data.get()).unwrap());
        prop_assert_eq!(received_result.get("data"), data.as_ref());
    }

    #[test]
    fn forms_survive_the_round_trip(
        revision in prop_oneof![Just(SECOND), Just(THIRD)],
        message in texts(),
        form in forms(),
    ) {
        let ask = Ask::Form { message: message.clone(), schema: form.json().clone() };
        let mut out = Vec::new();
        write_ask(&mut out, "an id", &ask, revision);
        // Compare the text, because the order of fields matters.
        #[derive(serde::Deserialize)]
        struct Message<'a> {
            #[serde(borrow)]
            params: Params<'a>,
        }
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            mode: Option<String>,
            message: String,
            #[serde(borrow)]
            requested_schema: &'a RawValue,
        }
        let received_result: Message<'_> = serde_json::from_slice(&out).unwrap();
        prop_assert!(received_result.params.mode.is_none_or(|mode| mode == "form"));
        prop_assert_eq!(received_result.params.message, message);
        let read = Form::parse(received_result.params.requested_schema).unwrap();
        let again = Form::new(read.fields().iter().cloned());
        prop_assert_eq!(again.json().get(), form.json().get());
    }

    #[test]
    fn other_asks_survive_the_round_trip(
        (revision, content) in with_revision(model_content),
        (message, url) in (texts(), texts()),
        system in option::of(texts()),
    ) {
        let received_result = written_ask(THIRD, &Ask::Url { message: message.clone(), url: url.clone() });
        let visit = json!({"mode": "url", "message": message, "url": url, "elicitationId": "an id"});
        prop_assert_eq!(received_result, visit);

        let mut params = SamplingParams::new(9).message(Role::User, content.clone());
        params.system_prompt = system;
        params = params.message(Role::Assistant, content).hint("a model").speed(0.5).temperature(0.25);
        let received_result = written_ask(revision, &Ask::Sampling(Box::new(params.clone())));
        prop_assert_eq!(read::<SamplingParams>(&received_result), params);
        prop_assert_eq!(written_ask(revision, &Ask::Roots), Value::Null);
    }

    #[test]
    fn answers_survive_the_round_trip(
        id in texts(),
        content in objects(),
        (text, root) in (texts(), texts()),
        why in texts(),
    ) {
        let content = to_raw(content);
        let accepted = ElicitAnswer { action: Action::Accept, content: Some(&content) };
        let declined = ElicitAnswer { action: Action::Decline, content: None };
        let said = SamplingAnswer::new("a model", text);
        let roots = RootsAnswer { roots: vec![Root::new(root)] };
        let answers = [
            (AskKind::Form, json!(accepted)),
            (AskKind::Url, json!(declined)),
            (AskKind::Sampling, json!(said)),
            (AskKind::Roots, json!(roots)),
        ];
        for (kind, answer) in answers {
            let message = json!({"jsonrpc": "2.0", "id": id, "result": answer}).to_string();
            let Ok(Message::Response(response)) = parse(message.as_bytes()) else {
                panic!("not a response: {message}");
            };
            prop_assert_eq!(response.id.as_json(), json!(id).to_string());
            let outcome = response.outcome.unwrap();
            prop_assert!(check_answer_shape(kind, outcome).is_ok());
            prop_assert_eq!(serde_json::from_str::<Value>(outcome.get()).unwrap(), answer);
        }
        let message = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -1, "message": why}});
        let message = message.to_string();
        let Ok(Message::Response(response)) = parse(message.as_bytes()) else {
            panic!("not a response: {message}");
        };
        prop_assert_eq!(response.outcome.unwrap_err(), why);
    }

    #[test]
    fn calls_survive_the_round_trip(
        revision in revisions(),
        kind in prop_oneof![Just(CallKind::Tool), Just(CallKind::Prompt), Just(CallKind::Resource)],
        target in texts(),
        arguments in option::of(objects()),
        progress in option::of(prop_oneof![any::<i64>().prop_map(Value::from), texts().prop_map(Value::from)]),
        form in any::<bool>(),
    ) {
        let member = if kind == CallKind::Resource { "uri" } else { "name" };
        let mut params = json!({member: target});
        if let Some(arguments) = &arguments {
            params["arguments"] = Value::Object(arguments.clone());
        }
        if let Some(token) = &progress {
            params["_meta"] = json!({"progressToken": token});
        }
        let session = SessionSettings {
            revision,
            capabilities: Capabilities { form, ..Capabilities::default() },
            log_level: Some(LogLevel::Error),
        };
        let params = to_raw(params);
        let call = legacy::decode_call(kind, Some(&params), session).unwrap();
        prop_assert_eq!((call.kind, call.target.as_ref()), (kind, target.as_str()));
        let read = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).unwrap();
        prop_assert_eq!(call.arguments.map(read), arguments.map(Value::Object));
        prop_assert_eq!(call.meta.progress_token.map(read), progress);
        prop_assert_eq!(call.meta.capabilities, session.capabilities);
        prop_assert_eq!(call.meta.log_level, session.log_level);
        prop_assert!(call.answers.is_none_or(|all| all.iter().next().is_none()) && call.state.is_none());
    }

    #[test]
    fn capabilities_survive_the_round_trip(
        (form, url, roots) in any::<(bool, bool, bool)>(),
        (sampling, tools, context) in any::<(bool, bool, bool)>(),
    ) {
        let can = Capabilities {
            form,
            url,
            sampling,
            sampling_tools: sampling && tools,
            sampling_context: sampling && context,
            roots,
            tasks: false,
        };
        prop_assert_eq!(negotiated(THIRD, can), can);
    }
}
