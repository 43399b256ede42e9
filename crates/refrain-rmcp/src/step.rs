//! Steps inside rmcp tools.

use refrain::runtime::core::ErrorKind;
use refrain::{Cx, Error};
use rmcp::ErrorData;
use rmcp::model::ErrorCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;

tokio::task_local! {
    /// The call whose handler runs.
    pub(crate) static CALL: Cx;
}

/// Runs `work` as a [step](refrain::Cx::step) of the call: its value is journaled, and later rounds of a tool in the
/// [replay](crate::Adapter::replay) home read the value instead of running the work again.
///
/// An error is journaled as well; an [`ErrorData`] keeps its code and data. Nothing is journaled
/// outside of a call that Refrain serves, for example under rmcp's own transports, and in Tokio
/// tasks that the tool spawned: there `step` only runs the work.
///
/// ```
/// use rmcp::ErrorData;
///
/// async fn charge(euros: u32) -> Result<String, ErrorData> {
///     Ok(format!("receipt for {euros} euros"))
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// // Inside a tool:
/// let receipt: String = refrain_rmcp::step("charge", charge(20)).await?;
/// assert_eq!(receipt, "receipt for 20 euros");
/// # Ok::<(), ErrorData>(())
/// # }).unwrap();
/// ```
pub async fn step<T, E>(
    name: impl Into<Cow<'static, str>>,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, ErrorData>
where
    T: Serialize + DeserializeOwned,
    E: std::error::Error + Send + Sync + 'static,
{
    let Ok(cx) = CALL.try_with(Clone::clone) else {
        return work.await.map_err(|error| error_data(&journaled(error)));
    };
    let work = async { work.await.map_err(journaled) };
    let done = cx.step(name, work).await;
    done.map_err(|error| error_data(&error))
}

/// The form of an error in the journal.
fn journaled(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    let error: Error = error.into();
    let source = error.source();
    match source.and_then(|source| source.downcast_ref::<ErrorData>()) {
        Some(data) => {
            let details = data.data.clone().unwrap_or_default();
            Error::rpc(data.code.0.into(), &data.message, details)
        }
        None => error,
    }
}

/// The form of an error for an rmcp tool.
fn error_data(error: &Error) -> ErrorData {
    let message = error.to_string();
    let (code, data) = match error.kind() {
        ErrorKind::Rpc { code, data } => (i32::try_from(*code).ok(), Some(data.clone())),
        _ => (None, None),
    };
    let code = code.map_or(ErrorCode::INTERNAL_ERROR, ErrorCode);
    ErrorData::new(code, message, data.filter(|data| !data.is_null()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn journaled_error_keeps_code_message_and_data() {
        for error in [
            ErrorData::new(ErrorCode(-32050), "closed", Some(json!({"until": 12}))),
            ErrorData::invalid_params("no", None),
        ] {
            assert_eq!(error_data(&journaled(error.clone())), error);
        }
        let error = std::io::Error::other("disk full");
        let expected = ErrorData::internal_error("disk full", None);
        assert_eq!(error_data(&journaled(error)), expected);
    }
}
