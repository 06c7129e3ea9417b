//! Integration tests of the library, in one binary. Tests of behavior that all stores share are written once and run on
//! each store: see the macros in `bed.rs`. The helpers are in `support.rs`.

#[macro_use]
mod bed;
mod conformance;
mod open_transaction;
mod process;
mod server;
mod support;

mod crash;
mod diagnose;
mod examples;
mod faults;
mod group_order;
mod model;
mod node;
mod node_crash;
mod otel;
mod partitions;
mod pg_cron;
mod pooler;
mod routing;
mod run_scheduled_task;
mod schedule_race;
mod schema;
mod sql_functions;
mod testing;
mod transactions_guide;
