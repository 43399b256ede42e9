//! The stories of the drafts that preceded MCP 2026-07-28.

use super::{WEATHER, asked, github_login, instances, model, result, weather_call, work_item_call};
use crate::AppError;
use crate::demo::caller::DemoCaller;
use crate::demo::world::World;
use refrain::server::Draft;

/// Connects alice in a draft, and resets the balancer, because connecting takes turns.
async fn connect(world: &mut World, draft: Draft) -> Result<DemoCaller, AppError> {
    let alice = world.alice.speaking(draft).await?;
    world.hand_to(&["a", "b", "c"])?;
    Ok(alice)
}

pub(super) async fn sketch(world: &mut World) -> Result<(), AppError> {
    let alice = connect(world, Draft::Sketch).await?;
    let mut call = weather_call(&alice);
    let capital = model("The capital of France is Paris.");
    let script = [github_login(), ("capital_of_france", capital)];
    let first = world.round(&mut call, &script).await?;
    let dependent = first.members().contains(&"dependent_requests".to_owned());
    world.note("the client keeps only its call and the answers, and calls again")?;
    let last = world.round(&mut call.restarted()?, &script).await?;
    let rounds = [first, last];
    let both = dependent && rounds[0].asked().len() == 2;
    world.claim("Both asks are sent as dependent_requests", both)?;
    let without = rounds[1].sent_token_bytes == 0 && instances(&rounds) == 2;
    let held = without && result(&rounds) == Some(WEATHER);
    world.claim("The answers alone are enough for another instance", held)
}

pub(super) async fn first(world: &mut World) -> Result<(), AppError> {
    let alice = connect(world, Draft::First).await?;
    let rounds = world
        .play(&mut weather_call(&alice), &[github_login()])
        .await?;
    let members = rounds[0].members();
    let is_message = members == ["id", "input_requests", "jsonrpc", "request_state"];
    world.claim("Asks and state are next to the message's id", is_message)?;
    let two = rounds.len() == 2 && instances(&rounds) == 2;
    let held = two && result(&rounds) == Some(WEATHER);
    world.claim(
        "Two instances produce the weather report of the proposal",
        held,
    )
}

pub(super) async fn second(world: &mut World) -> Result<(), AppError> {
    let alice = connect(world, Draft::Second).await?;
    let (mut call, script) = work_item_call(&alice);
    let rounds = world.play(&mut call, &script).await?;
    let result = &rounds[0].exchange.json()["result"];
    let within = result["inputRequests"].is_object() && result["resultType"].is_null();
    world.claim("Asks are in a result without a type", within)?;
    let in_turn = asked(&rounds) == [vec!["resolution"], vec!["duplicate_of"], vec![]];
    let held = in_turn && instances(&rounds) == 3;
    world.claim("Three rounds, three instances, each rule asks once", held)
}
