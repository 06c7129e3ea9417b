//! Schedules that could not be fired by this process, or that it cannot read. It remembers them, so that they hold up
//! no others and are told of once.

use std::collections::HashSet;

/// So many are remembered; with more, it begins anew.
const LEFT_MAX: usize = 10_000;

/// By their ids.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// They failed, or were blocked, when they were last tried.
    apart: HashSet<String>,
    told: HashSet<String>,
}

impl Left {
    /// It is tried alone from now on; whether that is new.
    pub fn set_apart(&mut self, id: &str) -> bool {
        insert(&mut self.apart, id)
    }

    pub fn is_apart(&self, id: &str) -> bool {
        self.apart.contains(id)
    }

    /// Whether people were not yet told of it.
    pub fn is_news(&mut self, id: &str) -> bool {
        insert(&mut self.told, id)
    }

    /// It was fired: all is well with it.
    pub fn forget(&mut self, id: &str) {
        self.apart.remove(id);
        self.told.remove(id);
    }
}

fn insert(ids: &mut HashSet<String>, id: &str) -> bool {
    if ids.len() >= LEFT_MAX {
        ids.clear();
    }
    ids.insert(id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_once_and_forgotten_when_it_works() {
        let mut left = Left::default();
        assert_eq!((left.set_apart("a"), left.set_apart("a"), left.is_apart("a")), (true, false, true));
        assert_eq!((left.is_news("a"), left.is_news("a"), left.is_news("b")), (true, false, true));
        left.forget("a");
        assert_eq!((left.is_apart("a"), left.is_news("a"), left.is_news("b")), (false, true, false));
    }

    #[test]
    fn not_more_than_so_many_are_remembered() {
        let mut left = Left::default();
        assert!((0..=LEFT_MAX).all(|n| left.set_apart(&n.to_string())));
        assert_eq!((left.apart.len(), left.is_apart("0")), (1, false));
    }
}
