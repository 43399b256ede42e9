//! Options of tasks.

pub use refrain_core::Limits;
pub use refrain_server::{TaskOptions, Webhook};
