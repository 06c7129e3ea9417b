//! One file for each command.

pub mod history;
pub mod migrate;
pub mod serve;
pub mod token;
