//! What is written in an earlier revision and read again is what it was, for everything that the revision knows. What it
//! does not know is lost, and each loss has its test.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use refrain_wire::legacy::{self, SessionSettings, Revision, decode_initialize, write_ask};
use refrain_wire::{
    Action, Annotations, Answers, Ask, AskKind, Cache, CallKind, Capabilities, Choice, Content,
    ElicitAnswer, Field, Form, Icon, Id, ListResult, ListEntry, LogLevel, Message, PromptArgument,
    PromptInfo, PromptMessage, PromptResult, ReadResult, Reply, ResourceContents, ResourceInfo,
    ResourceLink, ResourceTemplateInfo, ResultBody, Role, Root, RootsAnswer, RpcError,
    SamplingAnswer, SamplingParams, TaskSupport, ToolAnnotations, ToolExecution, ToolInfo,
    ToolResult, check_answer_shape, parse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use std::slice::from_ref;
use std::time::Duration;

const FIRST: Revision = Revision::V2025_03_26;
const SECOND: Revision = Revision::V2025_06_18;
const THIRD: Revision = Revision::V2025_11_25;

fn raw(value: impl Serialize) -> Box<RawValue> {
    to_raw_value(&value).unwrap()
}

fn revisions() -> impl Strategy<Value = Revision> {
    prop_oneof![Just(FIRST), Just(SECOND), Just(THIRD)]
}

fn texts() -> impl Strategy<Value = String> {
    "\\PC{0,8}"
}

fn objects() -> impl Strategy<Value = Map<String, Value>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        texts().prop_map(Value::from),
    ];
    let values = leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::from),
            btree_map("\\PC{0,6}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    btree_map("\\PC{0,6}", values, 0..3).prop_map(|map| map.into_iter().collect())
}

/// Something that may be there if the revision is at least the other.
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

/// Blocks that a model can be given too.
fn spoken(revision: Revision) -> impl Strategy<Value = Content> {
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
        return prop_oneof![spoken(revision), resource].boxed();
    }
    prop_oneof![spoken(revision), resource, links(revision)].boxed()
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

