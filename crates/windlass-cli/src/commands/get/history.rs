//! What happened to an event, line by line.

use serde::Deserialize;
use serde_json::value::RawValue;
use windlass::Timestamp;

use crate::output::{
    BAD, BUSY, Cell, FAINT, GOOD, Table, WARN, clean, clean_lines, left, pretty, right, section, text, width,
};
use crate::when;

#[derive(Deserialize)]
pub struct LogEntry {
    created_at: Timestamp,
    action: String,
    worker_id: Option<String>,
    status_code: Option<i32>,
    execution_time_ms: Option<u64>,
    error_message: Option<String>,
    /// What else the worker reported.
    detail: Option<Box<RawValue>>,
}

/// A table and, below it, what was printed by those who kept it.
pub fn shown(logs: &[LogEntry]) -> String {
    let columns = [left("WHEN"), left("WHAT"), text("WORKER"), right("CODE"), right("TOOK"), text("ERROR")];
    let mut table = Table::new(columns);
    for entry in logs {
        table.row([
            when::shown(entry.created_at).into(),
            Cell::styled(&entry.action, style_of(&entry.action)),
            entry.worker_id.as_deref().into(),
            entry.status_code.into(),
            entry.execution_time_ms.map(when::took).into(),
            entry.error_message.as_deref().into(),
        ]);
    }
    let details = logs.iter().filter_map(detail);
    std::iter::once(table.render(width())).chain(details).collect::<Vec<_>>().join("\n\n")
}

/// What `windlass work` keeps of a command's output.
#[derive(Deserialize)]
struct Output {
    stdout: String,
    stderr: String,
}

/// Output as it was printed, anything else as JSON.
fn detail(entry: &LogEntry) -> Option<String> {
    let detail = entry.detail.as_ref()?;
    let worker = clean(entry.worker_id.as_deref().unwrap_or("a worker"));
    let (what, text) = match serde_json::from_str::<Output>(detail.get()) {
        Ok(Output { stdout, stderr }) => ("Output", format!("{}\n{}", stdout.trim_end(), stderr.trim_end())),
        Err(_) => ("Detail", pretty(detail.get())),
    };
    let text = clean_lines(text.trim_matches('\n'));
    (!text.is_empty()).then(|| section(&format!("{what} of {worker}, {}", when::shown(entry.created_at)), &text))
}

fn style_of(action: &str) -> anstyle::Style {
    match action {
        "COMPLETED" => GOOD,
        "FAILED" | "EXPIRED" => BAD,
        "ABANDONED" | "COMPLETED_WITH_ERRORS" => WARN,
        "PICKED" | "STARTED" => BUSY,
        _ => FAINT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail_of(json: &str) -> Option<String> {
        let entry = format!(
            r#"{{"created_at":"2026-01-31T12:00:00Z","action":"FAILED","worker_id":"host:1","detail":{json}}}"#
        );
        let shown = detail(&serde_json::from_str(&entry).unwrap())?;
        Some(anstream::adapter::strip_str(&shown).to_string())
    }

    #[test]
    fn output_is_shown_as_it_was_printed() {
        let output = r#"{"exit_code":1,"stdout":"one\ntwo\n","stderr":"\u001b[31mno\n"}"#;
        let expected = "Output of host:1, 2026-01-31T12:00:00Z\none\ntwo\n\\u{1b}[31mno";
        assert_eq!(detail_of(output).as_deref(), Some(expected));
        assert_eq!(detail_of(r#"{"exit_code":0,"stdout":"","stderr":"\n"}"#), None);
        assert_eq!(detail_of("[1]").as_deref(), Some("Detail of host:1, 2026-01-31T12:00:00Z\n[\n  1\n]"));
    }
}
