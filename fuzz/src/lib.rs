//! What the fuzz targets share.
//!
//! Always true: nothing here depends on the time, on chance or on an earlier input, so that an input that was found
//! does the same when it is run again.

pub mod compose;
pub mod drafts;
pub mod handlers;
pub mod mutate;
pub mod play;
pub mod source;
