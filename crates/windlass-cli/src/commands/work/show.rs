//! Showing what commands print, on our stderr, line by line.

use std::io::Write;
use std::sync::Mutex;

use tokio::sync::mpsc;

use crate::output::clean;

/// A longer line is shown in pieces.
const LINE_BYTES_MAX: usize = 8 << 10;
/// So many lines may wait for the terminal; then commands wait, too.
const WAITING_MAX: usize = 1_000;

/// Where lines go. They are written by a thread of their own, so that nothing but the commands waits for a terminal.
pub struct Shown {
    lines: Mutex<Option<mpsc::Sender<String>>>,
    writing: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Shown {
    pub fn new(quiet: bool) -> Shown {
        if quiet {
            return Shown { lines: Mutex::new(None), writing: Mutex::new(None) };
        }
        let (lines, mut waiting) = mpsc::channel::<String>(WAITING_MAX);
        let writing = std::thread::spawn(move || {
            while let Some(line) = waiting.blocking_recv() {
                // Nobody reads it: the commands go on all the same.
                let _ = writeln!(std::io::stderr(), "{line}");
            }
        });
        Shown { lines: Mutex::new(Some(lines)), writing: Mutex::new(Some(writing)) }
    }

    /// For what one command prints to one stream.
    pub fn of(&self, event_id: i64) -> Prefixed {
        let lines = self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        Prefixed { lines, event_id, line: Vec::new() }
    }

    /// Writes what is left.
    pub fn flush(&self) {
        drop(self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take());
        if let Some(writing) = self.writing.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take() {
            let _ = writing.join();
        }
    }
}

/// Lines of one stream, each with the number of its event before it.
pub struct Prefixed {
    lines: Option<mpsc::Sender<String>>,
    event_id: i64,
    line: Vec<u8>,
}

impl Prefixed {
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

    /// The last line may have no end.
    pub async fn end(&mut self) {
        if !self.line.is_empty() {
            self.end_line().await;
        }
    }

    async fn end_line(&mut self) {
        let text = String::from_utf8_lossy(&self.line);
        let line = format!("[{}] {}", self.event_id, clean(text.trim_end_matches(['\n', '\r'])));
        self.line.clear();
        if let Some(lines) = &self.lines {
            let _ = lines.send(line).await;
        }
    }
}
