//! Handles keys and holds the state of the screen: sort order, position, help and pause.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::view::{Row, View};

/// What the rows are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortOrder {
    #[default]
    Pending,
    Dead,
    Oldest,
    Rate,
    Name,
}

impl SortOrder {
    pub const fn name(self) -> &'static str {
        match self {
            SortOrder::Pending => "waiting",
            SortOrder::Dead => "dead",
            SortOrder::Oldest => "oldest",
            SortOrder::Rate => "rate",
            SortOrder::Name => "type",
        }
    }

    fn next(self) -> SortOrder {
        match self {
            SortOrder::Pending => SortOrder::Dead,
            SortOrder::Dead => SortOrder::Oldest,
            SortOrder::Oldest => SortOrder::Rate,
            SortOrder::Rate => SortOrder::Name,
            SortOrder::Name => SortOrder::Pending,
        }
    }
}

/// The effect of a key outside of the screen's own state.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyEffect {
    Continue,
    Quit,
    /// Switch to this namespace.
    SwitchNamespace(String),
}

#[derive(Default)]
pub struct ScreenState {
    pub sort: SortOrder,
    pub reversed: bool,
    /// The first row that is shown.
    pub first_row: usize,
    pub shows_help: bool,
    /// The view that is shown while the screen is paused.
    paused: Option<View>,
}

impl ScreenState {
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    pub fn view<'a>(&'a self, newest: &'a View) -> &'a View {
        self.paused.as_ref().unwrap_or(newest)
    }

    /// Keeps the first row within a view that may have fewer rows.
    pub fn clamp_to(&mut self, view: &View) {
        self.first_row = self.first_row.min(view.rows.len().saturating_sub(1));
    }

    /// Returns the rows in the current sort order.
    pub fn sorted<'a>(&self, rows: &'a [Row]) -> Vec<&'a Row> {
        let mut sorted: Vec<&Row> = rows.iter().collect();
        // The sort is stable and the rows are sorted by name, so the name decides between equal rows.
        match self.sort {
            SortOrder::Pending => sorted.sort_by_key(|row| std::cmp::Reverse((row.pending, row.processing))),
            SortOrder::Dead => sorted.sort_by_key(|row| std::cmp::Reverse(row.dead)),
            SortOrder::Oldest => sorted.sort_by_key(|row| (row.oldest_at.is_none(), row.oldest_at)),
            SortOrder::Rate => sorted.sort_by(|a, b| b.rates.completed.total_cmp(&a.rates.completed)),
            SortOrder::Name => {}
        }
        if self.reversed {
            sorted.reverse();
        }
        sorted
    }

    pub fn handle_key(&mut self, key: KeyEvent, view: &View) -> KeyEffect {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { KeyEffect::Quit } else { KeyEffect::Continue };
        }
        match key.code {
            KeyCode::Char('q') => return KeyEffect::Quit,
            KeyCode::Esc if self.shows_help => self.shows_help = false,
            KeyCode::Esc => return KeyEffect::Quit,
            KeyCode::Char('?' | 'h') => self.shows_help = !self.shows_help,
            KeyCode::Char('p' | ' ') => self.paused = if self.is_paused() { None } else { Some(view.clone()) },
            KeyCode::Char('s') => (self.sort, self.first_row) = (self.sort.next(), 0),
            KeyCode::Char('r') => (self.reversed, self.first_row) = (!self.reversed, 0),
            KeyCode::Down | KeyCode::Char('j') => self.first_row = (self.first_row + 1).min(last_row(view)),
            KeyCode::Up | KeyCode::Char('k') => self.first_row = self.first_row.saturating_sub(1),
            KeyCode::PageDown => self.first_row = (self.first_row + PAGE_ROWS).min(last_row(view)),
            KeyCode::PageUp => self.first_row = self.first_row.saturating_sub(PAGE_ROWS),
            KeyCode::Home | KeyCode::Char('g') => self.first_row = 0,
            KeyCode::End | KeyCode::Char('G') => self.first_row = last_row(view),
            KeyCode::Char('n') => return self.switch_namespace(view, 1),
            KeyCode::Char('N') => return self.switch_namespace(view, -1),
            _ => {}
        }
        KeyEffect::Continue
    }

    fn switch_namespace(&mut self, view: &View, step: isize) -> KeyEffect {
        let names = &view.namespaces;
        let Some(index) = names.iter().position(|name| *name == view.namespace) else { return KeyEffect::Continue };
        let index = (index as isize + step).rem_euclid(names.len() as isize) as usize;
        (self.first_row, self.paused) = (0, None);
        KeyEffect::SwitchNamespace(names[index].clone())
    }
}

