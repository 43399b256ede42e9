//! Errors that end a run. Faults found by the check are in the report.

use std::fmt::Display;

/// Why a run could not finish.
pub(crate) type CrashError = Box<dyn std::error::Error + Send + Sync>;

/// Adds the failed operation to an error.
pub(crate) fn failed<E: Display>(operation: impl Display) -> impl FnOnce(E) -> CrashError {
    move |error| format!("could not {operation}: {error}").into()
}
