//! `windlass work`.

#[macro_use]
pub mod place;

mod crash;
mod outcomes;
mod stop;
