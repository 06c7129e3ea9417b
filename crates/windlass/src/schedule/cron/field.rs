//! Checks the fields of a cron expression. Rejects what croner would misinterpret or explain badly, and rewrites what
//! it does not understand.

/// A field of a cron expression.
pub(super) struct Field {
    pub name: &'static str,
    min: u32,
    max: u32,
    /// Names for the numbers from `min` on. croner accepts every name in every field.
    names: &'static [&'static str],
    /// Other accepted words.
    marks: &'static [&'static str],
}

const MONTHS: &[&str] = &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// All fields in order, including the seconds.
pub(super) const FIELDS: [Field; 6] = [
    Field { name: "second", min: 0, max: 59, names: &[], marks: &[] },
    Field { name: "minute", min: 0, max: 59, names: &[], marks: &[] },
    Field { name: "hour", min: 0, max: 23, names: &[], marks: &[] },
    Field { name: "day of the month", min: 1, max: 31, names: &[], marks: &["L", "W", "LW"] },
    Field { name: "month", min: 1, max: 12, names: MONTHS, marks: &[] },
    Field { name: "day of the week", min: 0, max: 6, names: DAYS, marks: &["L"] },
];

impl Field {
    /// The field rewritten for croner, or a description of what is wrong with it.
    pub fn checked(&self, text: &str) -> Result<String, String> {
        let text = text.to_ascii_uppercase();
        // A `+` before the day of the week: both days have to match.
        let (both, items) = text.strip_prefix('+').map_or(("", text.as_str()), |items| ("+", items));
        let items: Vec<String> = items.split(',').map(|item| self.item(item, &text)).collect::<Result<_, _>>()?;
        Ok(format!("{both}{}", items.join(",")))
    }

    fn item(&self, item: &str, text: &str) -> Result<String, String> {
        if item.is_empty() && text != "+" {
            return Err("an empty item in a list".to_owned());
        }
        let mut words = item.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
        if let Some(word) = words.find(|word| !self.names.contains(word) && !self.marks.contains(word)) {
            return Err(format!("the unknown word '{word}'"));
        }
        let (days, nth) = item.split_once('#').map_or((item, None), |(days, nth)| (days, Some(nth)));
        let (range, step) = days.split_once('/').map_or((days, None), |(range, step)| (range, Some(step)));
        let ends = range.split_once('-').and_then(|(from, to)| Some((self.number(from)?, self.range_end(to)?)));
        if let Some((from, to)) = ends.filter(|(from, to)| from > to) {
            let (end, start) = (format_range(from, self.max), format_range(self.min, to));
            return Err(format!("a range that wraps, '{item}' (ranges do not: write '{end},{start}')"));
        }
        let (from, to) = ends.unwrap_or((self.min, self.max));
        if step.and_then(|step| step.parse().ok()).is_some_and(|step: u32| step > 1 && step > to - from) {
            return Err(format!("a step that is larger than its range, which is {}", format_range(from, to)));
        }
        if self.is_weekday() { self.weekday(item, range, step, nth.or(last_mark(range))) } else { Ok(item.to_owned()) }
    }

    /// croner accepts 7 as Sunday, but not in `7L` or `7#2`.
    fn weekday(&self, item: &str, range: &str, step: Option<&str>, nth: Option<&str>) -> Result<String, String> {
        let days = range.trim_end_matches('L');
        let Some(nth) = nth else { return Ok(item.to_owned()) };
        match days.split_once('-') {
            _ if days.is_empty() => Err("an L without a day (write '5L' for the last Friday)".to_owned()),
            _ if step.is_some() => Err(format!("both a step and the day of a certain week, '{item}'")),
            None if days == "7" => Ok(format!("0#{nth}")),
            Some((from, "7" | "SUN")) => Ok(format!("{from}-6#{nth},0#{nth}")),
            _ => Ok(format!("{days}#{nth}")),
        }
    }

    fn is_weekday(&self) -> bool {
        self.names == DAYS
    }

    fn number(&self, text: &str) -> Option<u32> {
        let named = self.names.iter().position(|name| *name == text).map(|index| self.min + index as u32);
        named.or_else(|| text.parse().ok())
    }

    /// The end of a range. `SUN` at the end of a range of weekdays is 7.
    fn range_end(&self, text: &str) -> Option<u32> {
        if self.is_weekday() && text == "SUN" { Some(7) } else { self.number(text) }
    }
}

/// The `L` of `5L`, the last Friday.
fn last_mark(range: &str) -> Option<&str> {
    range.ends_with('L').then_some("L")
}

fn format_range(from: u32, to: u32) -> String {
    if from == to { from.to_string() } else { format!("{from}-{to}") }
}
