//! A fleet in one process.
