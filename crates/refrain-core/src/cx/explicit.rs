//! Reading answers and state by hand, for handlers in the explicit style.

use super::Cx;
use crate::Result;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

impl Cx {
    /// Returns the latest answer with this name, as the client sent it. For handlers in the explicit style.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<Reply<String>> {
    /// match cx.answer("where") {
    ///     None => Ok(Reply::Incomplete(Incomplete::new().roots("where"))),
    ///     Some(roots) => Ok(Reply::Complete(format!("the roots are {roots}"))),
    /// }
    /// # }
    /// ```
    pub fn answer(&self, name: &str) -> Option<Box<RawValue>> {
        let json = {
            let mut state = self.shared.lock();
            let found = state.journal.entries.iter().rposition(|e| {
                e.key.scope.is_none() && e.key.kind.ask().is_some() && e.key.name == name
            });
            match found {
                Some(index) => {
                    state.deliver(index);
                    state.journal.entries[index].outcome.json().clone()
                }
                None => {
                    let mut early = state.early_answers.iter();
                    early.find(|(key, _)| **key == *name)?.1.clone()
                }
            }
        };
        RawValue::from_string(json.to_string()).ok()
    }

    /// Returns the state of the handler's previous [`Incomplete`](crate::Incomplete) reply, for the explicit style.
    ///
    /// ```
    /// # use refrain::prelude::*;
    /// # async fn example(cx: Cx) -> Result<Reply<String>> {
    /// let visits = cx.state::<u32>()?.unwrap_or(0) + 1;
    /// if visits < 3 {
    ///     let reply = Incomplete::new().roots("where").state(&visits)?;
    ///     return Ok(Reply::Incomplete(reply));
    /// }
    /// Ok(Reply::Complete(format!("{visits} rounds")))
    /// # }
    /// ```
    pub fn state<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let json = self.shared.lock().journal.state.clone();
        Ok(json.map(|json| serde_json::from_str(&json)).transpose()?)
    }
}
