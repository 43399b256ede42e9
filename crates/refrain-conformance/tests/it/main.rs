//! The program under test: its command line, and the official suites for servers and clients.

mod client_usage;
mod official_client;
mod official_suite;
