//! Prints the output of commands to stderr, line by line, each with the event's id in front.

use std::io::Write;
use std::sync::Mutex;

use tokio::sync::mpsc;

use crate::output::sanitize;

/// Longer lines are printed in pieces.
const LINE_BYTES_MAX: usize = 8 << 10;
/// Lines that may be queued for the terminal. Beyond the limit, commands wait.
const QUEUED_LINES_MAX: usize = 1_000;

/// Writes lines in a separate thread, so that a slow terminal blocks only the commands.
pub struct OutputPrinter {
    lines: Mutex<Option<mpsc::Sender<String>>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl OutputPrinter {
    pub fn new(quiet: bool) -> OutputPrinter {
        if quiet {
            return OutputPrinter { lines: Mutex::new(None), thread: Mutex::new(None) };
        }
        let (lines, mut queued) = mpsc::channel::<String>(QUEUED_LINES_MAX);
        let thread = std::thread::spawn(move || {
            while let Some(line) = queued.blocking_recv() {
                // Ignore errors: a closed stderr must not stop the commands.
                let _ = writeln!(std::io::stderr(), "{line}");
            }
        });
        OutputPrinter { lines: Mutex::new(Some(lines)), thread: Mutex::new(Some(thread)) }
    }

    /// Returns the sink for one output stream of a command.
    pub fn stream(&self, event_id: i64) -> LinePrefixer {
        let lines = self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        LinePrefixer { lines, event_id, line: Vec::new() }
    }

    /// Writes the queued lines and stops the thread.
    pub fn flush(&self) {
        drop(self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take() {
            let _ = thread.join();
        }
    }
}

/// Splits one stream into lines and puts the event's id in front of each.
pub struct LinePrefixer {
    lines: Option<mpsc::Sender<String>>,
    event_id: i64,
    line: Vec<u8>,
}

impl LinePrefixer {
    pub async fn push(&mut self, bytes: &[u8]) {
        if self.lines.is_none() {
            return;
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.ends_with(b"\n") || self.line.len() >= LINE_BYTES_MAX {
                self.end_line().await;
            }
        }
    }

    /// Prints the last line, which may have no line break.
    pub async fn end(&mut self) {
        if !self.line.is_empty() {
            self.end_line().await;
        }
    }

    async fn end_line(&mut self) {
        let text = String::from_utf8_lossy(&self.line);
        let line = format!("[{}] {}", self.event_id, sanitize(text.trim_end_matches(['\n', '\r'])));
        self.line.clear();
        if let Some(lines) = &self.lines {
            let _ = lines.send(line).await;
        }
    }
}