/// A revision, and what it knows of something.
fn known<T, S>(of: impl Fn(Revision) -> S + 'static) -> impl Strategy<Value = (Revision, T)>
where
    T: std::fmt::Debug,
    S: Strategy<Value = T> + 'static,
{
    revisions().prop_flat_map(move |revision| (Just(revision), of(revision)))
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Value {
    let mut out = Vec::new();
    write(&mut out);
    assert!(!out.contains(&b'\n'));
    serde_json::from_slice(&out).unwrap()
}

/// A result as the client of a revision reads it.
fn told(revision: Revision, result: impl Serialize) -> Value {
    let id = raw(7);
    let reply = Reply::Complete(ResultBody::from_members(result).unwrap());
    let id = Id::from_raw(&id).unwrap();
    let message = written(|out| legacy::write_reply(out, id, &reply, revision));
    assert_eq!(message["id"], 7);
    message["result"].clone()
}

fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

/// A list as the client of a revision reads it.
fn listed<T: ListEntry + DeserializeOwned>(revision: Revision, items: &[T]) -> Vec<T> {
    let items: Vec<&T> = items.iter().collect();
    let list = ListResult {
        items: &items,
        next_cursor: Some("next"),
        cache: Cache::public(Duration::from_secs(1)),
    };
    let told = told(revision, list);
    assert_eq!(told["nextCursor"], "next");
    assert_eq!(told.as_object().unwrap().len(), 2, "{told}");
    read(&told[T::MEMBER])
}

fn asked(revision: Revision, ask: &Ask) -> Value {
    let message = written(|out| write_ask(out, "an id", ask, revision));
    assert_eq!(message["id"], "an id");
    assert_eq!(message["method"], ask.kind().method());
    message.get("params").cloned().unwrap_or_default()
}

/// Forms whose fields are not in the order of their names.
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

/// What a client that can do this says when it greets, and what it is then known to be able to do.
fn greeted(revision: Revision, can: Capabilities) -> Capabilities {
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
    let greeting = decode_initialize(Some(&raw(greeting))).unwrap();
    assert_eq!(greeting.revision, revision);
    greeting.capabilities
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tool_result_survives_the_round_trip((revision, result) in known(tool_results)) {
        prop_assert_eq!(read::<ToolResult>(&told(revision, &result)), result);
    }

    #[test]
    fn prompt_result_survives_the_round_trip(
        (revision, content) in known(blocks),
        description in option::of(texts()),
    ) {
        let messages = vec![PromptMessage::user(content.clone()), PromptMessage::assistant(content)];
        let result = PromptResult { description, messages, meta: None };
        prop_assert_eq!(read::<PromptResult>(&told(revision, &result)), result);
    }

    #[test]
    fn resource_contents_survive_the_round_trip((revision, contents) in known(contents)) {
        let result = ReadResult { contents: vec![contents], ..ReadResult::default() };
        let told = told(revision, &result);
        prop_assert_eq!(read::<Vec<ResourceContents>>(&told["contents"]), result.contents);
    }

    #[test]
    fn lists_survive_the_round_trip(
        (revision, tool) in known(tools),
        (second, prompt) in known(prompts),
        (third, resource) in known(resources),
        (fourth, template) in known(templates),
    ) {
        prop_assert_eq!(listed(revision, from_ref(&tool)), [tool]);
        prop_assert_eq!(listed(second, from_ref(&prompt)), [prompt]);
        prop_assert_eq!(listed(third, from_ref(&resource)), [resource]);
        prop_assert_eq!(listed(fourth, from_ref(&template)), [template]);
    }

    #[test]
    fn result_meta_survives_the_round_trip(revision in revisions(), meta in objects()) {
        let id = raw("x");
        let body = ResultBody::from_members(json!({"completion": {"values": []}})).unwrap();
        let body = Reply::Complete(body.with_meta(&meta).unwrap());
        let message = written(|out| legacy::write_reply(out, Id::from_raw(&id).unwrap(), &body, revision));
        prop_assert_eq!(&message["result"]["completion"], &json!({"values": []}));
        let told = message["result"].get("_meta").cloned().unwrap_or(json!({}));
        prop_assert_eq!(told, Value::Object(meta));
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
        let told = written(|out| legacy::write_error(out, Some("7"), &error))["error"].clone();
        prop_assert_eq!(&told["code"], &json!(error.code.as_i32()));
        prop_assert_eq!(&told["message"], &json!(error.message));
        let data = error.data.map(|data| serde_json::from_str::<Value>(data.get()).unwrap());
        prop_assert_eq!(told.get("data"), data.as_ref());
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
        // Read as text: the order of the fields is the author's.
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
        let told: Message<'_> = serde_json::from_slice(&out).unwrap();
        prop_assert!(told.params.mode.is_none_or(|mode| mode == "form"));
        prop_assert_eq!(told.params.message, message);
        let read = Form::parse(told.params.requested_schema).unwrap();
        let again = Form::new(read.fields().iter().cloned());
        prop_assert_eq!(again.json().get(), form.json().get());
    }

    #[test]
    fn other_asks_survive_the_round_trip(
        (revision, content) in known(spoken),
        (message, url) in (texts(), texts()),
        system in option::of(texts()),
    ) {
        let told = asked(THIRD, &Ask::Url { message: message.clone(), url: url.clone() });
        let visit = json!({"mode": "url", "message": message, "url": url, "elicitationId": "an id"});
        prop_assert_eq!(told, visit);

        let mut params = SamplingParams::new(9).message(Role::User, content.clone());
        params.system_prompt = system;
        params = params.message(Role::Assistant, content).hint("a model").speed(0.5).temperature(0.25);
        let told = asked(revision, &Ask::Sampling(Box::new(params.clone())));
        prop_assert_eq!(read::<SamplingParams>(&told), params);
        prop_assert_eq!(asked(revision, &Ask::Roots), Value::Null);
    }

    #[test]
    fn answers_survive_the_round_trip(
        id in texts(),
        content in objects(),
        (text, root) in (texts(), texts()),
        why in texts(),
    ) {
        let content = raw(content);
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
        let refused = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -1, "message": why}});
        let refused = refused.to_string();
        let Ok(Message::Response(response)) = parse(refused.as_bytes()) else {
            panic!("not a response: {refused}");
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
        let agreed = SessionSettings {
            revision,
            capabilities: Capabilities { form, ..Capabilities::default() },
            log_level: Some(LogLevel::Error),
        };
        let params = raw(params);
        let call = legacy::decode_call(kind, Some(&params), agreed).unwrap();
        prop_assert_eq!((call.kind, call.target.as_ref()), (kind, target.as_str()));
        let read = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).unwrap();
        prop_assert_eq!(call.arguments.map(read), arguments.map(Value::Object));
        prop_assert_eq!(call.meta.progress_token.map(read), progress);
        prop_assert_eq!(call.meta.capabilities, agreed.capabilities);
        prop_assert_eq!(call.meta.log_level, agreed.log_level);
        prop_assert!(call.answers.is_none_or(|Answers(all)| all.is_empty()) && call.state.is_none());
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
        prop_assert_eq!(greeted(THIRD, can), can);
    }
}

