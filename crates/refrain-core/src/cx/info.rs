//! Information about the caller, the client and the request.

use super::Cx;
use crate::{Principal, Trace};
use refrain_wire::Capability;

impl Cx {
    /// Returns the authenticated caller.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> String {
    /// cx.principal().id().unwrap_or("anonymous").to_owned()
    /// # }
    /// ```
    pub fn principal(&self) -> &Principal {
        &self.shared.env.principal
    }

    /// Returns the account under which this call is counted for limits: the principal, or the address of an anonymous
    /// caller.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # use std::collections::HashMap;
    /// # use refrain::auth::Principal;
    /// # fn example(cx: &Cx, downloads: &mut HashMap<Principal, u32>) -> Result<()> {
    /// let count = downloads.entry(cx.account()).or_default();
    /// *count += 1;
    /// if *count > 100 {
    ///     return Err(Error::msg("at most 100 downloads"));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn account(&self) -> Principal {
        let env = &self.shared.env;
        env.principal.account(env.address)
    }

    /// Returns the URI being read, in the handler of a resource.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<String> {
    /// Ok(format!("contents of {}", cx.uri().unwrap_or_default()))
    /// # }
    /// ```
    pub fn uri(&self) -> Option<&str> {
        self.shared.env.uri.as_deref()
    }

    /// Returns the trace context of this round, to propagate to other services.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// fn headers(cx: &Cx) -> Vec<(&'static str, String)> {
    ///     let trace = cx.trace();
    ///     let mut headers = vec![("traceparent", trace.traceparent().to_string())];
    ///     headers.extend(trace.tracestate().map(|state| ("tracestate", state.to_owned())));
    ///     headers
    /// }
    /// ```
    pub fn trace(&self) -> &Trace {
        &self.shared.trace
    }

    /// Returns whether the client supports forms.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # #[derive(Deserialize, Elicit)] struct Login { name: String }
    /// # async fn example(cx: Cx) -> Result<String> {
    /// if !cx.can_elicit() {
    ///     return Ok("Call this tool again with the argument `name`.".into());
    /// }
    /// let login: Login = cx.elicit("login", "What is your user name?").await?;
    /// Ok(login.name)
    /// # }
    /// ```
    pub fn can_elicit(&self) -> bool {
        self.shared.env.capabilities.has(Capability::Form)
    }

    /// Returns whether the client can open URLs.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # fn example(cx: &Cx) -> &'static str {
    /// if cx.can_elicit_url() { "a link opens" } else { "copy the link" }
    /// # }
    /// ```
    pub fn can_elicit_url(&self) -> bool {
        self.shared.env.capabilities.has(Capability::Url)
    }

    /// Returns whether the client supports sampling.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<String> {
    /// if !cx.can_sample() {
    ///     return Ok("no summary".into());
    /// }
    /// let params = SamplingParams::new(100).user("Summarize the report.");
    /// Ok(cx.sample("summary", params).await?.text())
    /// # }
    /// ```
    pub fn can_sample(&self) -> bool {
        self.shared.env.capabilities.has(Capability::Sampling)
    }

    /// Returns whether the client supports sampling with tools.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # fn example(cx: &Cx) -> u32 {
    /// if cx.can_sample_with_tools() { 2000 } else { 500 }
    /// # }
    /// ```
    pub fn can_sample_with_tools(&self) -> bool {
        self.shared.env.capabilities.has(Capability::SamplingTools)
    }

    /// Returns whether the client can list roots.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<usize> {
    /// let roots = if cx.can_list_roots() { cx.roots("roots").await? } else { Vec::new() };
    /// Ok(roots.len())
    /// # }
    /// ```
    pub fn can_list_roots(&self) -> bool {
        self.shared.env.capabilities.has(Capability::Roots)
    }

    /// Returns the settings of an extension that the client declared in this round.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # fn example(cx: &Cx) -> bool {
    /// cx.extension("com.example/charts").is_some_and(|settings| settings["svg"] == true)
    /// # }
    /// ```
    pub fn extension(&self, name: &str) -> Option<serde_json::Value> {
        let declared = self.shared.env.extensions.as_deref()?;
        let mut all: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(declared).ok()?;
        all.remove(name)
    }

    /// Returns the members of the request's `_meta` that neither the protocol nor Refrain reserves, so that a proxy can
    /// forward them. A task or a live call keeps the members of its first request.
    ///
    /// Left out are `progressToken`, the trace context, and keys with the prefix `refrain` or a prefix of the protocol, such
    /// as `io.modelcontextprotocol`.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # fn example(cx: &Cx) -> Option<serde_json::Value> {
    /// cx.meta().remove("com.example/tenant")
    /// # }
    /// ```
    pub fn meta(&self) -> serde_json::Map<String, serde_json::Value> {
        let sent = self.shared.env.meta.as_deref();
        let sent = sent.map(serde_json::from_str);
        sent.and_then(Result::ok).unwrap_or_default()
    }
}
