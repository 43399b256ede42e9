//! Lists of a server's tools, prompts, resources and resource templates.

use crate::client::{Client, ClientInner};
use crate::error::{Error, ErrorKind};
use refrain_wire::client::{ReadError, Request, read_complete};
use refrain_wire::{
    ErrorCode, ListEntry, PromptInfo, ResourceInfo, ResourceTemplateInfo, ToolInfo,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

impl Client {
    /// Lists the tools of the server. Tools with invalid definitions are skipped with a warning.
    pub async fn tools(&self) -> Result<Vec<ToolInfo>, Error> {
        self.inner.tools().await
    }

    /// Lists the prompts of the server.
    pub async fn prompts(&self) -> Result<Vec<PromptInfo>, Error> {
        self.inner.list("prompts/list").await
    }

    /// Lists the resources of the server.
    pub async fn resources(&self) -> Result<Vec<ResourceInfo>, Error> {
        self.inner.list("resources/list").await
    }

    /// Lists the resource templates of the server.
    pub async fn resource_templates(&self) -> Result<Vec<ResourceTemplateInfo>, Error> {
        self.inner.list("resources/templates/list").await
    }
}

impl ClientInner {
    async fn tools(&self) -> Result<Vec<ToolInfo>, Error> {
        let mut tools: Vec<ToolInfo> = self.list("tools/list").await?;
        tools.retain(|tool| {
            let recorded = self.record_tool(tool);
            if let Err(why) = &recorded {
                tracing::warn!(tool = tool.name, %why, "invalid tool skipped");
            }
            recorded.is_ok()
        });
        Ok(tools)
    }

    /// Lists the tools again, bypassing the cache.
    pub(crate) async fn reload_tools(&self) -> Result<(), ErrorKind> {
        self.cache.lock().invalidate("tools/list");
        self.tools().await.map(|_| ()).map_err(|error| error.kind)
    }

    /// All pages of a list. If the server rejects a cursor, starts once more from the first page.
    async fn list<T: ListEntry + DeserializeOwned>(
        &self,
        method: &'static str,
    ) -> Result<Vec<T>, Error> {
        let mut cursor = None;
        let listed = match self.pages(method, &mut cursor).await {
            Err(ErrorKind::Rpc(failure))
                if cursor.is_some() && failure.is(ErrorCode::InvalidParams) =>
            {
                self.cache.lock().invalidate(method);
                self.pages(method, &mut None).await
            }
            listed => listed,
        };
        Ok(listed?)
    }

    /// Reads the pages of a list. Leaves the cursor of the last page in `cursor`.
    async fn pages<T: ListEntry + DeserializeOwned>(
        &self,
        method: &'static str,
        cursor: &mut Option<Value>,
    ) -> Result<Vec<T>, ErrorKind> {
        let mut items = Vec::new();
        for _ in 0..self.setup.limits.pages {
            let cursor_param = cursor.iter().map(|at| ("cursor", at.clone()));
            let page = self
                .request_cached(Request::new(method, cursor_param))
                .await?;
            let listed = page.get(T::MEMBER).and_then(Value::as_array);
            let listed = listed.ok_or_else(|| {
                ReadError::Unexpected(format!(
                    "the result of {method} has no array {:?}",
                    T::MEMBER
                ))
            })?;
            for item in listed {
                match T::deserialize(item) {
                    Ok(item) => items.push(item),
                    Err(error) => {
                        tracing::warn!(method, %error, "invalid list entry skipped");
                    }
                }
            }
            match page.get("nextCursor") {
                None | Some(Value::Null) => return Ok(items),
                Some(next) => *cursor = Some(next.clone()),
            }
        }
        let pages = self.setup.limits.pages;
        let why = format!("{method} returned more than {pages} pages");
        Err(ReadError::Unexpected(why).into())
    }

    /// Sends a request without side effects, unless its result is cached.
    async fn request_cached(&self, request: Request) -> Result<Value, ErrorKind> {
        if let Some(result) = self.cached(&request) {
            return Ok(result);
        }
        let authorization = self.link.authorization();
        let raw = self.request(request.clone()).await?;
        let result = read_complete(&raw)?;
        self.store_cached(authorization, &request, &result);
        Ok(result)
    }

    pub(crate) fn cached(&self, request: &Request) -> Option<Value> {
        let mut cache = self.cache.lock();
        cache
            .for_authorization(self.link.authorization())
            .get(request)
    }

    /// Caches a result, unless the authorization has changed since the request.
    pub(crate) fn store_cached(&self, authorization: u64, request: &Request, result: &Value) {
        if self.link.authorization() == authorization {
            let mut cache = self.cache.lock();
            cache
                .for_authorization(authorization)
                .store(request, result);
        }
    }
}
