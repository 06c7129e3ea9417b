//! `windlass work`.

#[macro_use]
pub mod fixture;

mod crash;
mod outcomes;
mod stop;
