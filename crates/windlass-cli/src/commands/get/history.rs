//! What happened to an event, line by line.

use serde::Deserialize;
use windlass::Timestamp;

use crate::output::{BAD, BUSY, Cell, FAINT, GOOD, Table, WARN, clean_lines, left, right, text, width};
use crate::when;

#[derive(Deserialize)]
pub struct LogEntry {
    created_at: Timestamp,
    action: String,
    worker_id: Option<String>,
    status_code: Option<i32>,
    execution_time_ms: Option<u64>,
    error_message: Option<String>,
    /// What the worker's command printed, where that was kept.
    detail: Option<String>,
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
    let printed = logs.iter().filter_map(output);
    std::iter::once(table.render(width())).chain(printed).collect::<Vec<_>>().join("\n\n")
}

fn output(entry: &LogEntry) -> Option<String> {
    let detail = entry.detail.as_ref().filter(|detail| !detail.trim().is_empty())?;
    let worker = entry.worker_id.as_deref().unwrap_or("somebody");
    let heading = format!("Output of {} at {}", crate::output::clean(worker), when::shown(entry.created_at));
    Some(crate::output::section(&heading, clean_lines(detail).trim_end()))
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
