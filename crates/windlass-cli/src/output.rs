//! What is printed for people and programs: results, to stdout.

use std::fmt::Display;
use std::io::Write;

use crate::Result;

/// Unlike `println!`, a reader that has gone away is an error here and not a panic.
pub fn print(line: &dyn Display) -> Result {
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}

/// JSON from the API, as it came, in one line.
pub fn print_json(text: &str) -> Result {
    print(&text.trim_end())
}

/// Names and values below each other; what has no value is left out.
pub fn fields(facts: &[(&str, Option<String>)]) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, Option<String>)| value.as_ref().map(|value| format!("{name:width$}  {value}"));
    facts.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

/// An instant of the API, to the second.
pub fn instant(text: &str) -> String {
    match text.get(..19) {
        Some(to_the_second) => format!("{}Z", to_the_second),
        None => text.to_owned(),
    }
}

/// Columns as wide as their longest cell, two spaces apart; the first row is the head.
pub fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let line = |row: &[String; COLUMNS]| {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters() {
        let rows = [["ID", "NAME", "LAST"], ["1", "Zoë", "a"], ["22", "Łukasz K.", ""]];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "ID  NAME       LAST\n1   Zoë        a\n22  Łukasz K.");
    }
}