const PAGE_ROWS: usize = 10;

fn last_row(view: &View) -> usize {
    view.rows.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::sample_view;
    use super::*;

    fn order(screen: &ScreenState, view: &View) -> Vec<String> {
        screen.sorted(&view.rows).iter().map(|row| format!("{}/{}", row.event_type, row.subscription)).collect()
    }

    #[test]
    fn sort_key_cycles_through_the_orders() {
        let (mut screen, view) = (ScreenState::default(), sample_view());
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push((screen.sort.name(), order(&screen, &view)[0].clone()));
            screen.handle_key(KeyCode::Char('s').into(), &view);
        }
        let expected = [
            ("waiting", "order.paid/main"),
            ("dead", "mail.send/main"),
            ("oldest", "order.paid/billing"),
            ("rate", "order.paid/billing"),
            ("type", "mail.send/main"),
        ];
        assert_eq!(seen, expected.map(|(sort, row)| (sort, row.to_owned())));
        assert_eq!(screen.sort, SortOrder::Pending);
        screen.handle_key(KeyCode::Char('r').into(), &view);
        assert_eq!(order(&screen, &view).last().map(String::as_str), Some("order.paid/main"));
    }

    #[test]
    fn scrolling_stays_within_the_rows() {
        let (mut screen, view) = (ScreenState::default(), sample_view());
        for _ in 0..10 {
            screen.handle_key(KeyCode::Down.into(), &view);
        }
        assert_eq!(screen.first_row, 2);
        screen.handle_key(KeyCode::Home.into(), &view);
        screen.handle_key(KeyCode::Up.into(), &view);
        assert_eq!(screen.first_row, 0);
        screen.first_row = 2;
        screen.clamp_to(&View::default());
        assert_eq!(screen.first_row, 0);
    }

    #[test]
    fn namespaces_are_switched_in_a_cycle() {
        let (mut screen, mut view) = (ScreenState::default(), sample_view());
        assert_eq!(screen.handle_key(KeyCode::Char('n').into(), &view), KeyEffect::SwitchNamespace("shop".into()));
        view.namespace = "shop".into();
        assert_eq!(screen.handle_key(KeyCode::Char('n').into(), &view), KeyEffect::SwitchNamespace("default".into()));
        assert_eq!(screen.handle_key(KeyCode::Char('N').into(), &view), KeyEffect::SwitchNamespace("default".into()));
        assert_eq!(screen.handle_key(KeyCode::Char('n').into(), &View::default()), KeyEffect::Continue);
    }

    #[test]
    fn paused_screen_keeps_its_view() {
        let (mut screen, view) = (ScreenState::default(), sample_view());
        screen.handle_key(KeyCode::Char('p').into(), &view);
        assert_eq!(screen.view(&View::default()).rows.len(), 3);
        screen.handle_key(KeyCode::Char('p').into(), &view);
        assert!(screen.view(&View::default()).rows.is_empty());
        assert_eq!(screen.handle_key(KeyCode::Char('q').into(), &view), KeyEffect::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.handle_key(interrupt, &view), KeyEffect::Quit);
    }
}
