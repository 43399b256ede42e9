//! Servers of legacy revisions, and servers that are processes.
//!
//! The servers here are small, and written for the purpose: one in Python behind a pipe, one behind HTTP.

mod associated;
mod drafts;
mod found;
mod inline;
mod ours;
mod pipe;
mod resumed;
mod sessions;
mod support;
mod urls;
