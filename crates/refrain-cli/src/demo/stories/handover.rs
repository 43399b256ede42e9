//! Stories of calls that move: to a newer version, away from a busy instance, away from a killed one.

use super::{Story, asked, form, github_login, result};
use crate::AppError;
use crate::demo::caller::DemoDialogue;
use crate::demo::fleet::InstanceSpec;
use crate::demo::world::World;
use serde_json::json;

pub(super) const STORIES: [Story; 3] = [
    Story {
        name: "upgrade",
        help: "Two versions of a tool behind one balancer",
        title: "The rolling upgrade",
        text: "The old version asks for GitHub and Google, the new one for GitHub and Microsoft. \
               The first round runs on the old version, the rest on the new one, which does not ask \
               for GitHub again.",
        play: |world| Box::pin(upgrade(world)),
    },
    Story {
        name: "shedding",
        help: "A busy instance hands a computation on to another instance",
        title: "Load shedding",
        text: "An overloaded instance returns the state of a computation as a token without an ask. \
               The next instance continues from there: the ledger has each number once.",
        play: |world| Box::pin(shedding(world)),
    },
    Story {
        name: "killed",
        help: "An instance is killed between two rounds",
        title: "An instance killed",
        text: "An order reserves an item, asks for a confirmation, and charges. While it waits for the \
               answer, the instance that made the reservation is killed with SIGKILL.",
        play: |world| Box::pin(killed(world)),
    },
];

async fn upgrade(world: &mut World) -> Result<(), AppError> {
    let mut call = DemoDialogue::new(&world.alice, "accounts", &json!({}));
    let script = [
        github_login(),
        ("google_login", form(&json!({"name": "octo@example.com"}))),
        (
            "microsoft_login",
            form(&json!({"name": "octo@example.org"})),
        ),
    ];
    world.forward_to(&["b"])?;
    let mut rounds = vec![world.round(&mut call, &script).await?];
    world.note("the old version is taken out of the balancer: further rounds go to c")?;
    world.forward_to(&["c"])?;
    rounds.extend(world.play(&mut call, &script).await?);

    let served: Vec<&str> = rounds.iter().map(|round| round.instance()).collect();
    let crossed = served == ["b", "c", "c"];
    world.claim(
        "A call that began on the old version ends on the new one",
        crossed,
    )?;
    let mut asks = asked(&rounds);
    asks.iter_mut().for_each(|keys| keys.sort_unstable());
    let only_new = asks
        == [
            vec!["github_login", "google_login"],
            vec!["microsoft_login"],
            vec![],
        ];
    world.claim("The new version asks only for microsoft_login", only_new)?;
    let expected = "Linked GitHub octocat and Microsoft octo@example.org.";
    let kept = result(&rounds) == Some(expected);
    world.claim(
        "The new version uses the GitHub answer that the old one got",
        kept,
    )
}

async fn shedding(world: &mut World) -> Result<(), AppError> {
    const LAST: u64 = 10;
    let config = "[limits]\nshed_above = 0\n";
    let busy = InstanceSpec {
        config: Some(world.write("busy.toml", config)?),
        ..InstanceSpec::new("busy")
    };
    world.fleet.start([busy]).await?;
    world.note("a fourth instance starts: busy, for which a single call is an overload")?;
    world.forward_to(&["busy", "a", "b", "c"])?;

    let before = world.effects_since(0)?.len();
    let mut call = DemoDialogue::new(&world.alice, "sum", &json!({"to": LAST}));
    let first = world.round(&mut call, &[]).await?;
    let by_busy = world.effects_since(before)?;
    let added = joined(&numbers(&by_busy));
    world.note(&format!("ledger: busy added {added}"))?;
    let handed_on =
        first.instance() == "busy" && first.asked().is_empty() && call.token_bytes() > 0;
    let rest = if handed_on {
        world.play(&mut call, &[]).await?
    } else {
        Vec::new()
    };
    let effects = world.effects_since(before)?;
    let by_others = numbers(&effects).split_off(by_busy.len());
    let added = joined(&by_others);
    world.note(&format!("ledger: the next instance added {added}"))?;
    world.fleet.kill("busy").await?;

    world.claim(
        "The busy instance hands the call on without an ask",
        handed_on,
    )?;
    let began = !by_busy.is_empty() && !by_others.is_empty();
    let elsewhere = rest.iter().all(|round| round.instance() != "busy");
    world.claim(
        "Another instance continues where the busy one stopped",
        began && elsewhere,
    )?;
    let once: Vec<u64> = (1..=LAST).collect();
    let exactly = numbers(&effects) == once && effects.len() == once.len();
    world.claim("Every number is added exactly once", exactly)?;
    let right = result(&rest) == Some("The sum of 1 to 10 is 55.");
    world.claim("The sum is correct", right)
}

async fn killed(world: &mut World) -> Result<(), AppError> {
    let before = world.effects_since(0)?.len();
    let script = [("confirm_order", form(&json!({"confirm": true})))];
    let mut call = DemoDialogue::new(&world.alice, "place_order", &json!({"item": "lamp"}));
    let first = world.round(&mut call, &script).await?;

    let process = world.fleet.get("a")?.process;
    let spec = world.fleet.kill("a").await?;
    world.balancer.set_next("a");
    world.note(&format!(
        "a (process {process}) is killed, and the next request would go to a"
    ))?;
    let rounds = world.play(&mut call, &script).await?;
    let effects = world.effects_since(before)?;
    for effect in &effects {
        world.note(&format!("ledger: {effect}"))?;
    }
    let survived = first.instance() == "a" && rounds.len() == 1 && rounds[0].instance() != "a";
    world.claim("The next round is served by another instance", survived)?;
    let made = |effect: &str| -> Vec<&str> {
        let lines = effects.iter().filter_map(|line| line.strip_prefix(effect));
        lines.filter(|line| line.ends_with(" lamp")).collect()
    };
    let (reserved, charged) = (made("reserve "), made("charge "));
    let once = reserved.len() == 1 && charged.len() == 1 && effects.len() == 2;
    world.claim("There is one reservation and one charge", once)?;
    let same = reserved
        .first()
        .and_then(|line| line.get(..8))
        .is_some_and(|key| result(&rounds).is_some_and(|text| text.contains(key)));
    world.claim(
        "The order uses the reservation of the killed instance",
        same,
    )?;

    world.fleet.start([spec]).await?;
    let process = world.fleet.get("a")?.process;
    world.note(&format!("a is restarted (process {process})"))?;
    world.forward_to(&["a", "b", "c"])?;
    let mut call = DemoDialogue::new(&world.alice, "echo", &json!({"text": "Hello again!"}));
    let rounds = world.play(&mut call, &[]).await?;
    let back = rounds[0].instance() == "a" && result(&rounds) == Some("Echo: Hello again!");
    world.claim("After a restart, the instance serves calls again", back)
}

/// The numbers in the ledger: `add CALL NUMBER`.
fn numbers(effects: &[String]) -> Vec<u64> {
    effects
        .iter()
        .filter_map(|effect| effect.strip_prefix("add "))
        .filter_map(|effect| effect.split_once(' ')?.1.parse().ok())
        .collect()
}

fn joined(numbers: &[u64]) -> String {
    let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
    if words.is_empty() {
        "nothing".into()
    } else {
        words.join(", ")
    }
}
