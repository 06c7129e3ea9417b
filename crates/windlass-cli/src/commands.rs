//! One file for each command.

pub mod get;
pub mod history;
pub mod migrate;
pub mod serve;
pub mod token;
