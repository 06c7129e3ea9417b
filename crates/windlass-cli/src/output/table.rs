//! Tables that fit the terminal.

use anstyle::{Effects, Style};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::sanitize::sanitize;

/// Spaces between two columns.
const GAP: usize = 2;
/// Truncated columns keep at least this width.
const TRUNCATED_WIDTH_MIN: usize = 8;
/// Optional columns are hidden before a column is truncated to less than this width.
const COMFORTABLE_WIDTH: usize = 24;
const HEAD: Style = Style::new().effects(Effects::DIMMED);

/// The heading and alignment of a column.
#[derive(Clone, Copy)]
pub struct Column {
    head: &'static str,
    right: bool,
    can_truncate: bool,
    optional: bool,
}

impl Column {
    /// Hides the column if the terminal is too narrow for all columns.
    pub const fn optional(self) -> Column {
        Column { optional: true, ..self }
    }
}

/// A left-aligned column that is never truncated: names and ids, which users copy.
pub const fn left(head: &'static str) -> Column {
    Column { head, right: false, can_truncate: false, optional: false }
}

/// A right-aligned column, for numbers.
pub const fn right(head: &'static str) -> Column {
    Column { head, right: true, can_truncate: false, optional: false }
}

/// A text column that may be truncated if the terminal is too narrow.
pub const fn text(head: &'static str) -> Column {
    Column { head, right: false, can_truncate: true, optional: false }
}

/// The content of a cell. Control characters in it are escaped.
#[derive(Clone, Default)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub fn new(content: impl AsRef<str>) -> Cell {
        Cell { text: sanitize(content.as_ref()), style: Style::new() }
    }

    pub fn styled(content: impl AsRef<str>, style: Style) -> Cell {
        Cell { style, ..Cell::new(content) }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::new(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::new(text)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(content: Option<T>) -> Cell {
        content.map(Into::into).unwrap_or_default()
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl From<$number> for Cell {
            fn from(number: $number) -> Cell {
                Cell::new(number.to_string())
            }
        }
    )*};
}
numbers!(i32 i64 u32 u64 usize);

/// Rows below a heading. A column without any content is hidden.
pub struct Table<const COLUMNS: usize> {
    columns: [Column; COLUMNS],
    rows: Vec<[Cell; COLUMNS]>,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    pub fn new(columns: [Column; COLUMNS]) -> Table<COLUMNS> {
        Table { columns, rows: Vec::new() }
    }

    pub fn row(&mut self, cells: [Cell; COLUMNS]) {
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Renders the table, with color codes. It fits the width if the columns allow it.
    pub fn render(&self, width: Option<usize>) -> String {
        let visible = self.visible_columns(width);
        let natural: Vec<(usize, bool)> =
            visible.iter().map(|column| (self.width_of(*column), self.columns[*column].can_truncate)).collect();
        let widths = fit_widths(&natural, width);
        let head: [Cell; COLUMNS] = self.columns.map(|column| Cell::styled(column.head, HEAD));
        let line = |row: &[Cell; COLUMNS]| {
            let cells = visible.iter().zip(&widths).enumerate().map(|(index, (column, width))| {
                let is_last = index + 1 == visible.len();
                align(&row[*column], *width, self.columns[*column].right, is_last)
            });
            cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
        };
        std::iter::once(&head).chain(&self.rows).map(line).collect::<Vec<_>>().join("\n")
    }

    /// Returns the columns that have content and fit.
    fn visible_columns(&self, width: Option<usize>) -> Vec<usize> {
        let mut visible: Vec<usize> = (0..COLUMNS).filter(|column| self.has_content(*column)).collect();
        let needed = |column: &usize| match self.columns[*column].can_truncate {
            true => self.width_of(*column).min(COMFORTABLE_WIDTH) + GAP,
            false => self.width_of(*column) + GAP,
        };
        while width.is_some_and(|width| visible.iter().map(needed).sum::<usize>() > width + GAP) {
            let Some(index) = visible.iter().rposition(|column| self.columns[*column].optional) else { break };
            visible.remove(index);
        }
        visible
    }

    fn has_content(&self, column: usize) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|row| !row[column].text.is_empty())
    }

    fn width_of(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].text.width());
        cells.max().unwrap_or(0).max(self.columns[column].head.width())
    }
}

