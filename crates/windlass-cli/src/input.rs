//! What is given on the command line, in a file or on stdin.

use std::io::Read;

use serde_json::value::RawValue;

use crate::Result;
use crate::exit::Usage;

/// The text itself, what is in `@FILE`, or what comes on stdin for `-`.
pub fn text_argument(option: &str, text: &str) -> Result<String> {
    let unreadable = |name: &str, error: std::io::Error| Usage(format!("{option}: {name}: {error}"));
    if text == "-" {
        let mut whole = String::new();
        std::io::stdin().read_to_string(&mut whole).map_err(|error| unreadable("stdin", error))?;
        return Ok(whole);
    }
    match text.strip_prefix('@') {
        Some(file) => Ok(std::fs::read_to_string(file).map_err(|error| unreadable(file, error))?),
        None => Ok(text.to_owned()),
    }
}

/// JSON, given likewise.
pub fn json_argument(option: &str, text: &str) -> Result<Box<RawValue>> {
    let whole = text_argument(option, text)?;
    serde_json::from_str(&whole).map_err(|error| Usage(format!("{option}: is not JSON: {error}")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_may_be_given_or_be_in_a_file() {
        let file = std::env::temp_dir().join(format!("windlass-input-{}.json", std::process::id()));
        std::fs::write(&file, " {\"a\": 1}\n").unwrap();
        let given = |text: &str| json_argument("--payload", text).map(|json| json.get().to_owned());
        assert_eq!(given("[1,  2]").unwrap(), "[1,  2]");
        assert_eq!(given(&format!("@{}", file.display())).unwrap(), "{\"a\": 1}");
        std::fs::remove_file(&file).unwrap();
        assert!(given("{").unwrap_err().to_string().starts_with("--payload: is not JSON: "));
        assert!(given("@/no/such/file").unwrap_err().to_string().starts_with("--payload: /no/such/file: "));
    }
}
