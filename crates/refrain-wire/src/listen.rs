//! `subscriptions/listen`: its params, and the messages of its stream, each with the id of the opening request.

use std::ops::Not;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::value::RawValue;

use crate::call::ResultBody;
use crate::canonical::JsonError;
use crate::envelope::Id;
use crate::error::RpcError;
use crate::members::{Members, Reader};
use crate::meta::{Meta, SERVER_INFO_KEY, SUBSCRIPTION_ID_KEY};
use crate::ratified::write_response_start;
use crate::write;

/// The parameters of `subscriptions/listen`.
#[derive(Debug, Clone)]
pub struct ListenParams<'a> {
    /// The `_meta` of the request.
    pub meta: Meta<'a>,
    /// The changes to report.
    pub filter: Filter,
}

/// The changes that a subscription reports.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Filter {
    /// The list of tools.
    #[serde(rename = "toolsListChanged", skip_serializing_if = "Not::not")]
    pub tools: bool,
    /// The list of prompts.
    #[serde(rename = "promptsListChanged", skip_serializing_if = "Not::not")]
    pub prompts: bool,
    /// The list of resources.
    #[serde(rename = "resourcesListChanged", skip_serializing_if = "Not::not")]
    pub resources: bool,
    /// Resources by URI, without duplicates.
    #[serde(
        rename = "resourceSubscriptions",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub uris: Vec<String>,
    /// Tasks by id, without duplicates.
    #[serde(rename = "taskIds", skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<String>,
}

/// A change that a subscription reports.
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
    let params = Reader::params(params, "_meta")?;
    let missing =
        || RpcError::invalid_params("notifications is missing; name the changes to listen for");
    Ok(ListenParams {
        meta: params.meta()?,
        filter: Filter::read(&params.object("notifications")?.ok_or_else(missing)?)?,
    })
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let members = Members::deserialize(deserializer)?;
        Self::read(&Reader::new(members, "notifications.")).map_err(Error::custom)
    }
}

impl Filter {
    fn read(members: &Reader<'_>) -> Result<Self, JsonError> {
        let flag = |name| -> Result<bool, JsonError> {
            Ok(members.value(name, "true or false")?.unwrap_or_default())
        };
        let texts = |name| -> Result<Vec<String>, JsonError> {
            let texts: Option<Vec<String>> = members.value(name, "an array of strings")?;
            let mut texts = texts.unwrap_or_default();
            texts.sort_unstable();
            texts.dedup();
            Ok(texts)
        };
        Ok(Self {
            tools: flag("toolsListChanged")?,
            prompts: flag("promptsListChanged")?,
            resources: flag("resourcesListChanged")?,
            uris: texts("resourceSubscriptions")?,
            tasks: texts("taskIds")?,
        })
    }
}

/// Writes the first message of a stream, which confirms the filter.
pub fn write_acknowledged(out: &mut Vec<u8>, id: Id<'_>, filter: &Filter) {
    notify(out, id, "notifications/subscriptions/acknowledged", |out| {
        out.extend_from_slice(b",\"notifications\":");
        write::json(out, filter);
    });
}

/// Writes a change notification.
pub fn write_change(out: &mut Vec<u8>, id: Id<'_>, change: Change<'_>) {
    notify(out, id, change_method(change), |out| {
        if let Change::Resource(uri) = change {
            out.extend_from_slice(b",\"uri\":");
            write::text(out, uri);
        }
    });
}

/// The method of a change notification.
pub(crate) const fn change_method(change: Change<'_>) -> &'static str {
    match change {
        Change::Tools => "notifications/tools/list_changed",
        Change::Prompts => "notifications/prompts/list_changed",
        Change::Resources => "notifications/resources/list_changed",
        Change::Resource(_) => "notifications/resources/updated",
    }
}

/// Writes a task notification with the members of [`TaskInfo::to_detailed`](crate::TaskInfo::to_detailed).
pub fn write_task_change(out: &mut Vec<u8>, id: Id<'_>, detailed: &ResultBody) {
    notify(out, id, "notifications/tasks", |out| {
        out.push(b',');
        detailed.write_members(out);
    });
}

/// Writes the notification that the server closes the stream. Must follow the response.
///
/// The protocol requires both but not their order. Clients stop at the first one and treat this one as an error.
pub fn write_listen_cancelled(out: &mut Vec<u8>, id: Id<'_>, reason: &str) {
    notify(out, id, "notifications/cancelled", |out| {
        out.extend_from_slice(b",\"requestId\":");
        out.extend_from_slice(id.as_json().as_bytes());
        out.extend_from_slice(b",\"reason\":");
        write::text(out, reason);
    });
}

/// Writes the response to `subscriptions/listen`, which closes the stream. Only [`write_listen_cancelled`] may follow.
pub fn write_listen_end(out: &mut Vec<u8>, id: Id<'_>, server_info: &RawValue) {
    write_response_start(out, Some(id.as_json()));
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

fn notify(out: &mut Vec<u8>, id: Id<'_>, method: &str, members: impl FnOnce(&mut Vec<u8>)) {
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
