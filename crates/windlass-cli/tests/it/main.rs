//! The real binary: what it prints, what it serves, how it ends.

mod docs;
mod history;
mod migrate;
mod serve;
mod token;
mod windlass;
