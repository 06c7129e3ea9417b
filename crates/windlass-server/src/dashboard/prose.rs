//! Sentences of the library, which name commands between backticks and begin small, as pages show them.

/// A part of a sentence.
pub(super) struct Piece {
    pub text: String,
    pub is_code: bool,
}

pub(super) fn prose(sentence: &str) -> Vec<Piece> {
    let parts = sentence.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    let piece = |(at, part): (usize, &str)| {
        let is_code = at % 2 == 1;
        Piece { text: if at == 0 { begun_large(part) } else { part.to_owned() }, is_code }
    };
    parts.map(piece).collect()
}

fn begun_large(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_words() {
        let shown = |sentence| {
            let pieces = prose(sentence).into_iter();
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
