//! What a server has.

use crate::client::{Client, Inner, Request, lock};
use crate::error::{Error, ErrorKind, RpcFailure};
use refrain_wire::{ErrorCode, Listed, PromptInfo, ResourceInfo, ResourceTemplateInfo, ToolInfo};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

impl Client {
    /// The tools of the server. One whose definition the protocol forbids is left out, with a warning.
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
                tracing::warn!(tool = tool.name, %why, "the tool is left out");
            }
            verdict.is_ok()
        });
        Ok(tools)
    }

    /// Finds out anew what the tools want in headers, and what they promise.
    pub(crate) async fn learn_tools(&self) -> Result<(), ErrorKind> {
        lock(&self.cache).forget("tools/list");
        self.tools().await.map(|_| ()).map_err(|error| error.kind)
    }

    /// All pages of a list. If the server no longer knows a page that it spoke of, the list is read anew.
    async fn list<T: Listed + DeserializeOwned>(
        &self,
        method: &'static str,
    ) -> Result<Vec<T>, Error> {
        let mut cursor = None;
        let listed = match self.pages(method, &mut cursor).await {
            Err(ErrorKind::Refused(refusal)) if cursor.is_some() && is_unknown(&refusal) => {
                lock(&self.cache).forget(method);
                self.pages(method, &mut None).await
            }
            listed => listed,
        };
        Ok(listed?)
    }

    /// Page after page of a list. `cursor` is where the last one begins.
    async fn pages<T: Listed + DeserializeOwned>(
        &self,
        method: &'static str,
        cursor: &mut Option<Value>,
    ) -> Result<Vec<T>, ErrorKind> {
        let mut items = Vec::new();
        for _ in 0..self.setup.limits.pages {
            let params = cursor.iter().map(|at| ("cursor".to_owned(), at.clone()));
            let page = self.cached(method, &params.collect()).await?;
            let listed = page.get(T::MEMBER).and_then(Value::as_array);
            let listed = listed.ok_or_else(|| {
                ErrorKind::BadAnswer(format!("{method} has no list of {}", T::MEMBER))
            })?;
            for item in listed {
                match T::deserialize(item) {
                    Ok(item) => items.push(item),
                    Err(error) => {
                        tracing::warn!(method, %error, "an entry of the list is left out");
                    }
                }
            }
            match page.get("nextCursor") {
                None | Some(Value::Null) => return Ok(items),
                Some(next) => *cursor = Some(next.clone()),
            }
        }
        let pages = self.setup.limits.pages;
        Err(ErrorKind::BadAnswer(format!(
            "{method} has more than {pages} pages"
        )))
    }

    /// The result of a request that changes nothing; one that is still fresh is used again.
    pub(crate) async fn cached(
        &self,
        method: &'static str,
        params: &Map<String, Value>,
    ) -> Result<Value, ErrorKind> {
        if let Some(result) = self.kept(method, params) {
            return Ok(result);
        }
        let authorization = self.link.authorization();
        let raw = self
            .request(&Request::harmless(method, params.clone()))
            .await?;
        let result = crate::rounds::complete(&raw)?;
        self.keep(authorization, method, params, &result);
        Ok(result)
    }

    /// What was kept of a request, if it is still fresh.
    pub(crate) fn kept(&self, method: &str, params: &Map<String, Value>) -> Option<Value> {
        let mut cache = lock(&self.cache);
        cache.under(self.link.authorization()).get(method, params)
    }

    /// Keeps a result, unless the authorization has changed since it was asked for.
    pub(crate) fn keep(
        &self,
        authorization: u64,
        method: &str,
        params: &Map<String, Value>,
        result: &Value,
    ) {
        if self.link.authorization() == authorization {
            let mut cache = lock(&self.cache);
            cache.under(authorization).keep(method, params, result);
        }
    }
}

/// Whether a server refused a cursor that it does not know.
fn is_unknown(refusal: &RpcFailure) -> bool {
    refusal.code == i64::from(ErrorCode::InvalidParams.as_i32())
}
