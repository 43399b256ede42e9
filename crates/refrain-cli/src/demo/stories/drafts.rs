//! The weather and the work item again, in the drafts.

use super::{WEATHER, asked, github_login, instances, model, result, weather_call, work_item_call};
use crate::Failure;
use crate::demo::client::Caller;
use crate::demo::world::World;
use refrain::server::Draft;

/// Connects alice in a draft. Connecting takes turns of the balancer, so that these begin anew.
async fn speaking(world: &mut World, draft: Draft) -> Result<Caller, Failure> {
    let alice = world.alice.speaking(draft).await?;
    world.hand_to(&["a", "b", "c"])?;
    Ok(alice)
}

pub(super) async fn sketch(world: &mut World) -> Result<(), Failure> {
    let alice = speaking(world, Draft::Sketch).await?;
    let mut call = weather_call(&alice);
    let capital = model("The capital of France is Paris.");
    let script = [github_login(), ("capital_of_france", capital)];
    let first = world.round(&mut call, &script).await?;
    let dependent = first.members().contains(&"dependent_requests".to_owned());
    world.note("the client keeps nothing but its call and the answers, and calls anew")?;
    let last = world.round(&mut call.restarted()?, &script).await?;
    let rounds = [first, last];
    let both = dependent && rounds[0].asked().len() == 2;
    world.claim("Both asks come as dependent_requests", both)?;
    let without = rounds[1].sent_token_bytes == 0 && instances(&rounds) == 2;
    let held = without && result(&rounds) == Some(WEATHER);
    world.claim("Answered without a state, at another instance", held)
}

pub(super) async fn first(world: &mut World) -> Result<(), Failure> {
    let alice = speaking(world, Draft::First).await?;
    let rounds = world
        .play(&mut weather_call(&alice), &[github_login()])
        .await?;
    let members = rounds[0].members();
    let beside = members == ["id", "input_requests", "jsonrpc", "request_state"];
    world.claim("Asks and state are beside the id", beside)?;
    let wandered = rounds.len() == 2 && instances(&rounds) == 2;
    let held = wandered && result(&rounds) == Some(WEATHER);
    world.claim("Two instances, and the text of the documents", held)
}

pub(super) async fn second(world: &mut World) -> Result<(), Failure> {
    let alice = speaking(world, Draft::Second).await?;
    let (mut call, script) = work_item_call(&alice);
    let rounds = world.play(&mut call, &script).await?;
    let result = &rounds[0].exchange.json()["result"];
    let within = result["inputRequests"].is_object() && result["resultType"].is_null();
    world.claim("Asks are in a result that says no type", within)?;
    let in_turn = asked(&rounds) == [vec!["resolution"], vec!["duplicate_of"], vec![]];
    let held = in_turn && instances(&rounds) == 3;
    world.claim("Three rounds, three instances, each rule asks once", held)
}
