//! Forms and tools that several tests use.

use refrain::prelude::*;
use refrain_testkit::{Effects, Fleet};
use std::collections::BTreeMap;

#[derive(Deserialize, Elicit)]
pub(crate) struct Login {
    pub(crate) name: String,
}

#[derive(Deserialize, Elicit)]
pub(crate) struct Amount {
    pub(crate) amount: u32,
}

#[derive(Deserialize, JsonSchema)]
struct Place {
    location: String,
}

/// Reports the weather to a named user.
#[tool]
async fn get_weather(cx: Cx, args: Place) -> Result<String> {
    let login: Login = cx
        .elicit("github_login", "Please provide your GitHub username")
        .await?;
    Ok(format!("{}, it is sunny in {}.", login.name, args.location))
}

pub(crate) fn weather_fleet() -> Fleet {
    Fleet::new(|| Server::builder("weather", "1.0").tool(get_weather()))
}

/// The work item tracker. It counts updates by idempotency key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracker(pub(crate) Effects);

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct UpdateWorkItem {
    work_item_id: u32,
    fields: BTreeMap<String, String>,
}

#[derive(Deserialize, Elicit, PartialEq)]
enum Kind {
    Fixed,
    #[serde(rename = "Won't Fix")]
    WontFix,
    Duplicate,
    #[serde(rename = "By Design")]
    ByDesign,
}

#[derive(Deserialize, Elicit)]
struct Resolution {
    /// Resolution type for this bug
    resolution: Kind,
}

#[derive(Deserialize, Elicit)]
#[serde(rename_all = "camelCase")]
struct DuplicateOf {
    /// Work item ID of the original bug
    duplicate_of_id: u32,
}

/// Changes a work item, and asks for the fields that the project's rules require.
#[tool]
async fn update_work_item(cx: Cx, tracker: State<Tracker>, args: UpdateWorkItem) -> Result<String> {
    let id = args.work_item_id;
    let resolved = args
        .fields
        .get("System.State")
        .is_some_and(|state| state == "Resolved");
    let mut summary = format!("Bug #{id} updated.");
    if resolved {
        let Resolution { resolution } = cx
            .elicit(
                "resolution",
                format!("Resolving Bug #{id} requires a resolution. How was this bug resolved?"),
            )
            .await?;
        summary = if resolution == Kind::Duplicate {
            let original: DuplicateOf = cx
                .elicit(
                    "duplicate_of",
                    "Since this is a duplicate, which work item is the original?",
                )
                .await?;
            format!(
                "Bug #{id} resolved as Duplicate of Bug #{}. \
                 State set to Resolved and duplicate link created.",
                original.duplicate_of_id
            )
        } else {
            format!("Bug #{id} resolved as Fixed. State set to Resolved.")
        };
    }
    let apply = |key| async { ok(tracker.0.record(key)) };
    cx.step_with_key("apply", apply).await?;
    Ok(summary)
}

pub(crate) fn work_items(tracker: &Tracker) -> Fleet {
    let tracker = tracker.clone();
    Fleet::new(move || {
        Server::builder("tracker", "1.0")
            .state(tracker.clone())
            .tool(update_work_item())
    })
}
