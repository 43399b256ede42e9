//! The lists of a server: tools, prompts, resources, resource templates.

use crate::client::{Client, Inner};
use crate::error::{Error, ErrorKind};
use refrain_wire::client::{ReadError, Request, read_complete};
use refrain_wire::{
    ErrorCode, ListEntry, PromptInfo, ResourceInfo, ResourceTemplateInfo, ToolInfo,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

impl Client {
    /// The tools of the server. Invalid ones are left out, with a warning.
    pub async fn tools(&self) -> Result<Vec<ToolInfo>, Error> {
        self.inner.tools().await
    }

    /// The prompts of the server.
    pub async fn prompts(&self) -> Result<Vec<PromptInfo>, Error> {
        self.inner.list("prompts/list").await
    }

    /// The resources of the server.
    pub async fn resources(&self) -> Result<Vec<ResourceInfo>, Error> {
        self.inner.list("resources/list").await
    }

    /// The templates of the server's resources.
    pub async fn resource_templates(&self) -> Result<Vec<ResourceTemplateInfo>, Error> {
        self.inner.list("resources/templates/list").await
    }
}

impl Inner {
    async fn tools(&self) -> Result<Vec<ToolInfo>, Error> {
        let mut tools: Vec<ToolInfo> = self.list("tools/list").await?;
        tools.retain(|tool| {
            let verdict = self.remember_tool(tool);
            if let Err(why) = &verdict {
                tracing::warn!(tool = tool.name, %why, "invalid tool left out");
            }
            verdict.is_ok()
        });
        Ok(tools)
    }

    /// Lists the tools again, past the cache.
    pub(crate) async fn reload_tools(&self) -> Result<(), ErrorKind> {
        self.cache.lock().forget("tools/list");
        self.tools().await.map(|_| ()).map_err(|error| error.kind)
    }

    /// All pages of a list. If the server rejects a cursor, the list is read again from the start.
    async fn list<T: ListEntry + DeserializeOwned>(
        &self,
        method: &'static str,
    ) -> Result<Vec<T>, Error> {
        let mut cursor = None;
        let listed = match self.pages(method, &mut cursor).await {
            Err(ErrorKind::Refused(refusal))
                if cursor.is_some() && refusal.is(ErrorCode::InvalidParams) =>
            {
                self.cache.lock().forget(method);
                self.pages(method, &mut None).await
            }
            listed => listed,
        };
        Ok(listed?)
    }

    /// The pages of a list. `cursor` is that of the last page.
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
                ReadError::Unexpected(format!("{method} has no list of {}", T::MEMBER))
            })?;
            for item in listed {
                match T::deserialize(item) {
                    Ok(item) => items.push(item),
                    Err(error) => {
                        tracing::warn!(method, %error, "invalid list entry left out");
                    }
                }
            }
            match page.get("nextCursor") {
                None | Some(Value::Null) => return Ok(items),
                Some(next) => *cursor = Some(next.clone()),
            }
        }
        let pages = self.setup.limits.pages;
        let why = format!("{method} has more than {pages} pages");
        Err(ReadError::Unexpected(why).into())
    }

    /// The result of a request without side effects, from the cache if it is fresh.
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

    /// The cached result of a request, if it is fresh.
    pub(crate) fn cached(&self, request: &Request) -> Option<Value> {
        let mut cache = self.cache.lock();
        cache.under(self.link.authorization()).get(request)
    }

    /// Caches a result, unless the authorization has changed since the request.
    pub(crate) fn store_cached(&self, authorization: u64, request: &Request, result: &Value) {
        if self.link.authorization() == authorization {
            let mut cache = self.cache.lock();
            cache.under(authorization).store(request, result);
        }
    }
}
