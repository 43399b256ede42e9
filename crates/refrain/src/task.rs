//! Options of tasks. The guide is `docs/tasks.md`.

pub use refrain_core::Limits;
pub use refrain_server::TaskOptions;
