//! Options of tasks. The guide is `docs/guide/tasks.md`.

pub use refrain_core::Limits;
pub use refrain_server::TaskOptions;
