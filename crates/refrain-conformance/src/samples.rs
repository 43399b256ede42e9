//! Sample files in base64, and a form, that several tools use.

use refrain::prelude::*;

/// One red pixel.
pub(crate) const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC";

/// A millisecond of silence: one channel of 8 bits at 8 kHz.
pub(crate) const WAV: &str =
    "UklGRiwAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQgAAACAgICAgICAgA==";

#[derive(Deserialize, Elicit)]
pub(crate) struct Name {
    pub(crate) name: String,
}
