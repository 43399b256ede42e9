//! The clients that others wrote go through every feature of the server, over HTTP and over standard input and output.
//!
//! `scripts/tools` installs those that are not crates. Where it cannot, the tests fail: clients that did not run have
//! shown nothing. Which client exercises what is written down in `docs/project/conformance/clients.md`.

mod inspector;
mod names;
mod rmcp;
mod scripts;
mod server;
