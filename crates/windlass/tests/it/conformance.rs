//! The conformance suite: one behavior suite that runs on SQLite and on PostgreSQL.
//!
//! Each module tests one verb or feature through the public API. The `conformance!` macro in `bed.rs` makes two tests
//! of each function, one for each store. Marks such as `// Q3` are items of the acceptance list.

mod activity;
mod admin;
mod archive;
mod backlog;
mod bad_input;
mod cancel;
mod claim;
mod concurrency;
mod dead_letters;
mod deadlines;
mod diagnose;
mod explain;
mod finish;
mod fire;
mod groups;
mod handler_results;
mod heartbeat;
mod history;
mod inspect;
mod keys;
mod maintenance_tasks;
mod namespaces;
mod nodes;
mod order;
mod overview;
mod pause;
mod prune;
mod publish;
mod publish_in;
mod retention;
mod retry;
mod routing;
mod runs;
mod samples;
mod schedules;
mod search;
mod subscriptions;
mod tokens;
mod wake;
