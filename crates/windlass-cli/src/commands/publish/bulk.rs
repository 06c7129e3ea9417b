//! Publishes a file: sends several batches concurrently and records the outcome of every line.
//!
//! A thread reads [`Batch`]es, [`BulkPublisher`] sends them, and [`PublishSummary`] has the outcomes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Write, stderr, stdin};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use windlass_api::PublishedBatchBody;

use super::Publish;
use super::batches::{Batch, BatchReader, InvalidLine, ReadItem};
use super::summary::{LineRange, PublishSummary};
use crate::Result;
use crate::api::{Api, ApiError, Unreachable};
use crate::exit::UsageError;
use crate::interrupts::Interrupts;
use crate::output::{pluralize, print, print_note, sanitize};

/// Batches that are sent concurrently.
const IN_FLIGHT_MAX: usize = 4;
/// Retries of a batch that is safe to send again. The delay starts at a second and doubles.
const RETRIES_MAX: u32 = 5;

pub async fn run(publish: &Publish, file: &Path) -> Result {
    let (reader, size) = open(file)?;
    let api = Arc::new(publish.target.connect_or_create().await?);
    let (sender, batches) = mpsc::channel(1);
    let from_line = publish.from_line;
    // A thread, not a task: a blocking read cannot be canceled.
    std::thread::spawn(move || read_batches(BatchReader::new(reader, from_line), &sender));
    let mut publisher = BulkPublisher {
        api,
        skips_invalid: publish.skip_bad,
        bar: progress(size),
        summary: PublishSummary::default(),
        in_flight: JoinSet::new(),
        in_flight_lines: HashMap::new(),
        is_ordered: false,
        stop_reason: None,
        interrupts: Interrupts::listen()?,
        interrupted: false,
    };
    publisher.send_all(batches).await;
    publisher.bar.finish_and_clear();
    publisher.close().await;
    report(&publisher.summary, publisher.stop_reason, publish.json)
}

fn open(file: &Path) -> Result<(Box<dyn BufRead + Send>, Option<u64>)> {
    if file.as_os_str() == "-" {
        return Ok((Box::new(BufReader::new(stdin())), None));
    }
    let unreadable = |error| UsageError(format!("{}: {error}", file.display()));
    let opened = File::open(file).map_err(unreadable)?;
    let metadata = opened.metadata().map_err(unreadable)?;
    Ok((Box::new(BufReader::with_capacity(1 << 20, opened)), metadata.is_file().then_some(metadata.len())))
}

type ReadResult = std::io::Result<ReadItem>;

/// Reads batches until the end of the file, or until the receiver is dropped.
fn read_batches(mut reader: BatchReader<Box<dyn BufRead + Send>>, batches: &mpsc::Sender<ReadResult>) {
    loop {
        let next = reader.next();
        let is_last = matches!(next, Err(_) | Ok(ReadItem::End));
        if batches.blocking_send(next).is_err() || is_last {
            return;
        }
    }
}

/// The outcome of a batch or of a part of it.
enum Outcome {
    Stored {
        batch: Batch,
        duplicates: u64,
    },
    Invalid(InvalidLine),
    /// Nothing of it was stored.
    Rejected {
        batch: Batch,
        reason: StopReason,
    },
    /// It is not known whether it was stored.
    Unknown {
        batch: Batch,
        reason: StopReason,
    },
}

/// The error that stops the publishing.
type StopReason = Box<dyn std::error::Error + Send + Sync>;

/// Sends batches and collects their outcomes.
struct BulkPublisher {
    api: Arc<Api>,
    skips_invalid: bool,
    bar: ProgressBar,
    summary: PublishSummary,
    in_flight: JoinSet<Vec<Outcome>>,
    /// The lines of each batch in flight.
    in_flight_lines: HashMap<Id, LineRange>,
    /// The batch in flight has events of groups, so no other batch may overtake it.
    is_ordered: bool,
    stop_reason: Option<StopReason>,
    interrupts: Interrupts,
    /// Ctrl-C was pressed.
    interrupted: bool,
}

impl BulkPublisher {
    async fn send_all(&mut self, mut batches: mpsc::Receiver<ReadResult>) {
        while self.stop_reason.is_none() {
            let next = tokio::select! {
                () = self.interrupts.next() => {
                    self.interrupt();
                    continue;
                }
                next = batches.recv() => next,
            };
            match next {
                Some(Ok(ReadItem::Batch(batch))) => self.launch(batch).await,
                Some(Ok(ReadItem::Invalid(batch, line))) => self.handle_invalid(batch, line).await,
                Some(Err(error)) => self.stop(error.into()),
                Some(Ok(ReadItem::End)) | None => break,
            }
        }
        while self.settle_one().await {}
    }

    fn stop(&mut self, reason: StopReason) {
        self.stop_reason.get_or_insert(reason);
    }

