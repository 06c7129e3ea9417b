//! The HTTP server of Windlass: the source document's paths for the namespace `default`, the same
//! ones under `/namespaces/{namespace}` for any, and the upkeep that a running queue needs.

mod error;
mod extract;
mod maintain;
mod routes;
mod serve;

pub use serve::{ServeOptions, serve};
