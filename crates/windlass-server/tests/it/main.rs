//! The server through a real socket: one binary, one body for all databases.

#[macro_use]
mod bed;
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
mod explain;
mod exposition;
mod finish;
mod finish_many;
mod health;
mod hold;
mod inspect;
mod limits;
mod maintain;
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
mod trail;