/// Returns column widths that fit. The widest truncatable columns shrink first.
fn fit_widths(natural: &[(usize, bool)], width: Option<usize>) -> Vec<usize> {
    let mut widths: Vec<usize> = natural.iter().map(|(width, _)| *width).collect();
    let Some(width) = width else { return widths };
    let gaps = GAP * widths.len().saturating_sub(1);
    let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(width);
    while excess > 0 {
        let can_shrink = |(column, (_, can_truncate)): (usize, &(usize, bool))| {
            (*can_truncate && widths[column] > TRUNCATED_WIDTH_MIN).then_some(column)
        };
        let widest = natural.iter().enumerate().filter_map(can_shrink).max_by_key(|column| widths[*column]);
        let Some(widest) = widest else { break };
        widths[widest] -= 1;
        excess -= 1;
    }
    widths
}

/// Truncates or pads a cell to the width. The last cell of a line gets no padding on the right.
fn align(cell: &Cell, width: usize, right: bool, is_last: bool) -> String {
    let shown = truncate(&cell.text, width);
    let padding = " ".repeat(width - shown.width().min(width));
    let styled = paint(&shown, cell.style);
    match (right, is_last) {
        (true, _) => format!("{padding}{styled}"),
        (false, true) => styled,
        (false, false) => format!("{styled}{padding}"),
    }
}

/// Returns the text in this style. Printing removes the codes if colors are off.
pub fn paint(text: &str, style: Style) -> String {
    match text.is_empty() || style == Style::new() {
        true => text.to_owned(),
        false => format!("{style}{text}{style:#}"),
    }
}

/// Truncates the text to this many columns. `…` marks a truncated text.
pub fn truncate(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut remaining = width.saturating_sub(1);
    let fits = |c: &char| {
        let char_width = c.width().unwrap_or(0);
        let fits = char_width <= remaining;
        remaining = if fits { remaining - char_width } else { 0 };
        fits
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use anstyle::AnsiColor;

    use super::*;

    fn sample_table() -> Table<4> {
        let mut table = Table::new([right("ID"), text("NAME"), left("NOTHING"), text("WHY")]);
        table.row([1.into(), "Zoë".into(), "".into(), "a".into()]);
        table.row([22.into(), "漢字 Łukasz K.".into(), "".into(), "a long story, too long to tell".into()]);
        table
    }

    #[test]
    fn columns_are_aligned_by_display_width() {
        let plain = anstream::adapter::strip_str(&sample_table().render(None)).to_string();
        let expected = "\
ID  NAME            WHY
 1  Zoë             a
22  漢字 Łukasz K.  a long story, too long to tell";
        assert_eq!(plain, expected);
    }

    #[test]
    fn widest_column_shrinks_first() {
        let plain = anstream::adapter::strip_str(&sample_table().render(Some(34))).to_string();
        let expected = "\
ID  NAME            WHY
 1  Zoë             a
22  漢字 Łukasz K.  a long story,…";
        assert_eq!(plain, expected);
        let narrow = anstream::adapter::strip_str(&sample_table().render(Some(1))).to_string();
        assert_eq!(narrow.lines().last(), Some("22  漢字 Łu…  a long …"));
    }

    #[test]
    fn optional_columns_are_hidden_first() {
        let mut table = Table::new([left("ID"), text("GROUP").optional(), text("TAGS").optional(), text("TITLE")]);
        table.row(["1".into(), "customer-42".into(), "shop".into(), "Order 17 is paid".into()]);
        let heads = |width| {
            let plain = anstream::adapter::strip_str(&table.render(Some(width))).to_string();
            plain.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(heads(39), "ID GROUP TAGS TITLE");
        assert_eq!(heads(38), "ID GROUP TITLE");
        assert_eq!(heads(20), "ID TITLE");
    }

    #[test]
    fn wide_character_is_not_split() {
        assert_eq!(
            (truncate("漢字", 4), truncate("漢字", 3), truncate("漢字", 2)),
            ("漢字".into(), "漢…".into(), "…".into())
        );
        assert_eq!(
            (truncate("abc", 3), truncate("abcd", 3), truncate("", 0)),
            ("abc".into(), "ab…".into(), String::new())
        );
    }

    #[test]
    fn colors_have_no_width_and_cells_are_escaped() {
        let mut table = Table::new([left("STATUS"), left("X")]);
        table.row([Cell::styled("FAILED", AnsiColor::Red.on_default()), "\x1b[2J".into()]);
        let shown = table.render(None);
        assert_eq!(shown.lines().last(), Some("\x1b[31mFAILED\x1b[0m  \\u{1b}[2J"));
    }
}
