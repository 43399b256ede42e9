//! The entries that a handler lists, registered in a Refrain server.

use crate::asks::{call_failed, convert};
use crate::connection::Connection;
use crate::handler::{RmcpHandler, Target};
use parking_lot::Mutex;
use refrain::prelude::*;
use refrain::runtime::wire::client::AsSent;
use refrain::runtime::wire::{
    CallKind, Completion, PromptInfo, ResourceInfo, ResourceTemplateInfo, ToolInfo,
};
use refrain::server::{Changes, CompletionInput, Listing, Prompt, Resource, ResourceTemplate};
use rmcp::ErrorData;
use rmcp::model::{
    ArgumentInfo, ClientCapabilities, ClientRequest, CompleteRequest, CompleteRequestParams,
    CompletionContext, Reference, ServerJsonRpcMessage, ServerNotification, ServerResult,
};
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The names of all entries that a handler has offered so far, each with the number of its
/// [`Listing`].
#[derive(Default)]
pub(crate) struct OfferedNames(Mutex<BTreeSet<(u8, String)>>);

/// The arguments of a call, which the handler checks.
type Arguments = Map<String, Value>;

const LISTINGS: [Listing; 4] = [
    Listing::Tools,
    Listing::Prompts,
    Listing::Resources,
    Listing::ResourceTemplates,
];

impl RmcpHandler {
    /// The entries of all lists.
    pub(crate) async fn list_all(self: &Arc<Self>) -> Changes {
        self.list(&LISTINGS).await
    }

