//! The result of an action, shown on the next page. It is stored in a cookie, so that a link cannot make a page show
//! arbitrary text.

use axum::http::HeaderValue;

use super::form::{decode, encode};

pub(super) const COOKIE: &str = "windlass_notice";

/// Browsers limit cookies to 4 KiB.
const BYTES_MAX: usize = 1_000;

/// Lifetime of the cookie: long enough to follow a redirect.
const SECONDS: u32 = 60;

/// The cookie that stores a notice.
pub(super) fn set(text: &str) -> Option<HeaderValue> {
    let text = encode(&text[..text.floor_char_boundary(BYTES_MAX)]);
    let cookie = format!("{COOKIE}={text}; Path=/ui; Max-Age={SECONDS}; HttpOnly; SameSite=Strict");
    HeaderValue::from_str(&cookie).ok()
}

/// The notice in a cookie.
pub(super) fn get(value: &str) -> String {
    let text = decode(value);
    text[..text.floor_char_boundary(BYTES_MAX)].to_owned()
}

/// The cookie that deletes the notice.
pub(super) fn clear() -> HeaderValue {
    HeaderValue::from_static("windlass_notice=; Path=/ui; Max-Age=0; HttpOnly; SameSite=Strict")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notice_survives_the_round_trip() {
        for text in ["3 put back", "a; b=c, \"d\" – é\r\nx: y", "", &"é".repeat(2_000)] {
            let cookie = set(text).unwrap();
            let value = cookie.to_str().unwrap().strip_prefix("windlass_notice=").unwrap().split(';').next().unwrap();
            assert_eq!(get(value), text[..text.floor_char_boundary(BYTES_MAX)]);
        }
    }
}
