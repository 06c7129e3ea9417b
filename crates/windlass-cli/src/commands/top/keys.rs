//! What keys do, and what somebody at the screen has chosen: pure.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::view::{Row, View};

/// What the rows are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    #[default]
    Waiting,
    Dead,
    Oldest,
    Rate,
    Name,
}

impl Sort {
    pub const fn name(self) -> &'static str {
        match self {
            Sort::Waiting => "waiting",
            Sort::Dead => "dead",
            Sort::Oldest => "oldest",
            Sort::Rate => "rate",
            Sort::Name => "type",
        }
    }

    fn next(self) -> Sort {
        match self {
            Sort::Waiting => Sort::Dead,
            Sort::Dead => Sort::Oldest,
            Sort::Oldest => Sort::Rate,
            Sort::Rate => Sort::Name,
            Sort::Name => Sort::Waiting,
        }
    }
}

/// What is to happen.
#[derive(Debug, PartialEq, Eq)]
pub enum Then {
    GoOn,
    Quit,
    /// Look at this one.
    Namespace(String),
}

#[derive(Default)]
pub struct Screen {
    pub sort: Sort,
    pub reversed: bool,
    /// The first row that is shown.
    pub first: usize,
    pub help: bool,
    /// What is shown while nothing moves.
    paused: Option<View>,
}

impl Screen {
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    pub fn view<'a>(&'a self, newest: &'a View) -> &'a View {
        self.paused.as_ref().unwrap_or(newest)
    }

    /// There may be fewer rows than there were.
    pub fn show(&mut self, view: &View) {
        self.first = self.first.min(view.rows.len().saturating_sub(1));
    }

    /// The rows, as they are sorted now.
    pub fn sorted<'a>(&self, rows: &'a [Row]) -> Vec<&'a Row> {
        let mut sorted: Vec<&Row> = rows.iter().collect();
        // They are by name already, which decides where all else is equal.
        match self.sort {
            Sort::Waiting => sorted.sort_by_key(|row| std::cmp::Reverse((row.waiting, row.running))),
            Sort::Dead => sorted.sort_by_key(|row| std::cmp::Reverse(row.dead)),
            Sort::Oldest => sorted.sort_by_key(|row| (row.oldest_at.is_none(), row.oldest_at)),
            Sort::Rate => sorted.sort_by(|a, b| b.rates.completed.total_cmp(&a.rates.completed)),
            Sort::Name => {}
        }
        if self.reversed {
            sorted.reverse();
        }
        sorted
    }

    pub fn press(&mut self, key: KeyEvent, view: &View) -> Then {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Then::Quit } else { Then::GoOn };
        }
        match key.code {
            KeyCode::Char('q') => return Then::Quit,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc => return Then::Quit,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Char('p' | ' ') => self.paused = if self.is_paused() { None } else { Some(view.clone()) },
            KeyCode::Char('s') => (self.sort, self.first) = (self.sort.next(), 0),
            KeyCode::Char('r') => (self.reversed, self.first) = (!self.reversed, 0),
            KeyCode::Down | KeyCode::Char('j') => self.first = (self.first + 1).min(last(view)),
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::PageDown => self.first = (self.first + PAGE).min(last(view)),
            KeyCode::PageUp => self.first = self.first.saturating_sub(PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.first = 0,
            KeyCode::End | KeyCode::Char('G') => self.first = last(view),
            KeyCode::Char('n') => return self.other_namespace(view, 1),
            KeyCode::Char('N') => return self.other_namespace(view, -1),
            _ => {}
        }
        Then::GoOn
    }

    fn other_namespace(&mut self, view: &View, step: isize) -> Then {
        let names = &view.namespaces;
        let Some(place) = names.iter().position(|name| *name == view.namespace) else { return Then::GoOn };
        let place = (place as isize + step).rem_euclid(names.len() as isize) as usize;
        (self.first, self.paused) = (0, None);
        Then::Namespace(names[place].clone())
    }
}

const PAGE: usize = 10;

fn last(view: &View) -> usize {
    view.rows.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::busy;
    use super::*;

    fn order(screen: &Screen, view: &View) -> Vec<String> {
        screen.sorted(&view.rows).iter().map(|row| format!("{}/{}", row.event_type, row.subscription)).collect()
    }

    #[test]
    fn rows_are_sorted_as_asked_for() {
        let (mut screen, view) = (Screen::default(), busy());
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push((screen.sort.name(), order(&screen, &view)[0].clone()));
            screen.press(KeyCode::Char('s').into(), &view);
        }
        let expected = [
            ("waiting", "order.paid/main"),
            ("dead", "mail.send/main"),
            ("oldest", "order.paid/billing"),
            ("rate", "order.paid/billing"),
            ("type", "mail.send/main"),
        ];
        assert_eq!(seen, expected.map(|(sort, row)| (sort, row.to_owned())));
        assert_eq!(screen.sort, Sort::Waiting);
        screen.press(KeyCode::Char('r').into(), &view);
        assert_eq!(order(&screen, &view).last().map(String::as_str), Some("order.paid/main"));
    }

    #[test]
    fn keys_move_within_what_is_there() {
        let (mut screen, view) = (Screen::default(), busy());
        for _ in 0..10 {
            screen.press(KeyCode::Down.into(), &view);
        }
        assert_eq!(screen.first, 2);
        screen.press(KeyCode::Home.into(), &view);
        screen.press(KeyCode::Up.into(), &view);
        assert_eq!(screen.first, 0);
        screen.first = 2;
        screen.show(&View::default());
        assert_eq!(screen.first, 0);
    }

    #[test]
    fn namespaces_come_round() {
        let (mut screen, mut view) = (Screen::default(), busy());
        assert_eq!(screen.press(KeyCode::Char('n').into(), &view), Then::Namespace("shop".into()));
        view.namespace = "shop".into();
        assert_eq!(screen.press(KeyCode::Char('n').into(), &view), Then::Namespace("default".into()));
        assert_eq!(screen.press(KeyCode::Char('N').into(), &view), Then::Namespace("default".into()));
        assert_eq!(screen.press(KeyCode::Char('n').into(), &View::default()), Then::GoOn);
    }

    #[test]
    fn a_pause_keeps_what_was_seen() {
        let (mut screen, view) = (Screen::default(), busy());
        screen.press(KeyCode::Char('p').into(), &view);
        assert_eq!(screen.view(&View::default()).rows.len(), 3);
        screen.press(KeyCode::Char('p').into(), &view);
        assert!(screen.view(&View::default()).rows.is_empty());
        assert_eq!(screen.press(KeyCode::Char('q').into(), &view), Then::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.press(interrupt, &view), Then::Quit);
    }
}
