//! Long JSON in lines that fit on a page.

const WIDTH: usize = 110;

/// The text, with JSON that is too long for a line broken after commas, and before each object of a list.
pub fn wrapped(text: &str) -> String {
    let is_json = |line: &str| line.starts_with('{') && serde_json::from_str::<serde_json::Value>(line).is_ok();
    let wrap = |line: &str| if line.chars().count() > WIDTH && is_json(line) { broken(line) } else { line.to_owned() };
    text.lines().map(wrap).collect::<Vec<_>>().join("\n")
}

/// A piece of JSON that stays on one line.
struct Piece {
    text: String,
    /// How many lists and objects it begins in.
    depth: usize,
    /// It begins an object of a list.
    of_list: bool,
}

fn broken(json: &str) -> String {
    let (mut lines, mut line): (Vec<String>, String) = (Vec::new(), String::new());
    for piece in pieces(json) {
        let fits = line.chars().count() + piece.text.chars().count() <= WIDTH;
        if !line.is_empty() && (piece.of_list || !fits) {
            lines.push(std::mem::replace(&mut line, " ".repeat(piece.depth)));
        }
        line.push_str(&piece.text);
    }
    lines.push(line);
    lines.join("\n")
}

fn pieces(json: &str) -> Vec<Piece> {
    let (mut pieces, mut open, mut in_string, mut escaped) = (Vec::new(), Vec::new(), false, false);
    let mut piece = Piece { text: String::new(), depth: 0, of_list: false };
    for (at, c) in json.char_indices() {
        piece.of_list |= c == '{' && piece.text.is_empty() && open.last() == Some(&'[');
        piece.text.push(c);
        match c {
            '"' if !escaped => in_string = !in_string,
            '{' | '[' if !in_string => open.push(c),
            '}' | ']' if !in_string => drop(open.pop()),
            _ => {}
        }
        escaped = in_string && c == '\\' && !escaped;
        if !in_string && (c == ',' || json[at..].starts_with("[{")) {
            let next = Piece { text: String::new(), depth: open.len(), of_list: false };
            pieces.push(std::mem::replace(&mut piece, next));
        }
    }
    pieces.push(piece);
    pieces
}

#[test]
fn lists_have_a_line_for_each_object() {
    let long = "x".repeat(60);
    let json =
        format!(r#"{{"events":[{{"id":1,"a":"{long}","b":"{long}"}},{{"id":2,"tags":["a","b,c"]}}],"total":2}}"#);
    let expected = format!(
        "{{\"events\":[\n  {{\"id\":1,\"a\":\"{long}\",\n   \"b\":\"{long}\"}},\n  {{\"id\":2,\"tags\":[\"a\",\"b,c\"]}}],\"total\":2}}"
    );
    assert_eq!(wrapped(&json), expected);
    assert_eq!(wrapped(r#"{"short":[{},{}]}"#), r#"{"short":[{},{}]}"#);
}
