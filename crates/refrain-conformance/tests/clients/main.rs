//! Third-party clients use every feature of the server, over HTTP and over standard input and output.
//!
//! `scripts/tools` installs the clients that are not crates. The tests fail if the installation fails.
//! `docs/project/conformance/clients.md` lists the features that each client covers.

mod inspector;
mod names;
mod rmcp;
mod scripts;
mod server;
