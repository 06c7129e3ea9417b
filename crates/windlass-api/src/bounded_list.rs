//! Lists in requests, limited while they are parsed: a list of small items takes more memory than its text.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Maximum number of items in a list. The library's own limit may be lower.
const ITEMS_MAX: usize = 10_000;

/// A list of a request, with at most 10,000 items.
#[derive(Debug, Clone, Serialize)]
pub struct BoundedList<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for BoundedList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BoundedList<T>, D::Error> {
        deserializer.deserialize_seq(BoundedListVisitor(PhantomData))
    }
}

struct BoundedListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for BoundedListVisitor<T> {
    type Value = BoundedList<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<BoundedList<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            if items.len() == ITEMS_MAX {
                return Err(A::Error::custom(format!("has more than {ITEMS_MAX} items, which is the limit")));
            }
            items.push(item);
        }
        Ok(BoundedList(items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_with_too_many_items_is_refused() {
        let of = |count: usize| format!("[{}]", vec!["1"; count].join(","));
        assert_eq!(serde_json::from_str::<BoundedList<u8>>(&of(ITEMS_MAX)).unwrap().0.len(), ITEMS_MAX);
        let error = serde_json::from_str::<BoundedList<u8>>(&of(ITEMS_MAX + 1)).err().unwrap().to_string();
        assert!(error.starts_with("has more than 10000 items, which is the limit"), "{error}");
    }
}
