//! Tests of the `windlass` binary: output, server, signals and exit codes.
//!
//! [`fixture`] runs commands on each database and through a server. [`docs`] runs the commands of the documentation.

#[macro_use]
mod fixture;
#[macro_use]
mod work;

mod configure;
mod connect;
mod deploy;
mod docs;
mod doctor;
mod health;
mod history;
mod inspect;
mod logging;
mod migrate;
mod publish;
mod repair;
mod serve;
mod tail;
mod terminal;
mod token;
mod top;
mod windlass;
