//! Forms and links: what fields hold, and how addresses are written.

use std::borrow::Cow;

/// The fields of a form, in its order.
pub(super) struct Form(pub Vec<(String, String)>);

impl Form {
    /// What the field holds, without blanks around it; `None` where it is absent or blank.
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(key, _)| key == name)?;
        Some(value.trim()).filter(|value| !value.is_empty())
    }

    /// What the field holds, exactly.
    pub fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// All that fields of this name hold.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether it comes from the page that asked whether this is really meant.
    pub fn is_confirmed(&self) -> bool {
        self.get("confirmed").is_some()
    }
}

/// A path with a query string of those pairs that have a value.
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

/// Fit for a query string, a cookie or a part of a path.
pub(super) fn encode(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

pub(super) fn decode(text: &str) -> String {
    // A text without `=` is one key. What is not ours may have one, and is cut there.
    let (key, _) = form_urlencoded::parse(text.as_bytes()).next().unwrap_or_default();
    key.into_owned()
}

/// Where a sign-in or an action leads back to: a page of ours, and nothing else.
pub(super) fn local_path(path: &str) -> Option<&str> {
    let ours = path == "/ui" || path.starts_with("/ui/") || path.starts_with("/ui?");
    let plain = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    (ours && plain && !path.contains("//") && !path.contains("/..")).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_what_has_a_value() {
        let pairs =
            [("type", Some("a b&c=d".into())), ("tag", None), ("text", Some("".into())), ("x", Some("é".into()))];
        assert_eq!(link("/ui/default/events", pairs), "/ui/default/events?type=a+b%26c%3Dd&x=%C3%A9");
        assert_eq!(link("/ui/default", []), "/ui/default");
    }

    #[test]
    fn texts_survive_the_round_trip() {
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
    fn only_our_pages_are_led_back_to() {
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
