//! The client against real servers over real connections: Refrain's own, and one that answers as it is told.

mod answers;
mod lists;
mod odd;
mod pending;
mod rounds;
mod support;
mod tasks;
