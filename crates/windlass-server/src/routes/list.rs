//! Lists in requests, bounded while they are read: a list of nothing much costs more memory than its text.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The most items in a list of a request. The library's own limit may be lower.
const ITEMS_MAX: usize = 10_000;

/// At most so many items.
pub(super) struct List<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List<T>, D::Error> {
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

struct Items<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<List<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            if items.len() == ITEMS_MAX {
                return Err(A::Error::custom(format!("has more than {ITEMS_MAX} items, which is the limit")));
            }
            items.push(item);
        }
        Ok(List(items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_at_most_so_many_items() {
        let of = |count: usize| format!("[{}]", vec!["1"; count].join(","));
        assert_eq!(serde_json::from_str::<List<u8>>(&of(ITEMS_MAX)).unwrap().0.len(), ITEMS_MAX);
        let error = serde_json::from_str::<List<u8>>(&of(ITEMS_MAX + 1)).err().unwrap().to_string();
        assert!(error.starts_with("has more than 10000 items, which is the limit"), "{error}");
    }
}
