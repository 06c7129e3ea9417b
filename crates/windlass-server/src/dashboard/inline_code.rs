//! Renders messages of the library, which start in lower case and contain commands between backticks.

/// A part of a message.
pub(super) struct TextPart {
    pub text: String,
    pub is_code: bool,
}

pub(super) fn split_code(sentence: &str) -> Vec<TextPart> {
    let parts = sentence.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    let piece = |(at, part): (usize, &str)| {
        let is_code = at % 2 == 1;
        TextPart { text: if at == 0 { capitalize_first(part) } else { part.to_owned() }, is_code }
    };
    parts.map(piece).collect()
}

fn capitalize_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_separated_from_text() {
        let shown = |sentence| {
            let pieces = split_code(sentence).into_iter();
            pieces.map(|piece| if piece.is_code { format!("<{}>", piece.text) } else { piece.text }).collect::<String>()
        };
        let table = [
            ("", ""),
            ("all is well", "All is well"),
            ("`windlass get 1` shows why", "<windlass get 1> shows why"),
            ("see `a b`, or `c`", "See <a b>, or <c>"),
            ("éclair", "Éclair"),
        ];
        for (sentence, expected) in table {
            assert_eq!(shown(sentence), expected);
        }
    }
}
