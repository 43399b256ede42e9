//! The story of tokens that must not work.

use super::{WEATHER, github_login, weather_call};
use crate::Failure;
use crate::demo::client::{Dialogue, Outcome, Round, tool};
use crate::demo::fleet::Recipe;
use crate::demo::world::World;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

/// The lifetime of hasty's tokens. Long enough for a fresh one to be accepted on a slow machine.
const HASTY_SECONDS: u64 = 4;
const INVALID_PARAMS: i64 = -32602;

pub(super) async fn refused(world: &mut World) -> Result<(), Failure> {
    let config = format!("token_ttl_seconds = {HASTY_SECONDS}\nclock_skew_seconds = 0\n");
    let hasty = Recipe {
        config: Some(world.write("hasty.toml", &config)?),
        ..Recipe::new("hasty")
    };
    world.fleet.start([hasty]).await?;
    world.note(&format!(
        "a fourth instance joins: hasty, whose tokens live for {HASTY_SECONDS} seconds"
    ))?;
    world.hand_to(&["hasty"])?;
    let short = pending(world).await?;
    let made = Instant::now();
    let fresh = present(world, &short, "hasty's token, while it is fresh").await?;

    world.hand_to(&["a", "b", "c"])?;
    let long = pending(world).await?;
    let mut refusals = Vec::new();
    for (what, attempt) in misuses(world, &long)? {
        refusals.push(present(world, &attempt, what).await?);
    }
    world.hand_to(&["hasty"])?;
    // The expiry of a token is in whole seconds: one more to be sure.
    let over = Duration::from_secs(HASTY_SECONDS + 1);
    tokio::time::sleep_until(made + over).await;
    let late = format!("hasty's token again, {} seconds old", over.as_secs());
    refusals.push(present(world, &short, &late).await?);
    world.hand_to(&["b", "c"])?;
    let honest = present(world, &long, "a's token, as it should be used").await?;
    world.fleet.kill("hasty").await?;

    if let Some(Outcome::Refused { code, message }) = refusals.first().map(|round| &round.outcome) {
        world.note(&format!("each time: {code}, \"{message}\""))?;
    }
    let all = refusals.len() == 5 && refusals.iter().all(is_refusal);
    world.claim("Five bad tokens are refused with -32602", all)?;
    let one = refusals
        .windows(2)
        .all(|pair| seen(&pair[0]) == seen(&pair[1]));
    world.claim("The five responses are the same, byte for byte", all && one)?;
    let sound = fresh.text() == Some(WEATHER) && honest.text() == Some(WEATHER);
    world.claim("The same tokens, used rightly, are accepted", sound)
}

async fn pending(world: &mut World) -> Result<Dialogue, Failure> {
    let mut call = weather_call(&world.alice);
    world.round(&mut call, &[]).await?;
    match call.token_bytes() {
        0 => Err("get_weather asked for nothing, so there is no token".into()),
        _ => Ok(call),
    }
}

/// Four ways of using a token wrongly.
fn misuses(world: &World, good: &Dialogue) -> Result<[(&'static str, Dialogue); 4], Failure> {
    let changed = good.clone().with_token(change_one_character)?;
    let mut stolen = good.clone();
    stolen.caller = world.bob.clone();
    let for_call = |name, location| {
        let arguments = json!({"location": location});
        good.clone().with_call(&tool(name, &arguments))
    };
    Ok([
        ("a's token, one character changed", changed),
        ("a's token, stolen: bob presents it", stolen),
        (
            "a's token, for other arguments: Boston",
            for_call("get_weather", "Boston")?,
        ),
        (
            "a's token, for another tool: get_weather_explicit",
            for_call("get_weather_explicit", "New York")?,
        ),
    ])
}

/// Sends the second round of a copy of the call.
async fn present(world: &mut World, call: &Dialogue, what: &str) -> Result<Round, Failure> {
    let mut call = call.clone();
    let round = call.next(&[github_login()]).await?;
    world.stage.round(&call, Some(what), &round)?;
    Ok(round)
}

/// Status and body of a response, with the id replaced.
fn seen(round: &Round) -> (u16, String) {
    let body = String::from_utf8_lossy(&round.exchange.body);
    let id = format!("\"id\":{}", round.exchange.json()["id"]);
    (round.exchange.status, body.replacen(&id, "\"id\":0", 1))
}

fn is_refusal(round: &Round) -> bool {
    matches!(round.outcome, Outcome::Refused { code, .. } if code == INVALID_PARAMS)
}

/// Changes one character in the middle.
fn change_one_character(token: &str) -> String {
    let middle = token.len() / 2;
    let change = |(at, character)| match character {
        _ if at != middle => character,
        'A' => 'B',
        _ => 'A',
    };
    token.chars().enumerate().map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::change_one_character;

    #[test]
    fn exactly_one_character_changes() {
        assert_eq!(change_one_character("abcd"), "abAd");
        assert_eq!(change_one_character("abAd"), "abBd");
    }
}