    /// Handles Ctrl-C. The first one stops sending and waits for batches in flight, the second one aborts them.
    fn interrupt(&mut self) {
        if self.interrupted {
            self.in_flight.abort_all();
        } else if !self.in_flight.is_empty() {
            self.bar.suspend(|| print_note("Waiting for the answers to what was sent; a second Ctrl-C does not."));
        }
        self.interrupted = true;
        self.stop("interrupted".into());
    }

    /// Skips an invalid line, or stops at it. The batch has the lines before it.
    async fn handle_invalid(&mut self, batch: Batch, invalid: InvalidLine) {
        if self.skips_invalid {
            self.summary.record_invalid(invalid);
            return self.launch(batch).await;
        }
        let (first, _) = batch.range();
        self.summary.record_rejected((if first == 0 { invalid.line } else { first }, invalid.line));
        self.stop(line_error(&invalid));
    }

    /// Sends a batch when the limits on batches in flight allow it.
    async fn launch(&mut self, batch: Batch) {
        if batch.lines.is_empty() {
            return;
        }
        let others_max = if batch.is_ordered || self.is_ordered { 0 } else { IN_FLIGHT_MAX - 1 };
        while self.in_flight.len() > others_max && self.settle_one().await {}
        if self.stop_reason.is_some() {
            return self.summary.record_rejected(batch.range());
        }
        self.is_ordered = batch.is_ordered;
        let lines = batch.range();
        let task = self.in_flight.spawn(publish(self.api.clone(), batch, self.skips_invalid));
        self.in_flight_lines.insert(task.id(), lines);
    }

    /// Waits for one batch in flight. Returns `false` if there is none.
    async fn settle_one(&mut self) -> bool {
        let settled = tokio::select! {
            settled = self.in_flight.join_next_with_id() => settled,
            () = self.interrupts.next() => {
                self.interrupt();
                return true;
            }
        };
        let Some(settled) = settled else { return false };
        let id = settled.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let lines = self.in_flight_lines.remove(&id);
        match settled {
            Ok((_, outcomes)) => outcomes.into_iter().for_each(|outcome| self.record(outcome)),
            Err(error) => {
                lines.into_iter().for_each(|lines| self.summary.record_unknown(lines));
                self.stop(error.into());
            }
        }
        true
    }

    fn record(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Stored { batch, duplicates } => {
                self.summary.record_stored(batch.range(), batch.lines.len() as u64 - duplicates, duplicates);
                self.bar.set_position(self.bar.position().max(batch.end_offset));
                self.bar.set_message(self.summary.published.to_string());
            }
            Outcome::Invalid(line) => self.summary.record_invalid(line),
            Outcome::Rejected { batch, reason } => {
                self.summary.record_rejected(batch.range());
                self.stop(reason);
            }
            Outcome::Unknown { batch, reason } => {
                self.summary.record_unknown(batch.range());
                self.stop(reason);
            }
        }
    }

    async fn close(&mut self) {
        if let Some(queue) = self.api.queue() {
            queue.close().await;
        }
    }
}

fn line_error(invalid: &InvalidLine) -> StopReason {
    UsageError(format!("line {}: {}", invalid.line, sanitize(&invalid.reason))).into()
}

/// Sends a batch. If the API rejects a line and invalid lines are skipped, the rest is sent without that line. A batch
/// that is too large is split.
async fn publish(api: Arc<Api>, batch: Batch, skips_invalid: bool) -> Vec<Outcome> {
    let (mut outcomes, mut rest) = (Vec::new(), vec![batch]);
    while let Some(mut batch) = rest.pop() {
        match send(&api, &batch).await {
            Ok(duplicates) => outcomes.push(Outcome::Stored { batch, duplicates }),
            Err(Failure::Unknown(reason)) => {
                outcomes.push(Outcome::Unknown { batch, reason });
                break;
            }
            Err(Failure::Rejected(api_error)) => match rejection_cause(&api_error, batch.lines.len()) {
                RejectionCause::Line(index, reason) => {
                    let invalid = InvalidLine { line: batch.lines[index].0, reason };
                    if !skips_invalid {
                        outcomes.push(Outcome::Rejected { batch, reason: line_error(&invalid) });
                        break;
                    }
                    let mut after = batch.split_off(index);
                    rest.extend([after.split_off(1), batch].into_iter().filter(|part| !part.lines.is_empty()));
                    outcomes.push(Outcome::Invalid(invalid));
                }
                RejectionCause::Size => {
                    let after = batch.split_off(batch.lines.len() / 2);
                    rest.extend([after, batch]);
                }
                RejectionCause::Other => {
                    outcomes.push(Outcome::Rejected { batch, reason: api_error.into() });
                    break;
                }
            },
        }
    }
    let unsent = || StopReason::from("not sent");
    outcomes.extend(rest.into_iter().map(|batch| Outcome::Rejected { batch, reason: unsent() }));
    outcomes
}

enum Failure {
    /// Nothing was stored.
    Rejected(ApiError),
    /// It is not known whether the batch was stored.
    Unknown(StopReason),
}

