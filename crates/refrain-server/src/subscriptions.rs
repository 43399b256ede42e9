//! Subscriptions: notifications of changes of lists, resources and tasks.
//!
//! Each change is pending at most once, so a slow client uses no more memory than its filter.
//!
//! | module | contents |
//! | --- | --- |
//! | `registry` | open subscriptions and their pending changes |
//! | `subscription` | the stream of notifications to one client |
//! | `subscribed` | the URIs of subscribed resources |

mod registry;
mod subscribed;
mod subscription;

pub(crate) use registry::Registry;
pub use subscribed::SubscribedResources;
pub(crate) use subscription::Subscription;

use crate::auth::{Auth, Caller};
use crate::catalog::{Catalog, normalize_uri};
use crate::dispatch::Dispatch;
use crate::limits::{LimitReached, ServerLimits};
use crate::metrics::{NonCall, Refusal};
use crate::services::Services;
use crate::tasks::{TaskSubscription, Tasks};
use refrain_wire::{Capability, Filter, ListenParams, RpcError};
use std::sync::Arc;

pub(crate) struct Subscriptions {
    pub(crate) registry: Arc<Registry>,
    catalog: Arc<Catalog>,
    auth: Arc<Auth>,
    services: Services,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubscribeError {
    #[error(transparent)]
    Limit(#[from] LimitReached),
    #[error("this instance is shutting down: subscribe again at another one")]
    Closed,
}

impl Subscriptions {
    pub(crate) fn new(catalog: Arc<Catalog>, auth: Arc<Auth>, services: Services) -> Self {
        Self {
            registry: Registry::new(services.limits.subscriptions.clone()),
            catalog,
            auth,
            services,
        }
    }

    pub(crate) fn listen(
        &self,
        mut params: ListenParams<'_>,
        caller: Caller,
        tasks: Option<&Arc<Tasks>>,
    ) -> Dispatch {
        if let Err(error) = check_size(&params.filter, &self.services.limits) {
            return Dispatch::Invalid(error);
        }
        // Notifications of a resource need the same scopes as reading it.
        let catalog = self.catalog.entries().clone();
        let uris = params.filter.uris.iter();
        let needed: Vec<String> = uris
            .flat_map(|uri| catalog.scopes_of_resource(uri).to_vec())
            .collect();
        if let Err(missing) = self.auth.allow(&caller, &needed) {
            return Dispatch::Forbidden(missing);
        }
        let tasks = match watch_tasks(tasks, &mut params, &caller) {
            Ok(tasks) => tasks,
            Err(error) => return Dispatch::Invalid(error),
        };
        let metrics = &self.services.metrics;
        match self.registry.subscribe(params.filter, tasks, caller) {
            Ok(subscription) => {
                metrics.non_call(NonCall::Listen);
                Dispatch::Subscription(subscription)
            }
            Err(error) => {
                metrics.request_refused(Refusal::Busy);
                Dispatch::Busy(RpcError::internal(error.to_string()))
            }
        }
    }

    /// Notifies clients that may read the resource at this URI that it changed.
    pub(crate) fn resource_updated(&self, uri: &str) {
        let catalog = self.catalog.entries().clone();
        let needed = catalog.scopes_of_resource(uri);
        let is_allowed = |caller: &Caller| self.auth.allow(caller, needed).is_ok();
        self.registry
            .resource_updated(&normalize_uri(uri), is_allowed);
    }
}

fn check_size(filter: &Filter, limits: &ServerLimits) -> Result<(), RpcError> {
    let uris = &filter.uris;
    let (limit, unit) = if uris.len() > limits.subscribed_resources {
        (limits.subscribed_resources, "resources")
    } else if uris.iter().map(String::len).sum::<usize>() > limits.subscribed_bytes {
        (limits.subscribed_bytes, "bytes of URIs")
    } else {
        return Ok(());
    };
    Err(RpcError::invalid_params(format!(
        "notifications.resourceSubscriptions: a subscription may have at most {limit} {unit}"
    )))
}

/// The changes of the tasks in the filter. A server without tasks ignores them, like any unknown filter.
fn watch_tasks(
    tasks: Option<&Arc<Tasks>>,
    params: &mut ListenParams<'_>,
    caller: &Caller,
) -> Result<Option<Box<TaskSubscription>>, RpcError> {
    let ids = std::mem::take(&mut params.filter.tasks);
    let Some(tasks) = tasks.filter(|_| !ids.is_empty()) else {
        return Ok(None);
    };
    if !params.meta.capabilities.tasks {
        return Err(RpcError::missing_capability(&[Capability::Tasks]));
    }
    let limit = tasks.options.subscribed;
    if ids.len() > limit {
        return Err(RpcError::invalid_params(format!(
            "notifications.taskIds: a subscription may have at most {limit} tasks"
        )));
    }
    Ok(Some(Box::new(TaskSubscription::new(tasks, &ids, caller))))
}
