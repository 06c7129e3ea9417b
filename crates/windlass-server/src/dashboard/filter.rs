//! Filters in addresses: what was typed into a form, and what it means.

use chrono::{DateTime, NaiveDateTime, Utc};
use windlass::Timestamp;

use crate::error::ApiError;
use crate::extract::known;

/// What a field holds, without blanks around it; `None` where that is nothing.
pub(super) fn filled(text: Option<&str>) -> Option<String> {
    text.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Names that are separated by commas.
pub(super) fn names(text: Option<&str>) -> Vec<String> {
    let names = text.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// An instant, as RFC 3339 or as browsers' fields for a date and a time give it: without a zone, meant as UTC.
pub(super) fn instant(field: &'static str, text: Option<&str>) -> Result<Option<Timestamp>, ApiError> {
    let Some(text) = filled(text) else { return Ok(None) };
    let zoned = text.parse::<DateTime<Utc>>().ok();
    let plain = ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S%.f"];
    let plain = plain.iter().find_map(|form| NaiveDateTime::parse_from_str(&text, form).ok());
    let found = zoned.or_else(|| plain.map(|at| at.and_utc()));
    let bad = || ApiError::invalid(field, "must be a date and a time in UTC, as in 2025-12-24T10:30");
    found.map(|at| Some(known(at))).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_in_utc() {
        let parsed = |text| instant("from", Some(text)).map(|at| at.map(|at| at.to_rfc3339()));
        let expected = Some("2025-12-24T10:30:00+00:00".to_owned());
        for text in ["2025-12-24T10:30", " 2025-12-24T10:30:00 ", "2025-12-24T10:30:00Z", "2025-12-24T11:30:00+01:00"] {
            assert_eq!(parsed(text).unwrap(), expected, "{text}");
        }
        assert_eq!(parsed("  ").unwrap(), None);
        assert!(parsed("yesterday").is_err() && parsed("2025-12-24").is_err());
    }

    #[test]
    fn blanks_are_nothing() {
        assert_eq!(names(Some(" a, b,,")), ["a", "b"]);
        assert!(names(Some(" ")).is_empty() && names(None).is_empty());
        assert_eq!((filled(Some(" a ")).as_deref(), filled(Some("  "))), (Some("a"), None));
    }
}
