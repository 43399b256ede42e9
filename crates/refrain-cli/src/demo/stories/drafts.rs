//! Stories that were told before, in the words of the drafts.

use super::{WEATHER, asked, form, instances, model, result};
use crate::Failure;
use crate::demo::client::{Caller, Dialogue};
use crate::demo::world::World;
use refrain::server::Draft;
use serde_json::json;

/// Connects alice in a draft. The greeting takes turns of the balancer, so that it begins anew.
async fn speaking(world: &mut World, draft: Draft) -> Result<Caller, Failure> {
    let alice = world.alice.speaking(draft).await?;
    world.hand_to(&["a", "b", "c"]).await?;
    Ok(alice)
}

pub(super) async fn sketch(world: &mut World) -> Result<(), Failure> {
    let alice = speaking(world, Draft::Sketch).await?;
    let mut call = Dialogue::new(&alice, "get_weather", json!({"location": "New York"}));
    let script = [
        ("github_login", form(&json!({"name": "octocat"}))),
        (
            "capital_of_france",
            model("The capital of France is Paris."),
        ),
    ];
    let first = world.round(&mut call, &script).await?;
    let dependent = first.members().contains(&"dependent_requests".to_owned());
    world.note("the client keeps nothing but its call and the answers, and calls anew")?;
    let last = world.round(&mut call.anew()?, &script).await?;
    let rounds = [first, last];
    world.claim(
        "Both asks come as dependent_requests",
        dependent && rounds[0].asked().len() == 2,
    )?;
    let without = rounds[1].sent_token_bytes == 0 && instances(&rounds) == 2;
    let same = result(&rounds) == Some(WEATHER);
    world.claim(
        "Answered without a state, at another instance",
        without && same,
    )
}

pub(super) async fn first(world: &mut World) -> Result<(), Failure> {
    let alice = speaking(world, Draft::First).await?;
    let mut call = Dialogue::new(&alice, "get_weather", json!({"location": "New York"}));
    let script = [("github_login", form(&json!({"name": "octocat"})))];
    let rounds = world.play(&mut call, &script).await?;
    let members = rounds[0].members();
    let beside = members == ["id", "input_requests", "jsonrpc", "request_state"];
    world.claim("Asks and state are beside the id", beside)?;
    let wandered = rounds.len() == 2 && instances(&rounds) == 2;
    let same = result(&rounds) == Some(WEATHER);
    world.claim(
        "Two instances, and the text of the documents",
        wandered && same,
    )
}

pub(super) async fn second(world: &mut World) -> Result<(), Failure> {
    let alice = speaking(world, Draft::Second).await?;
    let arguments = json!({"workItemId": 4522, "fields": {"System.State": "Resolved"}});
    let mut call = Dialogue::new(&alice, "update_work_item", arguments);
    let script = [
        ("resolution", form(&json!({"resolution": "Duplicate"}))),
        ("duplicate_of", form(&json!({"duplicateOfId": 4301}))),
    ];
    let rounds = world.play(&mut call, &script).await?;
    let said = rounds[0].exchange.json();
    let within =
        said["result"]["inputRequests"].is_object() && said["result"]["resultType"].is_null();
    world.claim("Asks are in a result that says no type", within)?;
    let in_turn = asked(&rounds) == [vec!["resolution"], vec!["duplicate_of"], vec![]];
    let wandered = instances(&rounds) == 3;
    world.claim(
        "Three rounds, three instances, each rule asks once",
        in_turn && wandered,
    )
}
