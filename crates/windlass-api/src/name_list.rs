//! Lists of names in requests, sent as `"a,b"` or as `["a", "b"]`.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::schema::{ArrayBuilder, OneOfBuilder, Schema};
use utoipa::openapi::{ObjectBuilder, RefOr, Type};
use utoipa::{PartialSchema, ToSchema};

/// Names of types or tags in a request, sent as one comma-separated text or as a list.
///
/// A received list is checked and becomes a text, which is how the names are stored.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum NameList {
    /// Comma-separated names.
    Text(String),
    /// One name per item. No name has a comma or is blank.
    List(Vec<String>),
}

impl From<String> for NameList {
    fn from(text: String) -> NameList {
        NameList::Text(text)
    }
}

impl From<Vec<String>> for NameList {
    fn from(names: Vec<String>) -> NameList {
        NameList::List(names)
    }
}

impl Default for NameList {
    fn default() -> NameList {
        NameList::Text(String::new())
    }
}

impl NameList {
    /// Whether there is no name.
    pub fn is_empty(&self) -> bool {
        match self {
            NameList::Text(text) => text.split(',').all(|name| name.trim().is_empty()),
            NameList::List(names) => names.is_empty(),
        }
    }

    /// The names as comma-separated text. A text is returned exactly as it was sent.
    pub fn into_text(self) -> String {
        match self {
            NameList::Text(text) => text,
            NameList::List(names) => names.join(","),
        }
    }

    /// The names, without the spaces around them.
    pub fn into_list(self) -> Vec<String> {
        match self {
            NameList::Text(text) => {
                text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
            }
            NameList::List(names) => names,
        }
    }
}

impl<'de> Deserialize<'de> for NameList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NameList, D::Error> {
        deserializer.deserialize_any(NameListVisitor)
    }
}

struct NameListVisitor;

impl<'de> Visitor<'de> for NameListVisitor {
    type Value = NameList;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a comma-separated string or a list of strings")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<NameList, E> {
        Ok(NameList::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<NameList, A::Error> {
        let mut text = String::new();
        while let Some(name) = list.next_element::<String>()? {
            if name.contains(',') || name.trim().is_empty() {
                return Err(A::Error::custom(format!("'{}' is not a name", name.escape_debug())));
            }
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(&name);
        }
        Ok(NameList::Text(text))
    }
}

impl PartialSchema for NameList {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String).description(Some("Comma-separated."));
        let list = ArrayBuilder::new().items(ObjectBuilder::new().schema_type(Type::String));
        RefOr::T(Schema::OneOf(OneOfBuilder::new().item(text).item(list).build()))
    }
}

impl ToSchema for NameList {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_list_are_equivalent() {
        let parse = |json: &str| serde_json::from_str::<NameList>(json);
        assert_eq!(parse(r#""a, b""#).unwrap().into_list(), ["a", "b"]);
        assert_eq!(parse(r#"["a", "b"]"#).unwrap().into_list(), ["a", "b"]);
        assert_eq!(parse(r#""a, b""#).unwrap().into_text(), "a, b");
        assert_eq!(parse(r#"["a", "b"]"#).unwrap().into_text(), "a,b");
        assert!(parse(r#"["a,b"]"#).is_err() && parse("1").is_err());
        assert!(parse(r#""""#).unwrap().into_list().is_empty());
        assert!(parse(r#"" ,""#).unwrap().is_empty() && !parse(r#""a""#).unwrap().is_empty());
    }
}
