//! What every store has to do, verb by verb. The numbers are those of the acceptance list.

mod activity;
mod admin;
mod bad_input;
mod claim;
mod concurrency;
mod dead_letters;
mod deadlines;
mod duties;
mod finish;
mod groups;
mod history;
mod hold;
mod inspect;
mod keys;
mod namespaces;
mod nodes;
mod pause;
mod prune;
mod publish;
mod publish_in;
mod results;
mod retry;
mod subscriptions;
mod tokens;
mod wake;
