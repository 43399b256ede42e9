//! The client against real servers over real connections: Refrain's own, and one that answers as it is told.

mod answers;
mod lists;
mod odd;
mod pending;
mod rounds;
mod rules_asks;
mod rules_cache;
mod rules_http;
mod rules_listen;
mod rules_pipe;
mod rules_tasks;
mod rules_time;
mod support;
mod tasks;
mod unclear;
