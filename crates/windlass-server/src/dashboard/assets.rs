//! The files that pages load: ours, and part of the program.
//!
//! Pages name them by their version. While servers are replaced one by one, a page of a new one may get a file of an old one:
//! that works for the moment, but must not be kept under the new name.

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
        .route("/ui/assets/style.css", get(async |asked| file(asked, "text/css; charset=utf-8", STYLE)))
        .route("/ui/assets/app.js", get(async |asked| file(asked, "text/javascript; charset=utf-8", SCRIPT)))
        .route("/ui/assets/favicon.svg", get(async |asked| file(asked, "image/svg+xml", ICON)))
}

fn file(RawQuery(asked): RawQuery, kind: &'static str, text: &'static str) -> impl IntoResponse {
    let ours = asked.as_deref().and_then(|query| query.strip_prefix("v=")) == Some(VERSION.as_str());
    let kept = if ours { "public, max-age=31536000, immutable" } else { "no-store" };
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, kept), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, text)
}

/// Changes whenever one of the files does, so that browsers may keep them for good.
pub(super) static VERSION: LazyLock<String> = LazyLock::new(|| version(&[STYLE, SCRIPT, ICON]));

/// FNV-1a: it only has to differ.
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
    fn a_changed_file_has_another_version() {
        assert_eq!(version(&["a", "b"]), version(&["a", "b"]));
        assert_ne!(version(&["a", "b"]), version(&["a", "c"]));
        assert_eq!(version(&[""]).len(), 16);
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        for file in [STYLE, SCRIPT] {
            assert!(!file.contains("http://") && !file.contains("https://") && !file.contains("@import"));
        }
    }
}
