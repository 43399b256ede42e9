//! Stories of asks: one, several in sequence, several at once.

use super::{
    Story, WEATHER, asked, github_login, instances, model, result, weather_call, work_item_call,
};
use crate::AppError;
use crate::demo::caller::DemoDialogue;
use crate::demo::world::World;
use serde_json::json;

pub(super) const STORIES: [Story; 3] = [
    Story {
        name: "weather",
        help: "One question (ask); the answer goes to another instance",
        title: "The weather",
        text: "A tool asks for a name before it can answer. No instance remembers the call: the client \
               sends its state back, as a sealed token, to whichever instance is next.",
        play: |world| Box::pin(weather(world)),
    },
    Story {
        name: "work-item",
        help: "A tool that asks twice, over three rounds",
        title: "The work item",
        text: "A tracker has two rules for bugs. The first asks how a bug was resolved, and the answer \
               makes the second ask, too. Each round runs the same function from the top and replays \
               the answers so far.",
        play: |world| Box::pin(work_item(world)),
    },
    Story {
        name: "together",
        help: "Several asks in one round",
        title: "Several asks at once",
        text: "A tool awaits a form and the answer of a model concurrently. Both asks are sent in one \
               round, and both answers come back in the next.",
        play: |world| Box::pin(together(world)),
    },
];

async fn weather(world: &mut World) -> Result<(), AppError> {
    let mut call = weather_call(&world.alice);
    let rounds = world.play(&mut call, &[github_login()]).await?;
    let two = rounds.len() == 2 && instances(&rounds) == 2;
    world.claim("Two rounds are served by two instances", two)?;
    let same = result(&rounds) == Some(WEATHER);
    world.claim("The weather report is that of the MCP proposal", same)
}

async fn work_item(world: &mut World) -> Result<(), AppError> {
    let (mut call, script) = work_item_call(&world.alice);
    let rounds = world.play(&mut call, &script).await?;
    let three = rounds.len() == 3 && instances(&rounds) == 3;
    world.claim("Three rounds are served by three instances", three)?;
    let in_turn = asked(&rounds) == [vec!["resolution"], vec!["duplicate_of"], vec![]];
    world.claim("Each rule asks once, one after the other", in_turn)?;
    let expected = "Bug #4522 resolved as Duplicate of Bug #4301. State set to Resolved and \
                    duplicate link created.";
    let same = result(&rounds) == Some(expected);
    world.claim(
        "The message about the bug is that of the MCP proposal",
        same,
    )
}

async fn together(world: &mut World) -> Result<(), AppError> {
    let arguments = json!({"location": "New York"});
    let mut call = DemoDialogue::new(&world.alice, "weather_and_capital", &arguments);
    let capital = "The capital of France is Paris.";
    let script = [github_login(), ("capital_of_france", model(capital))];
    let rounds = world.play(&mut call, &script).await?;
    let mut first = rounds[0].asked();
    first.sort_unstable();
    let both = rounds.len() == 2 && first == ["capital_of_france", "github_login"];
    world.claim(
        "A form and a question to a model are asked in one round",
        both,
    )?;
    let same = result(&rounds) == Some(&format!("{WEATHER}\n{capital}"));
    world.claim("The result contains both answers", same)?;

    let mut call = DemoDialogue::new(&world.alice, "project_roots", &json!({}));
    let roots = json!({"roots": [{"uri": "file:///project", "name": "A project"}, {"uri": "file:///docs"}]});
    let rounds = world.play(&mut call, &[("roots", roots)]).await?;
    let listed = result(&rounds) == Some("2 roots:\nfile:///project\nfile:///docs");
    world.claim("The client's roots are asked for in the same way", listed)
}
