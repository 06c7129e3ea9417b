//! The server through a real socket: one binary, one body for all databases.

#[macro_use]
mod bed;
mod http;

mod batch;
mod claim;
mod errors;
mod finish;
mod finish_many;
mod health;
mod hold;
mod inspect;
mod maintain;
mod publish;
mod serve;
mod trail;