    /// Applies a notification that concerns all clients of the server.
    pub(crate) fn apply(self: &Arc<Self>, server: &Server, notification: &ServerNotification) {
        let changed: &'static [Listing] = match notification {
            ServerNotification::ToolListChangedNotification(_) => &[Listing::Tools],
            ServerNotification::PromptListChangedNotification(_) => &[Listing::Prompts],
            ServerNotification::ResourceListChangedNotification(_) => {
                &[Listing::Resources, Listing::ResourceTemplates]
            }
            ServerNotification::ResourceUpdatedNotification(updated) => {
                return server.resource_updated(&updated.params.uri);
            }
            _ => return,
        };
        let (handler, server) = (self.clone(), server.clone());
        // A separate Tokio task, since the call may end before the lists are read.
        tokio::spawn(async move {
            let _one_at_a_time = handler.refresh.lock().await;
            if let Err(error) = server.change(handler.list(changed).await) {
                tracing::error!(%error, "failed to register the entries of a handler");
            }
        });
    }

    /// Changes that replace the offered entries of these lists by the current ones. A list that fails is logged and not changed.
    async fn list(self: &Arc<Self>, listings: &[Listing]) -> Changes {
        let mut changes = Changes::new();
        for listing in listings {
            let (method, member) = wire_names(*listing);
            match self.read_list(method, member).await {
                Ok(entries) => {
                    changes = self.remove_offered(changes, *listing);
                    for entry in entries {
                        changes = self.offer(changes, *listing, &entry);
                    }
                }
                Err(error) => tracing::error!(%error, method, "handler failed to list its entries"),
            }
        }
        changes.skip_invalid()
    }

    /// Reads all pages of a list.
    async fn read_list(&self, method: &str, member: &str) -> Result<Vec<Box<RawValue>>, ErrorData> {
        let mut entries = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let request = match cursor.is_null() {
                true => json!({"method": method}),
                false => json!({"method": method, "params": {"cursor": cursor}}),
            };
            let request: ClientRequest = convert(&request)?;
            let mut page: Value = convert(&self.request(request).await?)?;
            if let Value::Array(items) = page[member].take() {
                let items = items.iter().filter_map(|item| to_raw_value(item).ok());
                entries.extend(items);
            }
            cursor = page["nextCursor"].take();
            if cursor.is_null() {
                return Ok(entries);
            }
        }
    }

    /// Sends a request outside of a call. Requests that the handler sends meanwhile fail.
    async fn request(&self, request: ClientRequest) -> Result<ServerResult, ErrorData> {
        let mut connection = Connection::open(ClientCapabilities::default());
        let mut running = self.service.handle_request(request, connection.context());
        loop {
            let message = tokio::select! {
                result = &mut running => return result,
                message = connection.from_handler.recv() => message,
            };
            match message {
                Some(ServerJsonRpcMessage::Request(message)) => {
                    let error = ErrorData::invalid_request("this request belongs to no call", None);
                    connection.answer(message.id, Err(error));
                }
                Some(_) => {}
                None => return running.await,
            }
        }
    }

    fn offer(self: &Arc<Self>, changes: Changes, listing: Listing, entry: &RawValue) -> Changes {
        let (name, changes) = match listing {
            Listing::Tools => match read_entry::<ToolInfo>(entry) {
                Some(entry) => (entry.name.clone(), changes.tool(self.tool(&entry))),
                None => return changes,
            },
            Listing::Prompts => match read_entry::<PromptInfo>(entry) {
                Some(entry) => (entry.name.clone(), changes.prompt(self.prompt(&entry))),
                None => return changes,
            },
            Listing::Resources => match read_entry::<ResourceInfo>(entry) {
                Some(entry) => (entry.uri.clone(), changes.resource(self.resource(&entry))),
                None => return changes,
            },
            Listing::ResourceTemplates => match read_entry::<ResourceTemplateInfo>(entry) {
                Some(entry) => {
                    let changes = changes.resource_template(self.template(&entry));
                    (entry.uri_template.clone(), changes)
                }
                None => return changes,
            },
        };
        self.offered.add(listing, name);
        changes
    }

    fn remove_offered(&self, mut changes: Changes, listing: Listing) -> Changes {
        for name in self.offered.names(listing) {
            changes = match listing {
                Listing::Tools => changes.remove_tool(name),
                Listing::Prompts => changes.remove_prompt(name),
                Listing::Resources => changes.remove_resource(name),
                Listing::ResourceTemplates => changes.remove_resource_template(name),
            };
        }
        changes
    }

    fn target(self: &Arc<Self>, kind: CallKind) -> Target {
        let handler = self.clone();
        Target { handler, kind }
    }

    fn tool(self: &Arc<Self>, sent: &AsSent<ToolInfo>) -> Tool {
        let (target, name) = (self.target(CallKind::Tool), sent.name.clone());
        let handler = move |cx: Cx, server: State<Server>, arguments: Arguments| {
            let (target, name) = (target.clone(), name.clone());
            async move { target.call(cx, &server, &name, &arguments).await }
        };
        let mut tool = Tool::new(&sent.name, handler).listing(sent);
        if !self.replay.contains(&sent.name) {
            tool = tool.live();
        }
        self.configure
            .iter()
            .fold(tool, |tool, configure| configure(tool))
    }

    fn prompt(self: &Arc<Self>, sent: &AsSent<PromptInfo>) -> Prompt {
        let (target, name) = (self.target(CallKind::Prompt), sent.name.clone());
        let handler = move |cx: Cx, server: State<Server>, arguments: Arguments| {
            let (target, name) = (target.clone(), name.clone());
            async move { target.call(cx, &server, &name, &arguments).await }
        };
        let mut prompt = Prompt::new(&sent.name, handler).listing(sent);
        for argument in sent.arguments.iter().filter(|_| self.completes()) {
            let reference = Reference::for_prompt(&sent.name);
            let suggest = self.completer(reference, argument.name.clone());
            prompt = prompt.complete(&argument.name, suggest);
        }
        prompt
    }

    fn resource(self: &Arc<Self>, sent: &AsSent<ResourceInfo>) -> Resource {
        let (target, uri) = (self.target(CallKind::Resource), sent.uri.clone());
        let handler = move |cx: Cx, server: State<Server>| {
            let (target, uri) = (target.clone(), uri.clone());
            async move { target.call(cx, &server, &uri, &Map::new()).await }
        };
        Resource::new(&sent.uri, &sent.name, handler).listing(sent)
    }

    fn template(self: &Arc<Self>, sent: &AsSent<ResourceTemplateInfo>) -> ResourceTemplate {
        let target = self.target(CallKind::Resource);
        let handler = move |cx: Cx, server: State<Server>| {
            let target = target.clone();
            async move {
                let uri = cx.uri().unwrap_or_default().to_owned();
                target.call(cx, &server, &uri, &Map::new()).await
            }
        };
        let mut template = ResourceTemplate::new(&sent.uri_template, &sent.name, handler);
        template = template.listing(sent);
        for variable in template
            .variables()
            .into_iter()
            .filter(|_| self.completes())
        {
            let reference = Reference::for_resource(&sent.uri_template);
            let suggest = self.completer(reference, variable.clone());
            template = template.complete(variable, suggest);
        }
        template
    }

    fn completes(&self) -> bool {
        self.service.get_info().capabilities.completions.is_some()
    }

    /// Asks the handler for suggestions for an argument or a variable.
    fn completer(
        self: &Arc<Self>,
        reference: Reference,
        argument: String,
    ) -> impl Fn(CompletionInput) -> CompletionFuture + Send + Sync + 'static {
        let handler = self.clone();
        move |input| {
            let handler = handler.clone();
            let argument = ArgumentInfo::new(&argument, input.value);
            let mut params = CompleteRequestParams::new(reference.clone(), argument);
            let arguments = input.arguments.into_iter().collect();
            params.context = Some(CompletionContext::with_arguments(arguments));
            let request = ClientRequest::CompleteRequest(CompleteRequest::new(params));
            Box::pin(async move {
                match handler.request(request).await.map_err(call_failed)? {
                    ServerResult::CompleteResult(result) => {
                        convert(&result.completion).map_err(call_failed)
                    }
                    _ => Err(Error::internal("the handler's result is not a completion")),
                }
            })
        }
    }
}

type CompletionFuture = std::pin::Pin<Box<dyn Future<Output = Result<Completion>> + Send>>;

/// The method of a list, and the member of its result with the entries.
fn wire_names(listing: Listing) -> (&'static str, &'static str) {
    match listing {
        Listing::Tools => ("tools/list", "tools"),
        Listing::Prompts => ("prompts/list", "prompts"),
        Listing::Resources => ("resources/list", "resources"),
        Listing::ResourceTemplates => ("resources/templates/list", "resourceTemplates"),
    }
}

fn read_entry<T: DeserializeOwned>(entry: &RawValue) -> Option<AsSent<T>> {
    let read = AsSent::read(entry);
    read.inspect_err(|error| tracing::warn!(%error, entry = entry.get(), "skipping invalid entry"))
        .ok()
}

impl OfferedNames {
    fn add(&self, listing: Listing, name: String) {
        let mut names = self.0.lock();
        names.insert((listing as u8, name));
    }

    fn names(&self, listing: Listing) -> Vec<String> {
        let names = self.0.lock();
        let of_list = names.iter().filter(|(of, _)| *of == listing as u8);
        of_list.map(|(_, name)| name.clone()).collect()
    }
}
