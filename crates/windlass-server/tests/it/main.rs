//! Tests of the HTTP server through a real socket, on every database.
//!
//! `harness.rs` starts a server for each test. The other files are named after the routes that they test; `browser/` uses
//! the dashboard in Chromium.

#[macro_use]
mod harness;
mod http;

mod auth;
mod batch;
mod browser;
mod cancel;
mod claim;
mod dashboard;
mod dead_letters;
mod doctor;
mod errors;
mod event_log;
mod explain;
mod exposition;
mod finish;
mod finish_many;
mod health;
mod heartbeat;
mod inspect;
mod limits;
mod maintenance;
mod metrics;
mod namespace;
mod nodes;
mod openapi;
mod publish;
mod reset;
mod samples;
mod schedules;
mod search;
mod serve;
mod stream;
mod subscription;
mod tls;
mod traces;
