//! Reads option values given as text, as `@FILE` or as `-` for stdin.

use std::io::Read;

use serde_json::value::RawValue;

use crate::Result;
use crate::exit::UsageError;

/// Returns the text itself, the content of `@FILE`, or the content of stdin for `-`.
pub fn read_text_argument(option: &str, text: &str) -> Result<String> {
    let unreadable = |name: &str, error: std::io::Error| UsageError(format!("{option}: {name}: {error}"));
    if text == "-" {
        let mut content = String::new();
        std::io::stdin().read_to_string(&mut content).map_err(|error| unreadable("stdin", error))?;
        return Ok(content);
    }
    match text.strip_prefix('@') {
        Some(file) => Ok(std::fs::read_to_string(file).map_err(|error| unreadable(file, error))?),
        None => Ok(text.to_owned()),
    }
}

/// Like [`read_text_argument`], but the value must be JSON.
pub fn read_json_argument(option: &str, text: &str) -> Result<Box<RawValue>> {
    let content = read_text_argument(option, text)?;
    serde_json::from_str(&content).map_err(|error| UsageError(format!("{option}: is not JSON: {error}")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_argument_is_inline_or_in_a_file() {
        let file = std::env::temp_dir().join(format!("windlass-input-{}.json", std::process::id()));
        std::fs::write(&file, " {\"a\": 1}\n").unwrap();
        let parse = |text: &str| read_json_argument("--payload", text).map(|json| json.get().to_owned());
        assert_eq!(parse("[1,  2]").unwrap(), "[1,  2]");
        assert_eq!(parse(&format!("@{}", file.display())).unwrap(), "{\"a\": 1}");
        std::fs::remove_file(&file).unwrap();
        assert!(parse("{").unwrap_err().to_string().starts_with("--payload: is not JSON: "));
        assert!(parse("@/no/such/file").unwrap_err().to_string().starts_with("--payload: /no/such/file: "));
    }
}
