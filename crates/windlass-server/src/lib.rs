//! The HTTP server of Windlass.
//!
//! [`serve`] runs the HTTP API, the dashboard and the maintenance tasks of a [`windlass::Queue`]. Every API path
//! exists twice: at the root for the namespace `default`, and under `/namespaces/{namespace}` for any namespace.
//! [`InProcessApi`] runs the same API without a socket. Queue behavior is implemented in the `windlass` crate.
//!
//! Start reading at `routes/mod.rs`.

mod app;
mod auth;
mod dashboard;
mod error;
mod extract;
mod in_process;
mod listen;
mod metrics;
mod openapi;
mod routes;
mod serve;
mod stream;
mod tls;
mod write_timeout;

pub use auth::Access;
pub use dashboard::Dashboard;
pub use in_process::InProcessApi;
pub use serve::{ServeOptions, serve};
pub use tls::{Tls, TlsError};
