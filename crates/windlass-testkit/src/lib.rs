//! Support for the test suites of the workspace: temporary databases ([`Database`]), PostgreSQL access ([`postgres`]),
//! runtimes with a timeout ([`run_on_two_threads`]) and waiting ([`eventually`]).
//!
//! Fixtures that only one suite uses are in that suite. The Rust code in the workspace's `README.md` and `docs/rust.md`
//! is compiled here as doc tests, because the package `windlass` is published without these files.

mod database;
mod network;
pub mod postgres;
mod process;
mod runtime;
mod wait;

pub use database::{Database, Kind, sqlite_url};
pub use network::unused_address;
pub use process::send_signal;
pub use runtime::{block_on, run_on_one_thread, run_on_two_threads};
pub use wait::{eventually, until, wait_until};

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Guide;
