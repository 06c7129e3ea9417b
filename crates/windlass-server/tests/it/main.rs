//! The server through a real socket: one binary, one body for all databases.

#[macro_use]
mod bed;
mod http;

mod claim;
mod errors;
mod finish;
mod inspect;
mod maintain;
mod publish;
mod serve;
