//! Prints results to stdout and notes to stderr, and formats text for the terminal.
//!
//! Start with [`print`], [`print_json`] and [`Table`]. Text from outside passes [`sanitize`] first.

mod confirm;
mod paint;
mod pretty_json;
mod progress;
mod sanitize;
mod table;

use std::fmt::Display;
use std::io::{IsTerminal, Write, stdout};

use terminal_size::{Width, terminal_size_of};
use unicode_width::UnicodeWidthStr;

pub use self::confirm::confirm;
pub use self::paint::{BAD, BUSY, FAINT, GOOD, HEADING, WARN, status_style};
pub use self::pretty_json::pretty_json;
pub use self::progress::{progress, spinner};
pub use self::sanitize::{sanitize, sanitize_lines};
pub use self::table::{Cell, Table, left, paint, right, text, truncate};
use crate::Result;

/// Prints a line to stdout. Unlike `println!`, a closed pipe is an error and not a panic. Colors are omitted if stdout
/// is no terminal or `NO_COLOR` is set.
pub fn print(line: &dyn Display) -> Result {
    writeln!(anstream::stdout(), "{line}")?;
    Ok(())
}

/// Prints JSON from the API unchanged, in one line. On a terminal, control characters are escaped.
pub fn print_json(text: &str) -> Result {
    let text = text.trim_end();
    match stdout().is_terminal() {
        true => writeln!(stdout(), "{}", sanitize::sanitize_json(text))?,
        false => writeln!(stdout(), "{text}")?,
    }
    Ok(())
}

/// Prints a note to stderr. Write errors are ignored: there is no other place to report them.
pub fn print_note(note: &str) {
    let _ = writeln!(anstream::stderr(), "{}", paint(&sanitize(note), FAINT));
}

/// Prints a table, no wider than the terminal.
pub fn print_table<const COLUMNS: usize>(table: &Table<COLUMNS>) -> Result {
    print(&table.render(terminal_width()))
}

/// Returns the width of the terminal. `None` for files and pipes, where nothing is truncated.
pub fn terminal_width() -> Option<usize> {
    if !stdout().is_terminal() {
        return None;
    }
    let configured =
        std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    let detected = || terminal_size_of(stdout()).map(|(Width(width), _)| usize::from(width)).filter(|width| *width > 0);
    configured.or_else(detected).or(Some(WIDTH_DEFAULT))
}

const WIDTH_DEFAULT: usize = 80;

/// Formats one name and value per line and omits fields without a value. Long values are wrapped between words.
pub fn format_fields(named_values: &[(&str, Option<String>)]) -> String {
    format_fields_within(named_values, terminal_width())
}

fn format_fields_within(named_values: &[(&str, Option<String>)], width: Option<usize>) -> String {
    let name_width =
        named_values.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, Option<String>)| {
        let lines: Vec<String> =
            value.as_ref()?.split('\n').flat_map(|line| wrap_line(line, width, name_width + 2)).collect();
        let value = lines.join(&format!("\n{:name_width$}  ", ""));
        Some(format!("{}  {value}", paint(&format!("{:name_width$}", sanitize(name)), FAINT)))
    };
    named_values.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

/// Wraps a line between words so that it fits behind `indent` columns. A word is never broken, because users copy ids.
pub fn wrap_line(line: &str, width: Option<usize>, indent: usize) -> Vec<String> {
    let visible_width = |text: &str| anstream::adapter::strip_str(text).to_string().width();
    let Some(available) = width.map(|width| width.saturating_sub(indent)).filter(|max| visible_width(line) > *max)
    else {
        return vec![line.to_owned()];
    };
    let mut pieces = vec![String::new()];
    for word in line.split_inclusive(' ') {
        let last = pieces.len() - 1;
        if !pieces[last].is_empty() && visible_width(&pieces[last]) + visible_width(word.trim_end()) > available {
            pieces.push(word.to_owned());
        } else {
            pieces[last].push_str(word);
        }
    }
    pieces.iter().map(|piece| piece.trim_end().to_owned()).collect()
}

/// Formats a heading and the text below it.
pub fn format_section(heading: &str, body: &str) -> String {
    format!("{}\n{body}", paint(heading, HEADING))
}

/// Formats a count and a noun: "1 event", "2 events", "2 deliveries".
pub fn pluralize(count: u64, noun: &str) -> String {
    match noun.strip_suffix('y') {
        _ if count == 1 => format!("1 {noun}"),
        Some(stem) => format!("{count} {stem}ies"),
        None => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_singular_and_plural() {
        let found = [pluralize(0, "event"), pluralize(1, "delivery"), pluralize(2, "delivery")];
        assert_eq!(found, ["0 events", "1 delivery", "2 deliveries"]);
    }

    #[test]
    fn multi_line_values_are_aligned() {
        let named_values = [("event", Some("7".to_owned())), ("not shown", None), ("why", Some("one\ntwo".to_owned()))];
        let plain = anstream::adapter::strip_str(&format_fields(&named_values)).to_string();
        assert_eq!(plain, "event  7\nwhy    one\n       two");
    }

    #[test]
    fn long_values_are_wrapped_between_words() {
        let named_values = [("why", Some(paint("It waits behind event-1000000001 of its group", WARN)))];
        let plain = anstream::adapter::strip_str(&format_fields_within(&named_values, Some(20))).to_string();
        assert_eq!(plain, "why  It waits behind\n     event-1000000001\n     of its group");
        assert_eq!(format_fields_within(&named_values, None).lines().count(), 1);
    }
}