/// Sends a batch, with retries if that is safe. Returns the number of duplicates.
async fn send(api: &Api, batch: &Batch) -> std::result::Result<u64, Failure> {
    let mut retries = 0;
    loop {
        let response = api.post(&api.namespace_path("/events/batch"), &[], &batch.body()).await;
        let failure = match response.and_then(|response| response.json::<PublishedBatchBody>()) {
            Ok(stored) => return Ok(stored.events.iter().filter(|event| event.duplicate).count() as u64),
            Err(error) => classify_failure(error),
        };
        let is_safe_to_retry = match &failure {
            Failure::Rejected(api_error) => api_error.status == 429,
            Failure::Unknown(error) => batch.all_keyed && (error.is::<Unreachable>() || error.is::<ApiError>()),
        };
        if !is_safe_to_retry || retries == RETRIES_MAX {
            return Err(failure);
        }
        tokio::time::sleep(Duration::from_secs(1 << retries)).await;
        retries += 1;
    }
}

fn classify_failure(error: StopReason) -> Failure {
    match error.downcast::<ApiError>() {
        Ok(api_error) if api_error.status < 500 => Failure::Rejected(*api_error),
        Ok(api_error) => Failure::Unknown(api_error),
        Err(error) => Failure::Unknown(error),
    }
}

/// Why a batch was rejected.
#[derive(Debug, PartialEq, Eq)]
enum RejectionCause {
    /// The line with this index in the batch is invalid, for this reason.
    Line(usize, String),
    /// The batch is too large.
    Size,
    Other,
}

fn rejection_cause(api_error: &ApiError, lines: usize) -> RejectionCause {
    if !matches!(api_error.status, 400 | 413 | 422) {
        return RejectionCause::Other;
    }
    let message = api_error.to_string();
    let index = message.split_once("events[").and_then(|(_, rest)| rest.split_once(']'));
    let index = index.and_then(|(index, reason)| Some((index.parse().ok()?, reason)));
    match index {
        Some((index, reason)) if index < lines => {
            // Remove the line number within the request: it is not a line number of the file.
            let reason = reason.split(" at line ").next().unwrap_or(reason);
            RejectionCause::Line(index, reason.trim_start_matches([':', '.', ' ']).to_owned())
        }
        _ if lines == 1 => RejectionCause::Line(0, message),
        _ if api_error.status == 413 => RejectionCause::Size,
        _ => RejectionCause::Other,
    }
}

/// Prints to stderr. Write errors are ignored: the exit code still reports the failure.
fn print_error_line(line: &dyn std::fmt::Display) {
    let _ = writeln!(stderr(), "{line}");
}

fn report(summary: &PublishSummary, stop_reason: Option<StopReason>, json: bool) -> Result {
    if json {
        let mut body = summary.json();
        body["stopped"] = json!(stop_reason.as_ref().map(ToString::to_string));
        body["not_sent_from"] = json!(stop_reason.as_ref().map(|_| summary.not_sent_from()));
        print(&body)?;
    }
    for invalid in &summary.invalid_lines {
        print_error_line(&line_error(invalid));
    }
    if let Some(reason) = stop_reason {
        print_error_line(&summary.details());
        return Err(reason);
    }
    if !json {
        print(&summary.headline())?;
    }
    match summary.invalid {
        0 => Ok(()),
        invalid => Err(format!("{} passed over; all others are published", pluralize(invalid, "bad line")).into()),
    }
}

/// A progress bar if stderr is a terminal: by bytes of the file, or a spinner for stdin.
fn progress(size: Option<u64>) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match size {
        Some(size) => (
            ProgressBar::new(size),
            "{msg} events {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
        ),
        None => (ProgressBar::no_length(), "{spinner} {msg} events {binary_bytes} {binary_bytes_per_sec} {elapsed}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.with_message("0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejection_names_the_line() {
        let api_error = |status, message: &str| ApiError::new(status, message);
        let line = |index, reason: &str| RejectionCause::Line(index, reason.to_owned());
        let cases = [
            (400, 9, "events[3]: title: is required", line(3, "title: is required")),
            (
                400,
                9,
                "the body is not as expected: events[1].titel: unknown field `titel` at line 1 column 7",
                line(1, "titel: unknown field `titel`"),
            ),
            (413, 9, "events[0]: payload is 9 bytes", line(0, "payload is 9 bytes")),
            (413, 9, "the request body is larger than 5 bytes", RejectionCause::Size),
            (413, 1, "the request body is larger than 5 bytes", line(0, "the request body is larger than 5 bytes")),
            (400, 9, "events[9]: not ours", RejectionCause::Other),
            (404, 9, "namespace 'a' does not exist", RejectionCause::Other),
        ];
        for (status, lines, message, expected) in cases {
            assert_eq!(rejection_cause(&api_error(status, message), lines), expected, "{message}");
        }
    }
}
