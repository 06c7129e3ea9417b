//! The behaviour tests: one binary, one body for all stores.

#[macro_use]
mod bed;
mod conformance;
mod own;
mod postgres;
mod support;

mod crash;
mod faults;
mod model;
mod node;
mod schema;
mod sql_functions;
mod testing;
