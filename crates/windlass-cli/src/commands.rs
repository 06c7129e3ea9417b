//! One file for each command.

pub mod migrate;
pub mod serve;
pub mod token;
