//! The files that pages load, embedded in the program.
//!
//! Their URLs contain a version. During a rolling upgrade a page of a new server may load a file from an old server.
//! That works temporarily, but the browser must not cache the old file under the new version.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::RawQuery;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::app::App;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("app.js");
const ICON: &str = include_str!("favicon.svg");

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/ui/assets/style.css", get(async |query| file(query, "text/css; charset=utf-8", STYLE)))
        .route("/ui/assets/app.js", get(async |query| file(query, "text/javascript; charset=utf-8", SCRIPT)))
        .route("/ui/assets/favicon.svg", get(async |query| file(query, "image/svg+xml", ICON)))
}

fn file(RawQuery(query): RawQuery, kind: &'static str, text: &'static str) -> impl IntoResponse {
    let is_current = query.as_deref().and_then(|query| query.strip_prefix("v=")) == Some(VERSION.as_str());
    let cache_control = if is_current { "public, max-age=31536000, immutable" } else { "no-store" };
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, cache_control), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, text)
}

/// Changes with the files, so that browsers can cache them indefinitely.
pub(super) static VERSION: LazyLock<String> = LazyLock::new(|| version(&[STYLE, SCRIPT, ICON]));

/// FNV-1a. The version only has to change with the content.
fn version(files: &[&str]) -> String {
    let bytes = files.iter().flat_map(|file| file.bytes());
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_file_changes_the_version() {
        assert_eq!(version(&["a", "b"]), version(&["a", "b"]));
        assert_ne!(version(&["a", "b"]), version(&["a", "c"]));
        assert_eq!(version(&[""]).len(), 16);
    }

    #[test]
    fn assets_load_nothing_from_other_hosts() {
        for file in [STYLE, SCRIPT] {
            assert!(!file.contains("http://") && !file.contains("https://") && !file.contains("@import"));
        }
    }
}
