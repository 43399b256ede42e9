//! Subscriptions: clients that are notified of changes.
//!
//! The changes that wait for a slow client are bounded by its filter: a change that is still pending is not noted a second
//! time, since one notification says as much as two.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `registry` | the open subscriptions, and how they are notified |
//! | `listener` | one client: its filter, and the changes that are pending |
//! | `subscription` | the stream of one client |

mod listener;
mod registry;
mod subscription;

pub(crate) use registry::Registry;
pub(crate) use subscription::Subscription;

use crate::auth::{Auth, Caller};
use crate::catalog::{Catalog, Changed, normal};
use crate::dispatch::Begin;
use crate::limits::ServerLimits;
use crate::metrics::{Other, Refusal};
use crate::services::Services;
use crate::tasks::{TaskNews, Tasks};
use refrain_wire::{Capability, Filter, ListenParams, RpcError};
use std::sync::Arc;

/// The subscriptions of a server.
pub(crate) struct Subscriptions {
    registry: Arc<Registry>,
    catalog: Arc<Catalog>,
    auth: Arc<Auth>,
    services: Services,
}

/// Why no subscription can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubscribeError {
    #[error("this instance already has its limit of {0} subscriptions; try again")]
    Full(usize),
    #[error("this instance already has its limit of {0} subscriptions of one caller; try again")]
    FullForCaller(usize),
    #[error("this instance is stopping; listen to another one")]
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

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Opens a subscription for `subscriptions/listen`, or says why it cannot be.
    pub(crate) fn listen(
        &self,
        mut params: ListenParams<'_>,
        caller: Caller,
        tasks: Option<&Arc<Tasks>>,
    ) -> Begin {
        if let Err(error) = check_size(&params.filter, &self.services.limits) {
            return Begin::Refused(error);
        }
        // A caller that may not read a resource is not notified of its changes either.
        let catalog = self.catalog.entries().clone();
        let uris = params.filter.uris.iter();
        let needed: Vec<String> = uris
            .flat_map(|uri| catalog.scopes_of_resource(uri).to_vec())
            .collect();
        if let Err(missing) = self.auth.allow(&caller, &needed) {
            return Begin::Forbidden(missing);
        }
        let tasks = match watch_tasks(tasks, &mut params, &caller) {
            Ok(tasks) => tasks,
            Err(error) => return Begin::Refused(error),
        };
        let metrics = &self.services.metrics;
        match self.registry.subscribe(params.filter, tasks, caller) {
            Ok(subscription) => {
                metrics.other(Other::Listen);
                Begin::Listen(subscription)
            }
            Err(error) => {
                metrics.request_refused(Refusal::Busy);
                Begin::Busy(RpcError::internal(error.to_string()))
            }
        }
    }

    /// Opens a subscription without tasks.
    pub(crate) fn subscribe(
        &self,
        filter: Filter,
        caller: Caller,
    ) -> Result<Subscription, SubscribeError> {
        self.registry.subscribe(filter, None, caller)
    }

    /// The number of open subscriptions.
    pub(crate) fn len(&self) -> usize {
        self.registry.len()
    }

    /// Notifies clients of changed lists.
    pub(crate) fn lists_changed(&self, changed: Changed) {
        self.registry.lists_changed(changed);
    }

    /// Notifies those clients that may read it of a change of the resource at this URI.
    pub(crate) fn resource_updated(&self, uri: &str) {
        let catalog = self.catalog.entries().clone();
        let needed = catalog.scopes_of_resource(uri);
        let may = |caller: &Caller| self.auth.allow(caller, needed).is_ok();
        self.registry.resource_updated(&normal(uri), may);
    }

    /// Ends every subscription and refuses new ones.
    pub(crate) fn close(&self) {
        self.registry.close();
    }
}

fn check_size(filter: &Filter, limits: &ServerLimits) -> Result<(), RpcError> {
    let uris = &filter.uris;
    let (limit, of) = if uris.len() > limits.subscribed_resources {
        (limits.subscribed_resources, "resources")
    } else if uris.iter().map(String::len).sum::<usize>() > limits.subscribed_bytes {
        (limits.subscribed_bytes, "bytes of URIs")
    } else {
        return Ok(());
    };
    Err(RpcError::invalid_params(format!(
        "notifications.resourceSubscriptions: at most {limit} {of} in one subscription"
    )))
}

/// The changes of the tasks in the filter. A server without tasks ignores them like any filter that it does not know.
fn watch_tasks(
    tasks: Option<&Arc<Tasks>>,
    params: &mut ListenParams<'_>,
    caller: &Caller,
) -> Result<Option<Box<TaskNews>>, RpcError> {
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
            "notifications.taskIds: at most {limit} tasks in one subscription"
        )));
    }
    Ok(Some(Box::new(TaskNews::new(tasks, &ids, caller))))
}
