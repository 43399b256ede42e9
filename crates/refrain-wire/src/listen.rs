//! `subscriptions/listen`: what a client wants to hear of, and the messages of its stream.
//!
//! What always holds: every message of a stream carries the id of the request that opened it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

use crate::call::ResultBody;
use crate::decode::{Text, once, once_nested, params as read_params, skip};
use crate::envelope::Id;
use crate::error::RpcError;
use crate::meta::{Meta, SERVER_INFO_KEY, SUBSCRIPTION_ID_KEY};
use crate::ratified::{missing_meta, open};
use crate::write;

/// The parameters of `subscriptions/listen`.
#[derive(Debug, Clone)]
pub struct ListenParams<'a> {
    /// What the request says about itself and its sender.
    pub meta: Meta<'a>,
    /// What the client wants to hear of.
    pub filter: Filter,
}

/// What a subscription is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// The list of tools changed.
    pub tools: bool,
    /// The list of prompts changed.
    pub prompts: bool,
    /// The list of resources changed.
    pub resources: bool,
    /// The resources at these URIs changed; each is there once.
    pub uris: Vec<String>,
    /// The tasks of these ids changed; each is there once.
    pub tasks: Vec<String>,
}

/// Something a subscription tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// The list of tools changed.
    Tools,
    /// The list of prompts changed.
    Prompts,
    /// The list of resources, or of their templates, changed.
    Resources,
    /// The resource at this URI changed.
    Resource(&'a str),
}

/// Reads the params of `subscriptions/listen`.
pub fn decode_listen<'a>(params: Option<&'a RawValue>) -> Result<ListenParams<'a>, RpcError> {
    read_params(params)
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum ParamsKey {
    Notifications,
    #[serde(rename = "_meta")]
    Meta,
    #[serde(other)]
    Other,
}

impl<'de: 'a, 'a> Deserialize<'de> for ListenParams<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ParamsVisitor;
        impl<'de> Visitor<'de> for ParamsVisitor {
            type Value = ListenParams<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("params as an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut meta: Option<Meta<'de>> = None;
                let mut filter: Option<Filter> = None;
                while let Some(key) = map.next_key()? {
                    match key {
                        ParamsKey::Meta => once_nested(&mut map, &mut meta, "_meta")?,
                        ParamsKey::Notifications => {
                            once_nested(&mut map, &mut filter, "notifications")?;
                        }
                        ParamsKey::Other => skip(&mut map)?,
                    }
                }
                Ok(ListenParams {
                    meta: meta.ok_or_else(missing_meta)?,
                    filter: filter.ok_or_else(|| {
                        serde::de::Error::custom("notifications is missing; say what to listen for")
                    })?,
                })
            }
        }
        deserializer.deserialize_map(ParamsVisitor)
    }
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum FilterKey {
    ToolsListChanged,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceSubscriptions,
    TaskIds,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FilterVisitor;
        impl<'de> Visitor<'de> for FilterVisitor {
            type Value = Filter;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("notifications as an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Filter, A::Error> {
                const BOOL: &str = "true or false";
                const TEXTS: &str = "an array of strings";
                let (mut tools, mut prompts, mut resources) = (None, None, None);
                let mut uris: Option<Vec<Text<'de>>> = None;
                let mut tasks: Option<Vec<Text<'de>>> = None;
                while let Some(key) = map.next_key()? {
                    match key {
                        FilterKey::ToolsListChanged => {
                            once(&mut map, &mut tools, "notifications.toolsListChanged", BOOL)?;
                        }
                        FilterKey::PromptsListChanged => {
                            let name = "notifications.promptsListChanged";
                            once(&mut map, &mut prompts, name, BOOL)?;
                        }
                        FilterKey::ResourcesListChanged => {
                            let name = "notifications.resourcesListChanged";
                            once(&mut map, &mut resources, name, BOOL)?;
                        }
                        FilterKey::ResourceSubscriptions => {
                            let name = "notifications.resourceSubscriptions";
                            once(&mut map, &mut uris, name, TEXTS)?;
                        }
                        FilterKey::TaskIds => {
                            once(&mut map, &mut tasks, "notifications.taskIds", TEXTS)?;
                        }
                        FilterKey::Other => skip(&mut map)?,
                    }
                }
                Ok(Filter {
                    tools: tools.unwrap_or_default(),
                    prompts: prompts.unwrap_or_default(),
                    resources: resources.unwrap_or_default(),
                    uris: each_once(uris),
                    tasks: each_once(tasks),
                })
            }
        }
        deserializer.deserialize_map(FilterVisitor)
    }
}

