//! Parses the values of filter forms.

use chrono::{DateTime, NaiveDateTime, Utc};
use windlass::Timestamp;

use crate::error::ApiError;
use crate::extract::clamp_to_epoch;

/// The trimmed value of a field; `None` if it is blank.
pub(super) fn non_blank(text: Option<&str>) -> Option<String> {
    text.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Splits a comma-separated list of names.
pub(super) fn split_names(text: Option<&str>) -> Vec<String> {
    let names = text.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// Parses a timestamp, either as RFC 3339 or as sent by `datetime-local` fields, which have no zone and mean UTC.
pub(super) fn parse_timestamp(field: &'static str, text: Option<&str>) -> Result<Option<Timestamp>, ApiError> {
    let Some(text) = non_blank(text) else { return Ok(None) };
    let zoned = text.parse::<DateTime<Utc>>().ok();
    let plain = ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S%.f"];
    let plain = plain.iter().find_map(|form| NaiveDateTime::parse_from_str(&text, form).ok());
    let found = zoned.or_else(|| plain.map(|at| at.and_utc()));
    let bad = || ApiError::invalid(field, "must be a date and a time in UTC, as in 2025-12-24T10:30");
    found.map(|at| Some(clamp_to_epoch(at))).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_without_a_zone_are_utc() {
        let parsed = |text| parse_timestamp("from", Some(text)).map(|at| at.map(|at| at.to_rfc3339()));
        let expected = Some("2025-12-24T10:30:00+00:00".to_owned());
        for text in ["2025-12-24T10:30", " 2025-12-24T10:30:00 ", "2025-12-24T10:30:00Z", "2025-12-24T11:30:00+01:00"] {
            assert_eq!(parsed(text).unwrap(), expected, "{text}");
        }
        assert_eq!(parsed("  ").unwrap(), None);
        assert!(parsed("yesterday").is_err() && parsed("2025-12-24").is_err());
    }

    #[test]
    fn blank_values_are_ignored() {
        assert_eq!(split_names(Some(" a, b,,")), ["a", "b"]);
        assert!(split_names(Some(" ")).is_empty() && split_names(None).is_empty());
        assert_eq!((non_blank(Some(" a ")).as_deref(), non_blank(Some("  "))), (Some("a"), None));
    }
}
