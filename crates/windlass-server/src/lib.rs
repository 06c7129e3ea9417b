//! The HTTP server of Windlass: the source document's paths and all that goes with them, at the root for
//! the namespace `default` and under `/namespaces/{namespace}` for any; a dashboard at `/`; and the upkeep
//! that a running queue needs.

mod app;
mod auth;
mod dashboard;
mod error;
mod extract;
mod inside;
mod listen;
mod metrics;
mod openapi;
mod patience;
mod routes;
mod serve;
mod stream;
mod tls;

pub use auth::Access;
pub use dashboard::Dashboard;
pub use inside::Inside;
pub use serve::{ServeOptions, serve};
pub use tls::{Tls, TlsError};
