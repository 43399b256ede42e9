//! The stories of the drafts that preceded MCP 2026-07-28.

use super::{
    Story, WEATHER, asked, github_login, instances, model, result, weather_call, work_item_call,
};
use crate::AppError;
use crate::demo::caller::DemoCaller;
use crate::demo::world::World;
use clap::Args;
use refrain::server::Draft;

/// The flag that adds the stories of this module.
#[derive(Clone, Copy, Args)]
pub(in crate::demo) struct ExtraStories {
    /// Also play the stories of the three drafts that preceded MCP 2026-07-28.
    #[arg(long)]
    drafts: bool,
}

impl ExtraStories {
    pub(in crate::demo) fn is_played(self, story: &Story) -> bool {
        self.drafts || !story.is_extra()
    }

    /// The flag of the instances that serve the calls of these stories.
    pub(in crate::demo) fn flag(self) -> Option<&'static str> {
        self.drafts.then_some("--drafts")
    }
}

pub(super) const STORIES: [Story; 3] = [
    Story {
        name: "sketch",
        help: "The weather in draft-0; requires --drafts",
        title: "draft-0, the sketch",
        text: "In the first sketch of the protocol, the client repeats the call with all answers, and \
               there is no state. The same tools serve it at another path.",
        play: |world| Box::pin(sketch(world)),
    },
    Story {
        name: "first-draft",
        help: "The weather in draft-1; requires --drafts",
        title: "draft-1, the first draft",
        text: "The first draft adds a state that the client sends back. Asks and state are members of \
               the message, next to its id. The call is that of the first story.",
        play: |world| Box::pin(first(world)),
    },
    Story {
        name: "second-draft",
        help: "The work item in draft-2; requires --drafts",
        title: "draft-2, the second draft",
        text: "The second draft moves asks and state into the result, which does not have a type yet. \
               The call is that of the second story.",
        play: |world| Box::pin(second(world)),
    },
];

/// Connects alice in a draft, and resets the balancer, because connecting takes turns.
async fn connect(world: &mut World, draft: Draft) -> Result<DemoCaller, AppError> {
    let alice = &world.alice;
    let alice = alice.reconnected(draft.path(), |builder| builder.dialect(draft));
    let alice = alice.await?;
    world.forward_to(&["a", "b", "c"])?;
    Ok(alice)
}

async fn sketch(world: &mut World) -> Result<(), AppError> {
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

async fn first(world: &mut World) -> Result<(), AppError> {
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

async fn second(world: &mut World) -> Result<(), AppError> {
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
