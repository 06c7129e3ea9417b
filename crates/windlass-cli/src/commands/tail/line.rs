//! One happening in one line.

use serde::Deserialize;
use windlass::Timestamp;

use crate::output::{FAINT, WARN, clean, cut, of_status, paint};

/// What is told of something that happened.
#[derive(Deserialize)]
pub struct Activity {
    event_id: i64,
    #[serde(rename = "type")]
    event_type: String,
    title: Option<String>,
    subscription: String,
    action: String,
    status: String,
    attempt: u32,
    worker_id: Option<String>,
    error_message: Option<String>,
    created_at: Timestamp,
}

/// How many were left out.
#[derive(Deserialize)]
pub struct Missed {
    missed: u64,
}

/// Columns as wide as what they usually hold: nobody knows what comes next.
const ACTION: usize = "COMPLETED".len();
const ID: usize = 7;
const TYPE: usize = 24;

pub fn shown(activity: &Activity, width: Option<usize>) -> String {
    let Activity { event_id, event_type, action, .. } = activity;
    let time = activity.created_at.format("%H:%M:%SZ");
    let event_type = clean(event_type);
    let rest = clean(&details(activity).join(", "));
    let before = format!("{time}  ");
    let after = format!("  {event_id:ID$}  {event_type:TYPE$}  {rest}");
    let room = width.map(|width| width.saturating_sub(before.len() + action.len().max(ACTION)));
    let after = room.map_or(after.clone(), |room| cut(&after, room));
    let action = paint(&format!("{action:ACTION$}"), of_status(&activity.status));
    format!("{}{action}{}", paint(&before, FAINT), after.trim_end())
}

/// What is worth telling beside the columns.
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

pub fn missed(Missed { missed }: &Missed) -> String {
    paint(&format!("… {missed} more than could be told of happened here"), WARN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Activity {
        serde_json::from_value(serde_json::json!({
            "event_id": 1001, "type": "order.paid", "title": "An order", "tags": "", "subscription": "audit",
            "action": "FAILED", "status": "PENDING", "attempt": 2, "worker_id": "w\u{1b}1",
            "error_message": "no route\nto host", "created_at": "2026-01-31T12:00:01.5Z",
        }))
        .unwrap()
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn a_line_is_one_line_and_fits() {
        let whole = shown(&failed(), None);
        let expected = "12:00:01Z  FAILED        1001  order.paid                for audit, attempt 2, by w\\u{1b}1, to be \
                        tried again, no route\\nto host";
        assert_eq!(plain(&whole), expected);
        assert!(whole.contains("\x1b[33mFAILED   \x1b[0m"), "{whole:?}");
        let narrow = plain(&shown(&failed(), Some(60)));
        assert_eq!(narrow, "12:00:01Z  FAILED        1001  order.paid                fo…");
        assert_eq!(narrow.chars().count(), 60);
    }
}
