//! Detects values that differ between runs: timestamps, leases, tokens, ids and versions.

/// The kind of a value that differs between runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueKind {
    Time,
    Lease,
    Token,
    TokenId,
    Uuid,
    Version,
}

impl ValueKind {
    /// Whether later commands may refer to the value.
    pub fn is_repeatable(self) -> bool {
        matches!(self, ValueKind::Lease | ValueKind::Token | ValueKind::TokenId | ValueKind::Uuid)
    }

    fn of(word: &str) -> Option<ValueKind> {
        if is_time(word) {
            return Some(ValueKind::Time);
        }
        if let Some((id, secret)) = word.strip_prefix("wl_").and_then(|rest| rest.split_once('_')) {
            return (is_hex(id, 12) && is_hex(secret, 64)).then_some(ValueKind::Token);
        }
        if is_uuid(word) {
            return Some(ValueKind::Uuid);
        }
        let numbers = word.split('.').filter(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
        if numbers.count() == 3 && word.matches('.').count() == 2 {
            return Some(ValueKind::Version);
        }
        match word.len() {
            12 if is_hex(word, 12) => Some(ValueKind::TokenId),
            16 if is_hex(word, 16) => Some(ValueKind::Lease),
            _ => None,
        }
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_uuid(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    parts.len() == 5 && parts.iter().zip([8, 4, 4, 4, 12]).all(|(part, digits)| is_hex(part, digits))
}

/// Whether the word has the form 2025-12-24T10:30:00Z, with or without a fraction.
fn is_time(word: &str) -> bool {
    let form: String = word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let Some(rest) = form.strip_prefix("0000-00-00T00:00:00").and_then(|rest| rest.strip_suffix('Z')) else {
        return false;
    };
    rest.is_empty() || rest.strip_prefix('.').is_some_and(|rest| rest.bytes().all(|byte| byte == b'0'))
}

/// Splits the text into pieces, each with its kind.
fn split_pieces(text: &str) -> impl Iterator<Item = (Option<ValueKind>, &str)> {
    let in_word = |c: char| c.is_ascii_alphanumeric() || "_-:.+".contains(c);
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end = rest.find(|c| in_word(c) != in_word(first)).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some((ValueKind::of(piece), piece))
    })
}

/// Replaces each value that differs between runs by the name of its kind.
pub fn normalized(text: &str) -> String {
    let mask =
        |(kind, piece): (Option<ValueKind>, &str)| kind.map_or_else(|| piece.to_owned(), |kind| format!("<{kind:?}>"));
    split_pieces(text).map(mask).collect()
}

/// Returns the values in the text that later commands may refer to, in order.
pub fn repeatable_values(text: &str) -> Vec<(ValueKind, &str)> {
    let repeatable = |(kind, piece): (Option<ValueKind>, _)| kind.filter(|kind| kind.is_repeatable()).zip(Some(piece));
    split_pieces(text).filter_map(repeatable).collect()
}

#[test]
fn volatile_values_are_detected_by_their_form() {
    let secret = "0123456789abcdef".repeat(4);
    let text = format!(
        r#"windlass 0.1.0 {{"at":"2025-12-24T10:30:00.123456Z","lease":"00c0ffee00c0ffee"}} wl_0123456789ab_{secret} 127.0.0.1"#
    );
    assert_eq!(normalized(&text), r#"windlass <Version> {"at":"<Time>","lease":"<Lease>"} <Token> 127.0.0.1"#);
    assert_eq!(repeatable_values(&text)[0], (ValueKind::Lease, "00c0ffee00c0ffee"));
    let uuid = "0d4b3f0a-6c1e-4f57-9a86-2b1f7c3de905";
    assert_eq!((normalized(uuid), repeatable_values(uuid)), ("<Uuid>".to_owned(), vec![(ValueKind::Uuid, uuid)]));
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    assert_eq!(normalized(trace), trace);
}
