//! The stories that examples of the documents are part of: each is run as a test, which fails if it leaves one out that
//! docs/reference/dialects.md lists with it.

use super::{example, listed};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;

/// What a story does with an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    Posted,
    Compared,
}

impl Use {
    /// What is to be done with an example: what a client says is posted, what a server says is what comes back.
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

/// Notes that an example is used. Outside a story nobody cares.
pub(super) fn note(document: u8, number: u8, how: Use) {
    let _ = USED.try_with(|used| used.borrow_mut().insert((document, number, how)));
}

/// Runs a story, and compares what it used with what is listed.
async fn tell(name: &str, story: impl Future<Output = ()>) {
    let told = async {
        story.await;
        USED.with(RefCell::take)
    };
    let used = USED.scope(RefCell::default(), told).await;
    let listed = listed::listed().into_iter();
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
        /// The names of all of them.
        pub(super) const NAMES: &[&str] =
            &[$($(concat!(stringify!($module), "::", stringify!($story)),)*)*];

        $(mod $module {
            $(#[tokio::test]
            async fn $story() {
                let name = concat!(stringify!($module), "::", stringify!($story));
                super::tell(name, super::super::$module::$story()).await;
            })*
        })*
    };
}

stories! {
    sketch {
        a_call_is_made_again_with_all_that_it_asked,
    }
    first {
        two_kinds_of_asks_come_and_go_together,
        a_call_is_made_again_with_the_answer_and_the_state,
        a_task_asks_and_is_answered_in_twelve_steps,
    }
    second {
        answers_are_also_taken_beside_the_method,
        a_task_asks_and_is_answered,
        a_call_is_made_again_with_the_answer_and_the_state,
        one_answer_leads_to_the_next_question,
        an_answer_that_was_not_asked_for_is_passed_over,
        an_answer_that_does_not_fit_is_asked_for_again,
        two_kinds_of_asks_come_and_go_together,
    }
}
