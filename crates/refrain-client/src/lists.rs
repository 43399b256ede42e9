//! Lists of a server's tools, prompts, resources and resource templates.

use crate::client::{Client, ClientInner, ListedTool};
use crate::error::{Error, ErrorKind};
use crate::large_message;
use crate::limits::{ClientLimits, count_values};
use refrain_wire::client::{AsSent, ReadError, Request, read_complete};
use refrain_wire::limited_event;
use refrain_wire::{
    ErrorCode, ListEntry, PromptInfo, ResourceInfo, ResourceTemplateInfo, SkillInfo, ToolInfo,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The maximum length of a cursor as JSON, in bytes.
const CURSOR_MAX: usize = 64 * 1024;

impl Client {
    /// Lists the tools of the server. Tools with invalid definitions are skipped with a warning.
    pub async fn tools(&self) -> Result<Vec<AsSent<ToolInfo>>, Error> {
        self.inner.tools().await
    }

    /// Lists the prompts of the server.
    pub async fn prompts(&self) -> Result<Vec<AsSent<PromptInfo>>, Error> {
        self.inner.list("prompts/list").await
    }

    /// Lists the resources of the server.
    pub async fn resources(&self) -> Result<Vec<AsSent<ResourceInfo>>, Error> {
        self.inner.list("resources/list").await
    }

    /// Lists the resource templates of the server.
    pub async fn resource_templates(&self) -> Result<Vec<AsSent<ResourceTemplateInfo>>, Error> {
        self.inner.list("resources/templates/list").await
    }

    /// Lists the skills of the server, if it has the Skills extension. A skill may exist without being listed. Read its files
    /// as resources, and check their digests.
    pub async fn skills(&self) -> Result<Vec<AsSent<SkillInfo>>, Error> {
        self.inner.list("skills/list").await
    }
}

impl ClientInner {
    async fn tools(&self) -> Result<Vec<AsSent<ToolInfo>>, Error> {
        let mut tools: Vec<AsSent<ToolInfo>> = self.list("tools/list").await?;
        let mut listed = HashMap::with_capacity(tools.len());
        tools.retain(|tool| {
            let read = ListedTool::read(tool);
            if let Err(why) = &read {
                limited_event!(WARN, tool = tool.name, %why, "invalid tool skipped");
            }
            let is_valid = read.is_ok();
            listed.insert(tool.name.clone(), read);
            is_valid
        });
        *self.connection.tools.lock() = listed;
        Ok(tools)
    }

    /// Lists the tools again, bypassing the cache.
    pub(crate) async fn reload_tools(&self) -> Result<(), ErrorKind> {
        self.connection.cache.lock().invalidate("tools/list");
        self.tools().await.map(|_| ()).map_err(|error| error.kind)
    }

    /// All pages of a list. If the server rejects a cursor, starts once more from the first page.
    async fn list<T: ListEntry + DeserializeOwned + Send + 'static>(
        &self,
        method: &'static str,
    ) -> Result<Vec<AsSent<T>>, Error> {
        let mut cursor = None;
        let listed = match self.pages(method, &mut cursor).await {
            Err(ErrorKind::Rpc(failure))
                if cursor.is_some() && failure.is(ErrorCode::InvalidParams) =>
            {
                self.connection.cache.lock().invalidate(method);
                self.pages(method, &mut None).await
            }
            listed => listed,
        };
        Ok(listed?)
    }

    /// Reads the pages of a list. Sets `cursor` to the cursor of the last page.
    async fn pages<T: ListEntry + DeserializeOwned + Send + 'static>(
        &self,
        method: &'static str,
        cursor: &mut Option<Value>,
    ) -> Result<Vec<AsSent<T>>, ErrorKind> {
        let limits = &self.setup.limits;
        let mut items = Vec::new();
        let mut size = ListSize::default();
        for _ in 0..limits.pages {
            let cursor_param = cursor.iter().map(|cursor| ("cursor", cursor.clone()));
            let request = Request::new(method, cursor_param);
            let (raw, page) = self.request_cached(request).await?;
            let limits = limits.clone();
            let page = large_message::parse(raw.get().len(), move || {
                Page::read(&raw, page, method, size, &limits)
            })
            .await?;
            items.extend(page.items);
            size = page.size;
            match page.next {
                None => return Ok(items),
                next => *cursor = next,
            }
        }
        let setting = "ClientLimits::pages";
        Err(ErrorKind::too_large("list", limits.pages, "pages", setting))
    }

    /// Sends a request without side effects, unless its result is cached.
    async fn request_cached(&self, request: Request) -> Result<(Box<RawValue>, Value), ErrorKind> {
        if let Some(raw) = self.cached(&request) {
            let result = read_complete(&raw)?;
            return Ok((raw, result));
        }
        let authorization = self.connection.link.authorization_changes();
        let raw = self.request(request.clone()).await?;
        let (raw, result) = large_message::parse(raw.get().len(), move || {
            let result = read_complete(&raw);
            (raw, result)
        })
        .await;
        let result = result?;
        self.store_cached(authorization, &request, &raw, &result);
        Ok((raw, result))
    }

    pub(crate) fn cached(&self, request: &Request) -> Option<Box<RawValue>> {
        let mut cache = self.connection.cache.lock();
        cache
            .for_authorization(self.connection.link.authorization_changes())
            .get(request)
    }

    /// Caches a result, unless the authorization has changed since the request.
    pub(crate) fn store_cached(
        &self,
        authorization: u64,
        request: &Request,
        raw: &RawValue,
        result: &Value,
    ) {
        let ttl = result.get("ttlMs").and_then(Value::as_u64).unwrap_or(0);
        if ttl > 0 && self.connection.link.authorization_changes() == authorization {
            let mut cache = self.connection.cache.lock();
            cache
                .for_authorization(authorization)
                .store(request, raw, Duration::from_millis(ttl));
        }
    }
}

