//! The real binary: what it prints, what it serves, how it ends.

#[macro_use]
mod bed;
#[macro_use]
mod work;

mod configure;
mod connect;
mod deploy;
mod docs;
mod doctor;
mod health;
mod history;
mod logging;
mod look;
mod migrate;
mod publish;
mod repair;
mod serve;
mod tail;
mod terminal;
mod token;
mod top;
mod windlass;
