//! Validation of user-defined names (namespaces, subscriptions, types, tags, groups, keys, workers), and type patterns.

use crate::error::{Error, Result};

/// The maximum length of a name, in bytes.
pub const NAME_BYTES_MAX: usize = 200;

/// Rejects a name that is empty, too long, has control characters, or begins or ends with white space.
pub(crate) fn check(field: &'static str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid(field, "must not be empty"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::TooLarge { field, size: name.len(), max: NAME_BYTES_MAX });
    }
    if name.chars().any(char::is_control) {
        return Err(Error::invalid(field, "must not contain control characters"));
    }
    if name.trim() != name {
        return Err(Error::invalid(field, "must not begin or end with white space"));
    }
    Ok(())
}

/// The maximum length of an identifier, in bytes.
const IDENTIFIER_BYTES_MAX: usize = 63;

/// Checks the name of a namespace or subscription, which appears in URL paths: ASCII letters, digits, `-`, `_` and `.`.
pub(crate) fn check_identifier(field: &'static str, name: &str) -> Result<()> {
    let mut chars = name.chars();
    let is_valid_start = chars.next().is_some_and(|c| c.is_ascii_alphanumeric());
    if is_valid_start
        && name.len() <= IDENTIFIER_BYTES_MAX
        && chars.all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    {
        return Ok(());
    }
    Err(Error::invalid(
        field,
        format!(
            "'{}' is not a valid name: use 1 to {IDENTIFIER_BYTES_MAX} ASCII letters, digits, '-', '_' or '.', \
             beginning with a letter or digit",
            name.chars().take(80).collect::<String>().escape_debug()
        ),
    ))
}

/// Checks an event type: a name without `*`, which is reserved for patterns.
pub(crate) fn check_type(field: &'static str, event_type: &str) -> Result<()> {
    check(field, event_type)?;
    if event_type.contains('*') {
        return Err(Error::invalid(field, "must not contain '*'"));
    }
    Ok(())
}

/// Checks a type pattern: an exact name, or a prefix ending in `*`.
pub(crate) fn check_type_pattern(field: &'static str, pattern: &str) -> Result<()> {
    if pattern == "*" {
        return Ok(());
    }
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    if name.contains('*') {
        return Err(Error::invalid(field, format!("'{pattern}': '*' is allowed only at the end")));
    }
    check(field, name)
}

pub(crate) fn type_matches(pattern: &str, event_type: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => event_type.starts_with(prefix),
        None => pattern == event_type,
    }
}

/// Whether every type that `inner` matches is matched by `outer` too. Both are exact types or prefixes ending in `*`.
pub(crate) fn pattern_covers(outer: &str, inner: &str) -> bool {
    match (outer.strip_suffix('*'), inner.strip_suffix('*')) {
        (Some(outer_prefix), Some(inner_prefix)) => inner_prefix.starts_with(outer_prefix),
        (None, Some(_)) => false,
        (_, None) => type_matches(outer, inner),
    }
}

/// The types that both patterns match, as a pattern; `None` if no type matches both.
pub(crate) fn pattern_intersection<'a>(a: &'a str, b: &'a str) -> Option<&'a str> {
    if pattern_covers(a, b) {
        Some(b)
    } else if pattern_covers(b, a) {
        Some(a)
    } else {
        None
    }
}

/// Checks a text: at most `max` bytes, and without U+0000, which PostgreSQL cannot store.
pub(crate) fn check_text(field: &'static str, text: &str, max: usize) -> Result<()> {
    if text.len() > max {
        return Err(Error::TooLarge { field, size: text.len(), max });
    }
    if text.contains('\0') {
        return Err(Error::invalid(field, "must not contain the character U+0000"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_exactly_or_by_prefix() {
        assert!(type_matches("*", "order.paid"));
        assert!(type_matches("order.*", "order.paid"));
        assert!(type_matches("order.paid", "order.paid"));
        assert!(!type_matches("order.paid", "order.paid.late"));
        assert!(!type_matches("order.*", "orders"));
    }

    #[test]
    fn patterns_intersect_in_the_more_specific_one() {
        let cases = [
            ("*", "a.*", Some("a.*")),
            ("a.*", "a.b*", Some("a.b*")),
            ("a.b", "a.*", Some("a.b")),
            ("a*", "a", Some("a")),
            ("a", "a", Some("a")),
            ("a.*", "b.*", None),
            ("a", "a.*", None),
            ("a", "b", None),
        ];
        for (a, b, both) in cases {
            assert_eq!((pattern_intersection(a, b), pattern_intersection(b, a)), (both, both), "{a} {b}");
        }
        assert!(pattern_covers("a.*", "a.b*") && !pattern_covers("a.b*", "a.*") && !pattern_covers("a", "a*"));
    }

    #[test]
    fn invalid_names_are_rejected_with_their_field() {
        for bad in ["", "a b", "-a", "ä", "a/b", &"x".repeat(64)] {
            let error = check_identifier("namespace", bad).unwrap_err();
            assert!(error.to_string().starts_with("namespace: "), "{error}");
        }
        for bad in ["", "a\nb", " a", &"x".repeat(201)] {
            assert!(check("type", bad).is_err(), "{bad:?}");
        }
        assert!(check_type_pattern("types", "a*b").is_err());
    }
}