#[test]
fn capabilities_missing_in_the_revision_are_lost() {
    let can = Capabilities {
        form: true,
        url: true,
        sampling: true,
        sampling_tools: true,
        sampling_context: false,
        roots: true,
        tasks: false,
    };
    let second = greeted(SECOND, can);
    assert!(second.form && !second.url && !second.sampling_tools);
    let first = greeted(FIRST, can);
    assert!(!first.form && !first.url && first.sampling && first.roots);
    // Before it could be declared, every client had it.
    assert!(first.sampling_context && second.sampling_context);
}

#[test]
fn cache_hints_are_lost() {
    let result = ReadResult {
        cache: Cache::public(Duration::from_secs(1)),
        ..ReadResult::default()
    };
    for revision in Revision::ALL {
        assert_eq!(told(revision, &result), json!({"contents": []}));
    }
}

#[test]
fn unsupported_structured_content_is_lost() {
    let structured = |value: Value| ToolResult {
        structured_content: Some(value),
        ..ToolResult::text("x")
    };
    for revision in Revision::ALL {
        let list: ToolResult = read(&told(revision, structured(json!([1]))));
        assert_eq!(list, ToolResult::text("x"));
        let object: ToolResult = read(&told(revision, structured(json!({"a": 1}))));
        assert_eq!(object.structured_content.is_some(), revision > FIRST);
        let tool = |kind: &str| ToolInfo {
            name: "t".to_owned(),
            output_schema: Some(json!({"type": kind})),
            ..ToolInfo::default()
        };
        let tools = listed(revision, &[tool("object"), tool("array")]);
        assert_eq!(tools[0].output_schema.is_some(), revision > FIRST);
        assert_eq!(tools[1].output_schema, None);
    }
}

#[test]
fn icons_and_execution_are_lost_before_2025_11_25() {
    let icons = || vec![Icon::new("https://example.com/i.png")];
    let task_support = TaskSupport::Optional;
    let tool = ToolInfo {
        icons: icons(),
        execution: Some(ToolExecution { task_support }),
        ..ToolInfo::default()
    };
    let prompt = PromptInfo {
        icons: icons(),
        ..PromptInfo::default()
    };
    let resource = ResourceInfo {
        icons: icons(),
        ..ResourceInfo::default()
    };
    let link = ResourceLink {
        icons: icons(),
        ..ResourceLink::new("a:b", "b")
    };
    let linked = ToolResult {
        content: vec![link.into()],
        ..ToolResult::default()
    };
    for revision in Revision::ALL {
        let has = revision == THIRD;
        let tools = listed(revision, from_ref(&tool));
        assert_eq!(!tools[0].icons.is_empty(), has);
        assert_eq!(tools[0].execution.is_some(), has);
        assert_eq!(
            !listed(revision, from_ref(&prompt))[0].icons.is_empty(),
            has
        );
        assert_eq!(
            !listed(revision, from_ref(&resource))[0].icons.is_empty(),
            has
        );
        let told = told(revision, &linked);
        assert_eq!(told["content"][0].get("icons").is_some(), has, "{told}");
    }
}

#[test]
fn server_description_is_lost_before_2025_11_25() {
    let info = json!({"name": "s", "title": "S", "version": "1", "description": "d",
        "websiteUrl": "https://example.com/", "icons": [{"src": "i"}]});
    let greeting = json!({"protocolVersion": "2025-03-26", "serverInfo": info});
    assert_eq!(told(THIRD, &greeting)["serverInfo"], info);
    let second = json!({"name": "s", "title": "S", "version": "1"});
    assert_eq!(told(SECOND, &greeting)["serverInfo"], second);
    let first = json!({"name": "s", "version": "1"});
    assert_eq!(told(FIRST, &greeting)["serverInfo"], first);
}

