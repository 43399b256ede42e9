//! Errors of a run.

use std::fmt::Display;

/// Why a run failed.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// Adds the failed operation to an error.
pub(crate) fn failed<E: Display>(operation: impl Display) -> impl FnOnce(E) -> Error {
    move |error| format!("could not {operation}: {error}").into()
}
