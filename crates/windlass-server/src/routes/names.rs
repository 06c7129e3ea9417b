//! Lists of names in requests: `"a,b"` or `["a", "b"]`, as the client likes.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use utoipa::openapi::schema::{ArrayBuilder, OneOfBuilder, Schema};
use utoipa::openapi::{ObjectBuilder, RefOr, Type};
use utoipa::{PartialSchema, ToSchema};

/// Names, as one comma-separated text or as a list.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Names(String);

impl Names {
    /// Whether it names nothing.
    pub fn is_empty(&self) -> bool {
        self.0.split(',').all(|name| name.trim().is_empty())
    }

    /// As one text; the text itself where it came as one.
    pub fn into_text(self) -> String {
        self.0
    }

    /// One by one, without the spaces around them.
    pub fn into_list(self) -> Vec<String> {
        self.0.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Names, D::Error> {
        deserializer.deserialize_any(TextOrList)
    }
}

struct TextOrList;

impl<'de> Visitor<'de> for TextOrList {
    type Value = Names;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a comma-separated string or a list of strings")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Names, E> {
        Ok(Names(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Names, A::Error> {
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
        Ok(Names(text))
    }
}

impl PartialSchema for Names {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String).description(Some("Comma-separated."));
        let list = ArrayBuilder::new().items(ObjectBuilder::new().schema_type(Type::String));
        RefOr::T(Schema::OneOf(OneOfBuilder::new().item(text).item(list).build()))
    }
}

impl ToSchema for Names {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_and_a_list_say_the_same() {
        let parse = |json: &str| serde_json::from_str::<Names>(json);
        assert_eq!(parse(r#""a, b""#).unwrap().into_list(), ["a", "b"]);
        assert_eq!(parse(r#"["a", "b"]"#).unwrap().into_list(), ["a", "b"]);
        assert_eq!(parse(r#""a, b""#).unwrap().into_text(), "a, b");
        assert_eq!(parse(r#"["a", "b"]"#).unwrap().into_text(), "a,b");
        assert!(parse(r#"["a,b"]"#).is_err() && parse("1").is_err());
        assert!(parse(r#""""#).unwrap().into_list().is_empty());
        assert!(parse(r#"" ,""#).unwrap().is_empty() && !parse(r#""a""#).unwrap().is_empty());
    }
}