#[test]
fn titles_except_of_tools_are_lost_in_2025_03_26() {
    let tool = ToolInfo {
        name: "t".to_owned(),
        title: Some("T".to_owned()),
        ..ToolInfo::default()
    };
    let with = |title: Option<&str>| ToolAnnotations {
        title: title.map(str::to_owned),
        read_only_hint: Some(true),
        ..ToolAnnotations::default()
    };
    for (given, shown) in [
        (
            None,
            ToolAnnotations {
                read_only_hint: None,
                ..with(Some("T"))
            },
        ),
        (Some(with(None)), with(Some("T"))),
        (Some(with(Some("other"))), with(Some("other"))),
    ] {
        let tool = ToolInfo {
            annotations: given,
            ..tool.clone()
        };
        let told = &listed(FIRST, &[tool])[0];
        assert_eq!((&told.title, &told.annotations), (&None, &Some(shown)));
    }
    let prompt = PromptInfo {
        title: Some("P".to_owned()),
        arguments: vec![PromptArgument {
            title: Some("A".to_owned()),
            ..PromptArgument::default()
        }],
        ..PromptInfo::default()
    };
    let told = &listed(FIRST, from_ref(&prompt))[0];
    assert_eq!((&told.title, &told.arguments[0].title), (&None, &None));
    assert_eq!(listed(SECOND, from_ref(&prompt)), [prompt]);
}

#[test]
fn nested_meta_and_times_are_lost_in_2025_03_26() {
    let facts = || Some(json!({"a": 1}));
    let hints = Annotations {
        priority: Some(0.5),
        last_modified: Some("2025-01-01".to_owned()),
        ..Annotations::default()
    };
    let resource = ResourceContents::Text {
        uri: "a:b".to_owned(),
        mime_type: None,
        text: "x".to_owned(),
        meta: facts(),
    };
    let result = ToolResult {
        content: vec![
            Content::Text {
                text: "x".to_owned(),
                annotations: Some(hints),
                meta: facts(),
            },
            Content::resource(resource),
        ],
        ..ToolResult::default()
    };
    let content = json!([
        {"type": "text", "text": "x", "annotations": {"priority": 0.5}},
        {"type": "resource", "resource": {"uri": "a:b", "text": "x"}},
    ]);
    assert_eq!(told(FIRST, &result)["content"], content);
    assert_eq!(read::<ToolResult>(&told(SECOND, &result)), result);
}

#[test]
fn resource_links_become_texts_in_2025_03_26() {
    let link = Content::link("notes://today", "notes");
    let result = PromptResult {
        messages: vec![PromptMessage::user(link)],
        ..PromptResult::default()
    };
    let told: PromptResult = read(&told(FIRST, &result));
    let text = told.messages[0].content.as_text();
    assert_eq!(text, Some("notes: notes://today"));
}

#[test]
fn missing_resource_gets_the_legacy_error_code() {
    let error = RpcError::resource_not_found("a:b");
    let told = written(|out| legacy::write_error(out, Some("1"), &error));
    assert_eq!(told["error"]["code"], -32002);
    assert_ne!(error.code.as_i32(), -32002);
}

#[test]
fn message_blocks_are_split_before_2025_11_25() {
    let mut params = SamplingParams::new(9).user("one").user("two");
    let second = params.messages.remove(1);
    params.messages[0].content.extend(second.content);
    let ask = Ask::Sampling(Box::new(params.clone()));
    assert_eq!(read::<SamplingParams>(&asked(THIRD, &ask)), params);
    let apart = SamplingParams::new(9).user("one").user("two");
    for revision in [FIRST, SECOND] {
        assert_eq!(read::<SamplingParams>(&asked(revision, &ask)), apart);
    }
}

#[test]
fn untitled_choice_gets_its_value_as_title() {
    let schema = json!({"type": "object", "properties": {
        "z": {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "b"}]},
        "a": {"type": "string"},
    }});
    let text = r#"{"type":"object","properties":{"z":{"type":"string","oneOf":[{"const":"r","title":"Red"},{"const":"b"}]},"a":{"type":"string"}}}"#;
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), schema);
    let ask = Ask::Form {
        message: "Which?".to_owned(),
        schema: RawValue::from_string(text.to_owned()).unwrap().into(),
    };
    let mut out = Vec::new();
    write_ask(&mut out, "i", &ask, SECOND);
    let out = String::from_utf8(out).unwrap();
    let plain = r#""properties":{"z":{"type":"string","enum":["r","b"],"enumNames":["Red","b"]},"a":{"type":"string"}}"#;
    assert!(out.contains(plain), "{out}");
}