/// A page of a list.
struct Page<T> {
    items: Vec<AsSent<T>>,
    /// The size of the list so far, with this page.
    size: ListSize,
    next: Option<Value>,
}

impl<T: ListEntry + DeserializeOwned> Page<T> {
    /// Reads a page from its text and its parsed form, which is dropped before the entries are read.
    fn read(
        raw: &RawValue,
        parsed: Value,
        method: &str,
        mut size: ListSize,
        limits: &ClientLimits,
    ) -> Result<Self, ErrorKind> {
        size.add(raw, &parsed);
        drop(parsed);
        let (entries, next) = split_page(raw, method, T::MEMBER)?;
        size.entries += entries.len();
        size.check(limits)?;
        let mut invalid = None;
        let items = entries.into_iter().filter_map(|entry| {
            let read = AsSent::read(entry);
            read.map_err(|error| invalid = Some(error)).ok()
        });
        let items = items.collect();
        if let Some(error) = invalid {
            limited_event!(WARN, method, %error, "invalid list entries skipped");
        }
        Ok(Self { items, size, next })
    }
}

/// The entries of a page as sent, and the cursor of the next page.
fn split_page<'a>(
    page: &'a RawValue,
    method: &str,
    member: &str,
) -> Result<(Vec<&'a RawValue>, Option<Value>), ReadError> {
    let members: BTreeMap<String, &RawValue> =
        serde_json::from_str(page.get()).map_err(|_| ReadError::NotAnObject)?;
    let no_array =
        || ReadError::Unexpected(format!("the result of {method} has no array {member:?}"));
    let entries = members.get(member).ok_or_else(no_array)?;
    let entries = serde_json::from_str(entries.get()).map_err(|_| no_array())?;
    let next = members.get("nextCursor");
    if next.is_some_and(|next| next.get().len() > CURSOR_MAX) {
        let why = format!("the nextCursor of {method} is longer than {CURSOR_MAX} bytes");
        return Err(ReadError::Unexpected(why));
    }
    let next = next.and_then(|next| serde_json::from_str(next.get()).ok());
    Ok((entries, next.filter(|next: &Value| !next.is_null())))
}

/// The size of a list over all its pages.
#[derive(Clone, Copy, Default)]
struct ListSize {
    bytes: usize,
    values: usize,
    entries: usize,
}

impl ListSize {
    fn add(&mut self, raw: &RawValue, page: &Value) {
        self.bytes += raw.get().len();
        self.values += count_values(page);
    }

    fn check(&self, limits: &ClientLimits) -> Result<(), ErrorKind> {
        let sizes = [
            (self.bytes, limits.message, "bytes", "ClientLimits::message"),
            (
                self.values,
                limits.values,
                "JSON values",
                "ClientLimits::values",
            ),
            (
                self.entries,
                limits.entries,
                "entries",
                "ClientLimits::entries",
            ),
        ];
        match sizes.into_iter().find(|(size, limit, ..)| size > limit) {
            Some((_, limit, unit, setting)) => {
                Err(ErrorKind::too_large("list", limit, unit, setting))
            }
            None => Ok(()),
        }
    }
}
