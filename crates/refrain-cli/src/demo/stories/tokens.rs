//! The story of tokens that must be rejected.

use super::{Story, WEATHER, github_login, weather_call};
use crate::AppError;
use crate::demo::caller::{DemoDialogue, DemoRound, RoundReply, tool};
use crate::demo::fleet::InstanceSpec;
use crate::demo::world::World;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

/// The lifetime of hasty's tokens, long enough for a fresh one to be accepted on a slow machine.
const HASTY_SECONDS: u64 = 4;
const INVALID_PARAMS: i64 = -32602;

pub(super) const STORIES: [Story; 1] = [Story {
    name: "refused",
    help: "Tokens that are changed, stolen, misused or expired",
    title: "Rejected tokens",
    text: "A token is valid for one caller, one tool, the same arguments and a limited time. The \
               error is always the same, so that it reveals nothing to a thief.",
    play: |world| Box::pin(rejected(world)),
}];

async fn rejected(world: &mut World) -> Result<(), AppError> {
    let config = format!("token_ttl_seconds = {HASTY_SECONDS}\nclock_skew_seconds = 0\n");
    let hasty = InstanceSpec {
        config: Some(world.write("hasty.toml", &config)?),
        ..InstanceSpec::new("hasty")
    };
    world.fleet.start([hasty]).await?;
    world.note(&format!(
        "a fourth instance starts: hasty, whose tokens expire after {HASTY_SECONDS} seconds"
    ))?;
    world.forward_to(&["hasty"])?;
    let short = pending(world).await?;
    let made = Instant::now();
    let fresh = present(world, &short, "a fresh token of hasty").await?;

    world.forward_to(&["a", "b", "c"])?;
    let long = pending(world).await?;
    let mut rejections = Vec::new();
    for (what, attempt) in misuses(world, &long)? {
        rejections.push(present(world, &attempt, what).await?);
    }
    world.forward_to(&["hasty"])?;
    // The expiry of a token is rounded to seconds, so wait one more.
    let age = Duration::from_secs(HASTY_SECONDS + 1);
    tokio::time::sleep_until(made + age).await;
    let late = format!("the same token, {} seconds old", age.as_secs());
    rejections.push(present(world, &short, &late).await?);
    world.forward_to(&["b", "c"])?;
    let honest = present(world, &long, "a's token, used correctly").await?;
    world.fleet.kill("hasty").await?;

    if let Some(RoundReply::Rejected { code, message }) =
        rejections.first().map(|round| &round.reply)
    {
        world.note(&format!("every rejection: {code}, \"{message}\""))?;
    }
    let all = rejections.len() == 5 && rejections.iter().all(is_rejection);
    world.claim("Five invalid tokens are rejected with -32602", all)?;
    let one = rejections
        .windows(2)
        .all(|pair| seen(&pair[0]) == seen(&pair[1]));
    world.claim("The five responses are identical", all && one)?;
    let sound = fresh.text() == Some(WEATHER) && honest.text() == Some(WEATHER);
    world.claim("The same tokens, used correctly, are accepted", sound)
}

async fn pending(world: &mut World) -> Result<DemoDialogue, AppError> {
    let mut call = weather_call(&world.alice);
    world.round(&mut call, &[]).await?;
    match call.token_bytes() {
        0 => Err("get_weather returned no token".into()),
        _ => Ok(call),
    }
}

fn misuses(
    world: &World,
    good: &DemoDialogue,
) -> Result<[(&'static str, DemoDialogue); 4], AppError> {
    let changed = good.clone().with_token(change_one_character)?;
    let mut stolen = good.clone();
    stolen.caller = world.bob.clone();
    let for_call = |name, location| {
        let arguments = json!({"location": location});
        good.clone().with_call(&tool(name, &arguments))
    };
    Ok([
        ("a's token, one character changed", changed),
        ("a's token, stolen by bob", stolen),
        (
            "a's token, with other arguments: Boston",
            for_call("get_weather", "Boston")?,
        ),
        (
            "a's token, with another tool: get_weather_explicit",
            for_call("get_weather_explicit", "New York")?,
        ),
    ])
}

async fn present(
    world: &mut World,
    call: &DemoDialogue,
    what: &str,
) -> Result<DemoRound, AppError> {
    let mut call = call.clone();
    let round = call.next(&[github_login()]).await?;
    world.printer.round(&call, Some(what), &round)?;
    Ok(round)
}

/// The status and body of a response, with the id replaced.
fn seen(round: &DemoRound) -> (u16, String) {
    let body = String::from_utf8_lossy(&round.exchange.body);
    let id = format!("\"id\":{}", round.exchange.json()["id"]);
    (round.exchange.status, body.replacen(&id, "\"id\":0", 1))
}

fn is_rejection(round: &DemoRound) -> bool {
    matches!(round.reply, RoundReply::Rejected { code, .. } if code == INVALID_PARAMS)
}

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
    fn one_character_is_changed() {
        assert_eq!(change_one_character("abcd"), "abAd");
        assert_eq!(change_one_character("abAd"), "abBd");
    }
}
