//! Tables that fit the terminal.

use anstyle::{Effects, Style};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::clean::clean;

/// Between two columns.
const GAP: usize = 2;
/// A column that can be cut is left at least this wide.
const NARROW: usize = 8;
/// Before one is cut to less than this, spare ones are left out.
const COMFORT: usize = 24;
const HEAD: Style = Style::new().effects(Effects::DIMMED);

/// One column: what stands above it, and how it is set.
#[derive(Clone, Copy)]
pub struct Column {
    head: &'static str,
    right: bool,
    cut: bool,
    spare: bool,
}

impl Column {
    /// Left out where the terminal is too narrow for all of them.
    pub const fn spare(self) -> Column {
        Column { spare: true, ..self }
    }
}

/// Set left, and never cut: names and ids, which are copied from here.
pub const fn left(head: &'static str) -> Column {
    Column { head, right: false, cut: false, spare: false }
}

/// Numbers.
pub const fn right(head: &'static str) -> Column {
    Column { head, right: true, cut: false, spare: false }
}

/// Text that may be cut where the terminal is too narrow.
pub const fn text(head: &'static str) -> Column {
    Column { head, right: false, cut: true, spare: false }
}

/// What stands in one place. Whatever it is made of is made harmless.
#[derive(Clone, Default)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub fn new(content: impl AsRef<str>) -> Cell {
        Cell { text: clean(content.as_ref()), style: Style::new() }
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

/// Rows below a head. A column in which no row has anything is left out.
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

    /// No wider than this, where that is possible; with the codes for colours.
    pub fn render(&self, width: Option<usize>) -> String {
        let shown = self.shown(width);
        let natural: Vec<(usize, bool)> =
            shown.iter().map(|column| (self.width_of(*column), self.columns[*column].cut)).collect();
        let widths = fitted(&natural, width);
        let head: [Cell; COLUMNS] = self.columns.map(|column| Cell::styled(column.head, HEAD));
        let line = |row: &[Cell; COLUMNS]| {
            let cells = shown.iter().zip(&widths).enumerate().map(|(place, (column, width))| {
                let last = place + 1 == shown.len();
                set(&row[*column], *width, self.columns[*column].right, last)
            });
            cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
        };
        std::iter::once(&head).chain(&self.rows).map(line).collect::<Vec<_>>().join("\n")
    }

    /// The columns that are worth showing and have room.
    fn shown(&self, width: Option<usize>) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..COLUMNS).filter(|column| self.has_any(*column)).collect();
        let needed = |column: &usize| match self.columns[*column].cut {
            true => self.width_of(*column).min(COMFORT) + GAP,
            false => self.width_of(*column) + GAP,
        };
        while width.is_some_and(|width| shown.iter().map(needed).sum::<usize>() > width + GAP) {
            let Some(place) = shown.iter().rposition(|column| self.columns[*column].spare) else { break };
            shown.remove(place);
        }
        shown
    }

    fn has_any(&self, column: usize) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|row| !row[column].text.is_empty())
    }

    fn width_of(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].text.width());
        cells.max().unwrap_or(0).max(self.columns[column].head.width())
    }
}

/// The widths that fit: of the columns that may be cut, the widest give way first.
fn fitted(natural: &[(usize, bool)], width: Option<usize>) -> Vec<usize> {
    let mut widths: Vec<usize> = natural.iter().map(|(width, _)| *width).collect();
    let Some(width) = width else { return widths };
    let gaps = GAP * widths.len().saturating_sub(1);
    let mut over = (widths.iter().sum::<usize>() + gaps).saturating_sub(width);
    while over > 0 {
        let can_give =
            |(column, (_, cut)): (usize, &(usize, bool))| (*cut && widths[column] > NARROW).then_some(column);
        let widest = natural.iter().enumerate().filter_map(can_give).max_by_key(|column| widths[*column]);
        let Some(widest) = widest else { break };
        widths[widest] -= 1;
        over -= 1;
    }
    widths
}

/// Cut or filled up to the width; nothing is filled up at the end of a line.
fn set(cell: &Cell, width: usize, right: bool, last: bool) -> String {
    let shown = cut(&cell.text, width);
    let filling = " ".repeat(width - shown.width().min(width));
    let styled = paint(&shown, cell.style);
    match (right, last) {
        (true, _) => format!("{filling}{styled}"),
        (false, true) => styled,
        (false, false) => format!("{styled}{filling}"),
    }
}

/// The text in this style. Printing takes the codes out where colours are not wanted.
pub fn paint(text: &str, style: Style) -> String {
    match text.is_empty() || style == Style::new() {
        true => text.to_owned(),
        false => format!("{style}{text}{style:#}"),
    }
}

/// As much of the text as fits into this many columns; `…` tells that there was more.
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut room = width.saturating_sub(1);
    let fits = |c: &char| {
        let wide = c.width().unwrap_or(0);
        let fits = wide <= room;
        room = if fits { room - wide } else { 0 };
        fits
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use anstyle::AnsiColor;

    use super::*;

    fn people() -> Table<4> {
        let mut table = Table::new([right("ID"), text("NAME"), left("NOTHING"), text("WHY")]);
        table.row([1.into(), "Zoë".into(), "".into(), "a".into()]);
        table.row([22.into(), "漢字 Łukasz K.".into(), "".into(), "a long story, too long to tell".into()]);
        table
    }

    #[test]
    fn columns_are_aligned_by_what_is_seen() {
        let plain = anstream::adapter::strip_str(&people().render(None)).to_string();
        let expected = "\
ID  NAME            WHY
 1  Zoë             a
22  漢字 Łukasz K.  a long story, too long to tell";
        assert_eq!(plain, expected);
    }

    #[test]
    fn what_is_widest_gives_way() {
        let plain = anstream::adapter::strip_str(&people().render(Some(34))).to_string();
        let expected = "\
ID  NAME            WHY
 1  Zoë             a
22  漢字 Łukasz K.  a long story,…";
        assert_eq!(plain, expected);
        let narrow = anstream::adapter::strip_str(&people().render(Some(1))).to_string();
        assert_eq!(narrow.lines().last(), Some("22  漢字 Łu…  a long …"));
    }

    #[test]
    fn what_can_be_spared_goes_first() {
        let mut table = Table::new([left("ID"), text("GROUP").spare(), text("TAGS").spare(), text("TITLE")]);
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
    fn a_wide_character_is_not_cut_in_half() {
        assert_eq!((cut("漢字", 4), cut("漢字", 3), cut("漢字", 2)), ("漢字".into(), "漢…".into(), "…".into()));
        assert_eq!((cut("abc", 3), cut("abcd", 3), cut("", 0)), ("abc".into(), "ab…".into(), String::new()));
    }

    #[test]
    fn colours_take_no_room_and_cells_are_harmless() {
        let mut table = Table::new([left("STATUS"), left("X")]);
        table.row([Cell::styled("FAILED", AnsiColor::Red.on_default()), "\x1b[2J".into()]);
        let shown = table.render(None);
        assert_eq!(shown.lines().last(), Some("\x1b[31mFAILED\x1b[0m  \\u{1b}[2J"));
    }
}
