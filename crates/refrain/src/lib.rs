//! Refrain.
