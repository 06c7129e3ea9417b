//! Schedule ids: random UUIDs.

use crate::error::{Error, Result};

/// A new id: a random UUID.
pub(super) fn new_id() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::RandomUnavailable { detail: error.to_string() })?;
    let random = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{random:032x}");
    Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

/// Validates an id and converts it to lower case, as stored.
pub(crate) fn checked_id(id: &str) -> Result<String> {
    let parts: Vec<usize> = id.split('-').map(str::len).collect();
    if parts != [8, 4, 4, 4, 12] || !id.chars().all(|c| c == '-' || c.is_ascii_hexdigit()) {
        let shown: String = id.chars().take(64).collect();
        return Err(Error::invalid("id", format!("'{}' is not the UUID of a schedule", shown.escape_debug())));
    }
    Ok(id.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_uuids() {
        let (one, two) = (new_id().unwrap(), new_id().unwrap());
        assert_ne!(one, two);
        for id in [&one, &two] {
            assert_eq!(checked_id(id).as_ref(), Ok(id));
            assert!(&id[14..15] == "4" && "89ab".contains(&id[19..20]), "{id}");
        }
    }

    #[test]
    fn malformed_ids_are_rejected() {
        assert_eq!(checked_id("A0B1C2D3-0000-4000-8000-000000000000").unwrap(), "a0b1c2d3-0000-4000-8000-000000000000");
        for bad in [
            "",
            "x",
            "a0b1c2d30000400080000000000000000000",
            "g0b1c2d3-0000-4000-8000-000000000000",
            &"1".repeat(9_999),
        ] {
            assert!(checked_id(bad).unwrap_err().to_string().len() < 150, "{bad}");
        }
    }
}
