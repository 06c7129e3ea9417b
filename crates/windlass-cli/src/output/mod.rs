//! What is printed for people and programs: results, to stdout.

mod clean;
mod confirm;
mod paint;
mod pretty;
mod progress;
mod table;

use std::fmt::Display;
use std::io::{IsTerminal, Write, stdout};

use terminal_size::{Width, terminal_size_of};
use unicode_width::UnicodeWidthStr;

pub use self::clean::{clean, clean_lines};
pub use self::confirm::confirm;
pub use self::paint::{BAD, BUSY, FAINT, GOOD, HEADING, WARN, of_status};
pub use self::pretty::pretty;
pub use self::progress::{progress, spinner};
pub use self::table::{Cell, Table, cut, left, paint, right, text};
use crate::Result;

/// Unlike `println!`, a reader that has gone away is an error here and not a panic. Colours are left out where they are
/// not wanted: away from a terminal, or with `NO_COLOR`.
pub fn print(line: &dyn Display) -> Result {
    writeln!(anstream::stdout(), "{line}")?;
    Ok(())
}

/// JSON from the API, as it came, in one line.
pub fn print_json(text: &str) -> Result {
    let text = text.trim_end();
    match stdout().is_terminal() {
        true => writeln!(stdout(), "{}", clean::clean_json(text))?,
        false => writeln!(stdout(), "{text}")?,
    }
    Ok(())
}

/// A remark beside the results, to stderr. Nothing can be done where that is gone.
pub fn tell(remark: &str) {
    let _ = writeln!(anstream::stderr(), "{}", paint(&clean(remark), FAINT));
}

/// A table, no wider than the terminal.
pub fn print_table<const COLUMNS: usize>(table: &Table<COLUMNS>) -> Result {
    print(&table.render(width()))
}

/// How wide the terminal is; `None` where there is none, so that nothing is cut in files and pipes.
pub fn width() -> Option<usize> {
    if !stdout().is_terminal() {
        return None;
    }
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    let seen = || terminal_size_of(stdout()).map(|(Width(width), _)| usize::from(width)).filter(|width| *width > 0);
    told.or_else(seen).or(Some(WIDTH_DEFAULT))
}

const WIDTH_DEFAULT: usize = 80;

/// Names and values below each other; what has no value is left out. Values may have several lines, and are broken
/// between words where the terminal ends.
pub fn fields(facts: &[(&str, Option<String>)]) -> String {
    fields_within(facts, width())
}

fn fields_within(facts: &[(&str, Option<String>)], width: Option<usize>) -> String {
    let names = facts.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, Option<String>)| {
        let lines: Vec<String> = value.as_ref()?.split('\n').flat_map(|line| wrapped(line, width, names + 2)).collect();
        let value = lines.join(&format!("\n{:names$}  ", ""));
        Some(format!("{}  {value}", paint(&format!("{name:names$}"), FAINT)))
    };
    facts.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

/// The line in pieces that fit beside what stands before them. A word is never broken: people copy them.
pub fn wrapped(line: &str, width: Option<usize>, before: usize) -> Vec<String> {
    let seen = |text: &str| anstream::adapter::strip_str(text).to_string().width();
    let Some(room) = width.map(|width| width.saturating_sub(before)).filter(|room| seen(line) > *room) else {
        return vec![line.to_owned()];
    };
    let mut pieces = vec![String::new()];
    for word in line.split_inclusive(' ') {
        let last = pieces.len() - 1;
        if !pieces[last].is_empty() && seen(&pieces[last]) + seen(word.trim_end()) > room {
            pieces.push(word.to_owned());
        } else {
            pieces[last].push_str(word);
        }
    }
    pieces.iter().map(|piece| piece.trim_end().to_owned()).collect()
}

/// A heading and what stands below it.
pub fn section(heading: &str, body: &str) -> String {
    format!("{}\n{body}", paint(heading, HEADING))
}

/// "1 event", "2 events", "2 deliveries".
pub fn counted(count: u64, what: &str) -> String {
    match what.strip_suffix('y') {
        _ if count == 1 => format!("1 {what}"),
        Some(stem) => format!("{count} {stem}ies"),
        None => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_counted() {
        let counted = [counted(0, "event"), counted(1, "delivery"), counted(2, "delivery")];
        assert_eq!(counted, ["0 events", "1 delivery", "2 deliveries"]);
    }

    #[test]
    fn values_of_several_lines_stand_below_each_other() {
        let facts = [("event", Some("7".to_owned())), ("not shown", None), ("why", Some("one\ntwo".to_owned()))];
        let plain = anstream::adapter::strip_str(&fields(&facts)).to_string();
        assert_eq!(plain, "event  7\nwhy    one\n       two");
    }

    #[test]
    fn long_values_are_broken_between_words() {
        let facts = [("why", Some(paint("It waits behind event-1000000001 of its group", WARN)))];
        let plain = anstream::adapter::strip_str(&fields_within(&facts, Some(20))).to_string();
        assert_eq!(plain, "why  It waits behind\n     event-1000000001\n     of its group");
        assert_eq!(fields_within(&facts, None).lines().count(), 1);
    }
}
