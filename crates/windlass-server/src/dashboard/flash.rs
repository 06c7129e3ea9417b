//! A notice for the next page: what an action came to. It goes through a cookie, so that no link can make a page say
//! what its author likes.

use axum::http::HeaderValue;

use super::form::{decode, encode};

pub(super) const COOKIE: &str = "windlass_notice";

/// Cookies have room for 4 KiB.
const BYTES_MAX: usize = 1_000;

/// Long enough to follow a redirect.
const SECONDS: u32 = 60;

/// The cookie that holds a notice.
pub(super) fn set(text: &str) -> Option<HeaderValue> {
    let text = encode(&text[..text.floor_char_boundary(BYTES_MAX)]);
    let cookie = format!("{COOKIE}={text}; Path=/ui; Max-Age={SECONDS}; HttpOnly; SameSite=Strict");
    HeaderValue::from_str(&cookie).ok()
}

/// What a cookie holds.
pub(super) fn get(value: &str) -> String {
    let text = decode(value);
    text[..text.floor_char_boundary(BYTES_MAX)].to_owned()
}

/// The cookie that takes it away.
pub(super) fn clear() -> HeaderValue {
    HeaderValue::from_static("windlass_notice=; Path=/ui; Max-Age=0; HttpOnly; SameSite=Strict")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_survives_the_round_trip() {
        for text in ["3 put back", "a; b=c, \"d\" – é\r\nx: y", "", &"é".repeat(2_000)] {
            let cookie = set(text).unwrap();
            let value = cookie.to_str().unwrap().strip_prefix("windlass_notice=").unwrap().split(';').next().unwrap();
            assert_eq!(get(value), text[..text.floor_char_boundary(BYTES_MAX)]);
        }
    }
}
