//! Third-party clients use every feature of the server, over HTTP and over standard input and output.
//!
//! The tests run `scripts/tools`, which installs the clients that are not crates, and fail if it fails.
//! `docs/project/conformance/clients.md` lists the features that each client covers.

mod inspector;
mod names;
mod rmcp;
mod scripts;
mod server;
