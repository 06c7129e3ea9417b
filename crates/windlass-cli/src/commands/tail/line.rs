//! Formats one activity in one line.

use windlass_api::MissedMessage;

use crate::api::responses::Activity;
use crate::output::{FAINT, WARN, paint, sanitize, status_style, truncate};

/// Column widths for usual content: later lines are not known when a line is printed.
const ACTION_WIDTH: usize = "COMPLETED".len();
const ID_WIDTH: usize = 7;
const TYPE_WIDTH: usize = 24;

pub fn format_activity(activity: &Activity, width: Option<usize>) -> String {
    let Activity { event_id, event_type, action, .. } = activity;
    let action = sanitize(action);
    let time = activity.created_at.format("%H:%M:%SZ");
    let event_type = sanitize(event_type);
    let rest = sanitize(&details(activity).join(", "));
    let before = format!("{time}  ");
    let after = format!("  {event_id:ID_WIDTH$}  {event_type:TYPE_WIDTH$}  {rest}");
    let available = width.map(|width| width.saturating_sub(before.len() + action.len().max(ACTION_WIDTH)));
    let after = available.map_or(after.clone(), |available| truncate(&after, available));
    let action = paint(&format!("{action:ACTION_WIDTH$}"), status_style(&activity.status));
    format!("{}{action}{}", paint(&before, FAINT), after.trim_end())
}

/// Returns the details for the last column.
fn details(activity: &Activity) -> Vec<String> {
    let mut details = Vec::new();
    if activity.subscription != "main" {
        details.push(format!("for {}", activity.subscription));
    }
    if activity.attempt > 1 {
        details.push(format!("attempt {}", activity.attempt));
    }
    details.extend(activity.worker_id.as_ref().map(|worker| format!("by {worker}")));
    if activity.action == "FAILED" && activity.status == "PENDING" {
        details.push("to be tried again".to_owned());
    }
    match &activity.error_message {
        Some(error) => details.push(error.clone()),
        None if activity.action == "PUBLISHED" => details.extend(activity.title.clone()),
        None => {}
    }
    details
}

pub fn format_missed(MissedMessage { missed }: &MissedMessage) -> String {
    paint(&format!("… {missed} more than could be told of happened here"), WARN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed_activity() -> Activity {
        serde_json::from_value(serde_json::json!({
            "event_id": 1001, "type": "order.paid", "title": "An order", "tags": "", "subscription": "audit",
            "action": "FAILED", "status": "PENDING", "attempt": 2, "worker_id": "w\u{1b}1",
            "error_message": "no route\nto host", "created_at": "2026-01-31T12:00:01.5Z",
        }))
        .unwrap()
    }

    fn without_style(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn activity_is_one_line_and_fits_the_width() {
        let whole = format_activity(&failed_activity(), None);
        let expected = "12:00:01Z  FAILED        1001  order.paid                for audit, attempt 2, by w\\u{1b}1, to be \
                        tried again, no route\\nto host";
        assert_eq!(without_style(&whole), expected);
        assert!(whole.contains("\x1b[33mFAILED   \x1b[0m"), "{whole:?}");
        let narrow = without_style(&format_activity(&failed_activity(), Some(60)));
        assert_eq!(narrow, "12:00:01Z  FAILED        1001  order.paid                fo…");
        assert_eq!(narrow.chars().count(), 60);
    }
}
