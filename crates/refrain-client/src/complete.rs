//! Suggestions for the values of arguments.

use crate::client::Client;
use crate::error::{Error, ErrorKind};
use refrain_wire::client::{ReadError, Request, read_complete};
use refrain_wire::{CompleteResult, Completion, Reference};
use serde::Deserialize;
use std::collections::BTreeMap;

impl Client {
    /// Suggests values for an argument of a prompt or a resource template, for the value typed so far. `context` has the
    /// arguments that already have a value. At most 100 suggestions are returned.
    ///
    /// ```no_run
    /// # async fn run(client: refrain_client::Client) -> Result<(), refrain_client::Error> {
    /// use refrain_client::wire::Reference;
    /// use std::collections::BTreeMap;
    ///
    /// let prompt = Reference::Prompt("translate".into());
    /// let languages = client.complete(&prompt, "language", "Nor", &BTreeMap::new()).await?;
    /// println!("{:?}", languages.values);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn complete(
        &self,
        reference: &Reference<'_>,
        argument: &str,
        value: &str,
        context: &BTreeMap<String, String>,
    ) -> Result<Completion, Error> {
        let request = Request::complete(reference, argument, value, context);
        let raw = self.inner.request(request).await?;
        let result = read_complete(&raw).map_err(ErrorKind::from)?;
        let result = CompleteResult::deserialize(result).map_err(|error| {
            let what = "the result of completion/complete";
            ErrorKind::InvalidResponse(ReadError::Result { what, error })
        })?;
        Ok(result.completion.bounded())
    }
}
