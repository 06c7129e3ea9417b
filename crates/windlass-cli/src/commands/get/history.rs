//! Formats the attempt history of an event.

use serde::Deserialize;
use windlass::Action;

use crate::api::responses::LogEntry;
use crate::output::{
    BAD, BUSY, Cell, FAINT, GOOD, Table, WARN, format_section, left, pretty_json, right, sanitize, sanitize_lines,
    terminal_width, text,
};
use crate::time;

/// Formats a table and, below it, the output or details that workers reported.
pub fn format_history(logs: &[LogEntry]) -> String {
    let columns = [left("WHEN"), left("WHAT"), text("WORKER"), right("CODE"), right("TOOK"), text("ERROR")];
    let mut table = Table::new(columns);
    for entry in logs {
        table.row([
            time::format_timestamp(entry.created_at).into(),
            Cell::styled(&entry.action, action_style(&entry.action)),
            entry.worker_id.as_deref().into(),
            entry.status_code.into(),
            entry.execution_time_ms.map(time::format_elapsed).into(),
            entry.error_message.as_deref().into(),
        ]);
    }
    let details = logs.iter().filter_map(format_detail);
    std::iter::once(table.render(terminal_width())).chain(details).collect::<Vec<_>>().join("\n\n")
}

/// The command output that `windlass work` stores with an attempt.
#[derive(Deserialize)]
struct Output {
    stdout: String,
    stderr: String,
}

/// Formats command output as text, and any other detail as JSON.
fn format_detail(entry: &LogEntry) -> Option<String> {
    let detail = entry.detail.as_ref()?;
    let worker = sanitize(entry.worker_id.as_deref().unwrap_or("a worker"));
    let (title, text) = match serde_json::from_str::<Output>(detail.get()) {
        Ok(Output { stdout, stderr }) => ("Output", format!("{}\n{}", stdout.trim_end(), stderr.trim_end())),
        Err(_) => ("Detail", pretty_json(detail.get())),
    };
    let text = sanitize_lines(text.trim_matches('\n'));
    (!text.is_empty())
        .then(|| format_section(&format!("{title} of {worker}, {}", time::format_timestamp(entry.created_at)), &text))
}

fn action_style(action: &str) -> anstyle::Style {
    match action.parse() {
        Ok(Action::Completed) => GOOD,
        Ok(Action::Failed | Action::Expired) => BAD,
        Ok(Action::Abandoned | Action::CompletedWithErrors) => WARN,
        Ok(Action::Picked | Action::Started) => BUSY,
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
        let shown = format_detail(&serde_json::from_str(&entry).unwrap())?;
        Some(anstream::adapter::strip_str(&shown).to_string())
    }

    #[test]
    fn command_output_is_shown_as_text() {
        let output = r#"{"exit_code":1,"stdout":"one\ntwo\n","stderr":"\u001b[31mno\n"}"#;
        let expected = "Output of host:1, 2026-01-31T12:00:00Z\none\ntwo\n\\u{1b}[31mno";
        assert_eq!(detail_of(output).as_deref(), Some(expected));
        assert_eq!(detail_of(r#"{"exit_code":0,"stdout":"","stderr":"\n"}"#), None);
        assert_eq!(detail_of("[1]").as_deref(), Some("Detail of host:1, 2026-01-31T12:00:00Z\n[\n  1\n]"));
    }
}
