//! The behaviour tests: one binary, one body for all stores.

#[macro_use]
mod bed;
mod conformance;
mod own;
mod postgres;
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
