//! Reads form fields and writes links.

use std::borrow::Cow;

/// The fields of a form, in order.
pub(super) struct Form(pub Vec<(String, String)>);

impl Form {
    /// The trimmed value of a field; `None` if it is absent or blank.
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(key, _)| key == name)?;
        Some(value.trim()).filter(|value| !value.is_empty())
    }

    /// The exact value of a field.
    pub fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// The values of all fields with this name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether the form was sent by the confirmation page.
    pub fn is_confirmed(&self) -> bool {
        self.get("confirmed").is_some()
    }
}

/// A path with a query string of the pairs that have a value.
pub(super) fn link<'a>(path: &str, pairs: impl IntoIterator<Item = (&'a str, Option<Cow<'a, str>>)>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (key, value) in pairs {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            query.append_pair(key, &value);
        }
    }
    match query.finish() {
        query if query.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

/// Percent-encodes a text for a query string, a cookie or a path segment.
pub(super) fn encode(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

pub(super) fn decode(text: &str) -> String {
    // An encoded text contains no `=`, so it parses as one key. Foreign text is cut at the first `=`.
    let (key, _) = form_urlencoded::parse(text.as_bytes()).next().unwrap_or_default();
    key.into_owned()
}

/// Accepts only paths of this dashboard as a redirect target.
pub(super) fn local_path(path: &str) -> Option<&str> {
    let is_dashboard_path = path == "/ui" || path.starts_with("/ui/") || path.starts_with("/ui?");
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    (is_dashboard_path && is_plain && !path.contains("//") && !path.contains("/..")).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_contain_only_pairs_with_a_value() {
        let pairs =
            [("type", Some("a b&c=d".into())), ("tag", None), ("text", Some("".into())), ("x", Some("é".into()))];
        assert_eq!(link("/ui/default/events", pairs), "/ui/default/events?type=a+b%26c%3Dd&x=%C3%A9");
        assert_eq!(link("/ui/default", []), "/ui/default");
    }

    #[test]
    fn encoded_text_survives_the_round_trip() {
        for text in ["", "a b", "a+b", "50%;\r\n", "é=\u{1F600}&\""] {
            assert!(
                encode(text).bytes().all(|byte| byte.is_ascii_alphanumeric() || b"%*-._".contains(&byte)),
                "{text}"
            );
            assert_eq!(decode(&encode(text)), text);
        }
        assert_eq!(decode("a%20=b&c"), "a ");
    }

    #[test]
    fn redirect_targets_are_limited_to_the_dashboard() {
        for fine in ["/ui", "/ui/default", "/ui/default/events?type=a%20b&before=3", "/ui?x=1"] {
            assert_eq!(local_path(fine), Some(fine));
        }
        let others = [
            "",
            "/",
            "//evil.example",
            "https://evil.example/ui/",
            "/uix",
            "/ui//evil",
            "/ui/\\evil",
            "/ui/a\r\nb",
            "/ui/../x",
        ];
        for other in others {
            assert_eq!(local_path(other), None, "{other}");
        }
    }
}