/// These texts in order, each of them once.
fn each_once(texts: Option<Vec<Text<'_>>>) -> Vec<String> {
    let texts = texts.unwrap_or_default().into_iter();
    let mut texts: Vec<String> = texts.map(|Text(text)| text.into_owned()).collect();
    texts.sort_unstable();
    texts.dedup();
    texts
}

impl Serialize for Filter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let lists = [
            ("toolsListChanged", self.tools),
            ("promptsListChanged", self.prompts),
            ("resourcesListChanged", self.resources),
        ];
        let mut map = serializer.serialize_map(None)?;
        for (name, _) in lists.iter().filter(|(_, wanted)| *wanted) {
            map.serialize_entry(name, &true)?;
        }
        if !self.uris.is_empty() {
            map.serialize_entry("resourceSubscriptions", &self.uris)?;
        }
        if !self.tasks.is_empty() {
            map.serialize_entry("taskIds", &self.tasks)?;
        }
        map.end()
    }
}

/// Writes the first message of a stream: what of the client's wishes it will tell.
pub fn write_acknowledged(out: &mut Vec<u8>, id: Id<'_>, filter: &Filter) {
    notification(out, id, "notifications/subscriptions/acknowledged", |out| {
        out.extend_from_slice(b",\"notifications\":");
        write::json(out, filter);
    });
}

/// Writes that something changed.
pub fn write_change(out: &mut Vec<u8>, id: Id<'_>, change: Change<'_>) {
    notification(out, id, change_method(change), |out| {
        if let Change::Resource(uri) = change {
            out.extend_from_slice(b",\"uri\":");
            write::text(out, uri);
        }
    });
}

/// The method by which a client is told of a change.
pub(crate) const fn change_method(change: Change<'_>) -> &'static str {
    match change {
        Change::Tools => "notifications/tools/list_changed",
        Change::Prompts => "notifications/prompts/list_changed",
        Change::Resources => "notifications/resources/list_changed",
        Change::Resource(_) => "notifications/resources/updated",
    }
}

/// Writes that a task changed, with all that [`TaskInfo::to_detailed`](crate::TaskInfo::to_detailed) says of it.
pub fn write_task_change(out: &mut Vec<u8>, id: Id<'_>, detailed: &ResultBody) {
    notification(out, id, "notifications/tasks", |out| {
        out.push(b',');
        out.extend_from_slice(detailed.members().as_bytes());
    });
}

/// Writes that the server ends the stream: the last message of it, after the response.
///
/// The protocol wants both and gives no order. Clients take the first of them for the end, and this one for an unclean
/// end; so it comes second, although the response should be the last message of a stream.
pub fn write_listen_cancelled(out: &mut Vec<u8>, id: Id<'_>, reason: &str) {
    notification(out, id, "notifications/cancelled", |out| {
        out.extend_from_slice(b",\"requestId\":");
        out.extend_from_slice(id.as_json().as_bytes());
        out.extend_from_slice(b",\"reason\":");
        write::text(out, reason);
    });
}

/// Writes the response to `subscriptions/listen`, which is how its stream ends. Only
/// [`write_listen_cancelled`] comes after it.
pub fn write_listen_end(out: &mut Vec<u8>, id: Id<'_>, server_info: &RawValue) {
    open(out, Some(id.as_json()));
    out.extend_from_slice(br#","result":{"resultType":"complete","_meta":{""#);
    out.extend_from_slice(SUBSCRIPTION_ID_KEY.as_bytes());
    out.extend_from_slice(b"\":");
    out.extend_from_slice(id.as_json().as_bytes());
    out.extend_from_slice(b",\"");
    out.extend_from_slice(SERVER_INFO_KEY.as_bytes());
    out.extend_from_slice(b"\":");
    out.extend_from_slice(server_info.get().as_bytes());
    out.extend_from_slice(b"}}}");
}

fn notification(out: &mut Vec<u8>, id: Id<'_>, method: &str, members: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","method":""#);
    out.extend_from_slice(method.as_bytes());
    out.extend_from_slice(br#"","params":{"_meta":{""#);
    out.extend_from_slice(SUBSCRIPTION_ID_KEY.as_bytes());
    out.extend_from_slice(b"\":");
    out.extend_from_slice(id.as_json().as_bytes());
    out.push(b'}');
    members(out);
    out.extend_from_slice(b"}}");
}
