//! Stories that use the examples of the draft documents. Each runs as a test, which fails if the story does not use an
//! example that docs/reference/dialects.md lists for it.

use super::{coverage, example};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;

/// How a story uses an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    Posted,
    Compared,
}

impl Use {
    /// Messages of clients are posted, messages of servers are compared with responses.
    fn of(document: u8, number: u8) -> Self {
        let said_by_client = [
            "method",
            "dependent_responses",
            "input_responses",
            "inputResponses",
        ];
        let example = example(document, number);
        if said_by_client
            .iter()
            .any(|name| example.get(name).is_some())
        {
            Self::Posted
        } else {
            Self::Compared
        }
    }
}

tokio::task_local! {
    static USED: RefCell<BTreeSet<(u8, u8, Use)>>;
}

/// Records the use of an example, if a story is running.
pub(super) fn note(document: u8, number: u8, how: Use) {
    let _ = USED.try_with(|used| used.borrow_mut().insert((document, number, how)));
}

/// Runs a story, and compares the examples it used with the listed ones.
async fn run(name: &str, story: impl Future<Output = ()>) {
    let played = async {
        story.await;
        USED.with(RefCell::take)
    };
    let used = USED.scope(RefCell::default(), played).await;
    let listed = coverage::listed_examples().into_iter();
    let listed: Vec<_> = listed.filter(|(_, story)| story == name).collect();
    assert!(
        !listed.is_empty(),
        "{name} is not in docs/reference/dialects.md"
    );
    for ((document, number), _) in listed {
        let how = Use::of(document, number);
        assert!(
            used.contains(&(document, number, how)),
            "example {document}/{number} is not {how:?} in {name}"
        );
    }
}

macro_rules! stories {
    ($($module:ident { $($story:ident,)* })*) => {
        /// The names of all stories.
        pub(super) const NAMES: &[&str] =
            &[$($(concat!(stringify!($module), "::", stringify!($story)),)*)*];

        $(mod $module {
            $(#[tokio::test]
            async fn $story() {
                let name = concat!(stringify!($module), "::", stringify!($story));
                super::run(name, super::super::$module::$story()).await;
            })*
        })*
    };
}

stories! {
    sketch {
        call_is_repeated_with_all_answers,
    }
    first {
        two_kinds_of_asks_share_a_round,
        call_is_repeated_with_answer_and_state,
        task_is_answered_in_twelve_steps,
    }
    second {
        answers_next_to_the_method_are_accepted,
        task_asks_and_is_answered,
        call_is_repeated_with_answer_and_state,
        one_answer_leads_to_the_next_ask,
        unrequested_answer_is_ignored,
        invalid_answer_is_asked_for_again,
        two_kinds_of_asks_share_a_round,
    }
}
