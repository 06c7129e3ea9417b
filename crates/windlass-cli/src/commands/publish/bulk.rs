//! Publishing a file: batches, several at a time, and an exact account of what became of them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Write, stderr, stdin};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};

use super::Publish;
use super::lines::{Bad, Batch, Lines, Next};
use super::tally::{Range, Tally};
use crate::Result;
use crate::api::{Api, Refusal, Unreachable};
use crate::exit::Usage;
use crate::interrupts::Interrupts;
use crate::output::{clean, counted, print, tell};

/// So many batches are under way at once.
const IN_FLIGHT_MAX: usize = 4;
/// A batch that may be sent again is, so often, after a second and then after twice as long each time.
const AGAIN_MAX: u32 = 5;

pub async fn run(publish: &Publish, file: &Path) -> Result {
    let (reader, size) = open(file)?;
    let api = Arc::new(publish.target.connect_or_create().await?);
    let (sender, batches) = mpsc::channel(1);
    let from_line = publish.from_line;
    // A thread and no task: nobody can take it off a read that waits.
    std::thread::spawn(move || read(Lines::new(reader, from_line), &sender));
    let mut bulk = Bulk {
        api,
        skip_bad: publish.skip_bad,
        bar: progress(size),
        tally: Tally::default(),
        in_flight: JoinSet::new(),
        lines: HashMap::new(),
        ordered: false,
        stopped: None,
        interrupts: Interrupts::listen()?,
        interrupted: false,
    };
    bulk.send_all(batches).await;
    bulk.bar.finish_and_clear();
    bulk.close().await;
    report(&bulk.tally, bulk.stopped, publish.json)
}

fn open(file: &Path) -> Result<(Box<dyn BufRead + Send>, Option<u64>)> {
    if file.as_os_str() == "-" {
        return Ok((Box::new(BufReader::new(stdin())), None));
    }
    let bad = |error| Usage(format!("{}: {error}", file.display()));
    let opened = File::open(file).map_err(bad)?;
    let metadata = opened.metadata().map_err(bad)?;
    Ok((Box::new(BufReader::with_capacity(1 << 20, opened)), metadata.is_file().then_some(metadata.len())))
}

type Read = std::io::Result<Next>;

/// Until the end, or until nobody wants any more.
fn read(mut lines: Lines<Box<dyn BufRead + Send>>, batches: &mpsc::Sender<Read>) {
    loop {
        let next = lines.next();
        let is_last = matches!(next, Err(_) | Ok(Next::End));
        if batches.blocking_send(next).is_err() || is_last {
            return;
        }
    }
}

/// What became of a batch, or of a part of it.
enum Outcome {
    Stored {
        batch: Batch,
        duplicates: u64,
    },
    Bad(Bad),
    /// Nothing of it was stored.
    Refused {
        batch: Batch,
        why: Stop,
    },
    /// Nobody knows.
    Unknown {
        batch: Batch,
        why: Stop,
    },
}

/// Why nothing more is sent.
type Stop = Box<dyn std::error::Error + Send + Sync>;

struct Bulk {
    api: Arc<Api>,
    skip_bad: bool,
    bar: ProgressBar,
    tally: Tally,
    in_flight: JoinSet<Vec<Outcome>>,
    /// Which lines each of those has.
    lines: HashMap<Id, Range>,
    /// One of a group is in flight, which nothing may overtake.
    ordered: bool,
    stopped: Option<Stop>,
    interrupts: Interrupts,
    /// By Ctrl-C.
    interrupted: bool,
}

impl Bulk {
    async fn send_all(&mut self, mut batches: mpsc::Receiver<Read>) {
        while self.stopped.is_none() {
            let next = tokio::select! {
                () = self.interrupts.next() => {
                    self.interrupt();
                    continue;
                }
                next = batches.recv() => next,
            };
            match next {
                Some(Ok(Next::Batch(batch))) => self.launch(batch).await,
                Some(Ok(Next::Bad(batch, bad))) => self.pass_over(batch, bad).await,
                Some(Err(error)) => self.stop(error.into()),
                Some(Ok(Next::End)) | None => break,
            }
        }
        while self.settle_one().await {}
    }

    fn stop(&mut self, why: Stop) {
        self.stopped.get_or_insert(why);
    }

    /// Nothing more is sent. What is in flight is waited for, until it is told a second time.
    fn interrupt(&mut self) {
        if self.interrupted {
            self.in_flight.abort_all();
        } else if !self.in_flight.is_empty() {
            self.bar.suspend(|| tell("Waiting for the answers to what was sent; a second Ctrl-C does not."));
        }
        self.interrupted = true;
        self.stop("interrupted".into());
    }

    async fn pass_over(&mut self, batch: Batch, bad: Bad) {
        if self.skip_bad {
            self.tally.bad(bad);
            return self.launch(batch).await;
        }
        let (first, _) = batch.range();
        self.tally.refused((if first == 0 { bad.line } else { first }, bad.line));
        self.stop(named(&bad));
    }

    /// Once there is room for it.
    async fn launch(&mut self, batch: Batch) {
        if batch.lines.is_empty() {
            return;
        }
        let most = if batch.ordered || self.ordered { 0 } else { IN_FLIGHT_MAX - 1 };
        while self.in_flight.len() > most && self.settle_one().await {}
        if self.stopped.is_some() {
            return self.tally.refused(batch.range());
        }
        self.ordered = batch.ordered;
        let lines = batch.range();
        let sending = self.in_flight.spawn(publish(self.api.clone(), batch, self.skip_bad));
        self.lines.insert(sending.id(), lines);
    }

    /// Waits for one that is in flight; `false`: there is none.
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
        let lines = self.lines.remove(&id);
        match settled {
            Ok((_, outcomes)) => outcomes.into_iter().for_each(|outcome| self.note(outcome)),
            Err(error) => {
                lines.into_iter().for_each(|lines| self.tally.unknown(lines));
                self.stop(error.into());
            }
        }
        true
    }

    fn note(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Stored { batch, duplicates } => {
                self.tally.stored(batch.range(), batch.lines.len() as u64 - duplicates, duplicates);
                self.bar.set_position(self.bar.position().max(batch.read_to));
                self.bar.set_message(self.tally.published.to_string());
            }
            Outcome::Bad(bad) => self.tally.bad(bad),
            Outcome::Refused { batch, why } => {
                self.tally.refused(batch.range());
                self.stopped.get_or_insert(why);
            }
            Outcome::Unknown { batch, why } => {
                self.tally.unknown(batch.range());
                self.stopped.get_or_insert(why);
            }
        }
    }

    async fn close(&mut self) {
        if let Some(queue) = self.api.queue() {
            queue.close().await;
        }
    }
}

fn named(bad: &Bad) -> Stop {
    Usage(format!("line {}: {}", bad.line, clean(&bad.reason))).into()
}

/// Sends a batch. One that is refused for a line of it goes without that line, if such are to be passed over.
async fn publish(api: Arc<Api>, batch: Batch, skip_bad: bool) -> Vec<Outcome> {
    let (mut outcomes, mut rest) = (Vec::new(), vec![batch]);
    while let Some(mut batch) = rest.pop() {
        match send(&api, &batch).await {
            Ok(duplicates) => outcomes.push(Outcome::Stored { batch, duplicates }),
            Err(Failure::Unknown(why)) => {
                outcomes.push(Outcome::Unknown { batch, why });
                break;
            }
            Err(Failure::Refused(refusal)) => match fault(&refusal, batch.lines.len()) {
                Fault::Line(place, reason) => {
                    let bad = Bad { line: batch.lines[place].0, reason };
                    if !skip_bad {
                        outcomes.push(Outcome::Refused { batch, why: named(&bad) });
                        break;
                    }
                    let mut after = batch.split_off(place);
                    rest.extend([after.split_off(1), batch].into_iter().filter(|part| !part.lines.is_empty()));
                    outcomes.push(Outcome::Bad(bad));
                }
                Fault::Size => {
                    let after = batch.split_off(batch.lines.len() / 2);
                    rest.extend([after, batch]);
                }
                Fault::Other => {
                    outcomes.push(Outcome::Refused { batch, why: refusal.into() });
                    break;
                }
            },
        }
    }
    let unsent = || Stop::from("not sent");
    outcomes.extend(rest.into_iter().map(|batch| Outcome::Refused { batch, why: unsent() }));
    outcomes
}

enum Failure {
    /// Nothing was stored.
    Refused(Refusal),
    /// Something may have been.
    Unknown(Stop),
}

/// How many of them were there already.
async fn send(api: &Api, batch: &Batch) -> std::result::Result<u64, Failure> {
    #[derive(Deserialize)]
    struct Stored {
        events: Vec<StoredEvent>,
    }
    #[derive(Deserialize)]
    struct StoredEvent {
        duplicate: bool,
    }
    let mut again = 0;
    loop {
        let answer = api.post(&api.within("/events/batch"), &[], &batch.body()).await;
        let failure = match answer.and_then(|answer| answer.read::<Stored>()) {
            Ok(stored) => return Ok(stored.events.iter().filter(|event| event.duplicate).count() as u64),
            Err(error) => failure(error),
        };
        let harmless = match &failure {
            Failure::Refused(refusal) => refusal.status == 429,
            Failure::Unknown(why) => batch.keyed && (why.is::<Unreachable>() || why.is::<Refusal>()),
        };
        if !harmless || again == AGAIN_MAX {
            return Err(failure);
        }
        tokio::time::sleep(Duration::from_secs(1 << again)).await;
        again += 1;
    }
}

fn failure(error: Stop) -> Failure {
    match error.downcast::<Refusal>() {
        Ok(refusal) if refusal.status < 500 => Failure::Refused(*refusal),
        Ok(refusal) => Failure::Unknown(refusal),
        Err(error) => Failure::Unknown(error),
    }
}

/// What a batch was refused for.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    /// The line in this place, and why.
    Line(usize, String),
    /// There is too much of it.
    Size,
    Other,
}

fn fault(refusal: &Refusal, lines: usize) -> Fault {
    if !matches!(refusal.status, 400 | 413 | 422) {
        return Fault::Other;
    }
    let said = refusal.to_string();
    let place = said.split_once("events[").and_then(|(_, rest)| rest.split_once(']'));
    let place = place.and_then(|(place, reason)| Some((place.parse().ok()?, reason)));
    match place {
        Some((place, reason)) if place < lines => {
            // A line of the request is no line of the file.
            let reason = reason.split(" at line ").next().unwrap_or(reason);
            Fault::Line(place, reason.trim_start_matches([':', '.', ' ']).to_owned())
        }
        _ if lines == 1 => Fault::Line(0, said),
        _ if refusal.status == 413 => Fault::Size,
        _ => Fault::Other,
    }
}

/// To stderr; where nobody reads it, the exit code still tells.
fn say(what: &dyn std::fmt::Display) {
    let _ = writeln!(stderr(), "{what}");
}

fn report(tally: &Tally, stopped: Option<Stop>, json: bool) -> Result {
    if json {
        let mut told = tally.json();
        told["stopped"] = json!(stopped.as_ref().map(ToString::to_string));
        told["not_sent_from"] = json!(stopped.as_ref().map(|_| tally.not_sent_from()));
        print(&told)?;
    }
    for bad in &tally.bad_shown {
        say(&named(bad));
    }
    if let Some(why) = stopped {
        say(&tally.account());
        return Err(why);
    }
    if !json {
        print(&tally.sentence())?;
    }
    match tally.bad {
        0 => Ok(()),
        bad => Err(format!("{} passed over; all others are published", counted(bad, "bad line")).into()),
    }
}

/// For people only.
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
    fn a_refusal_names_the_line() {
        let refusal = |status, said: &str| Refusal::new(status, said);
        let named = |place, reason: &str| Fault::Line(place, reason.to_owned());
        let cases = [
            (400, 9, "events[3]: title: is required", named(3, "title: is required")),
            (
                400,
                9,
                "the body is not as expected: events[1].titel: unknown field `titel` at line 1 column 7",
                named(1, "titel: unknown field `titel`"),
            ),
            (413, 9, "events[0]: payload is 9 bytes", named(0, "payload is 9 bytes")),
            (413, 9, "the request body is larger than 5 bytes", Fault::Size),
            (413, 1, "the request body is larger than 5 bytes", named(0, "the request body is larger than 5 bytes")),
            (400, 9, "events[9]: not ours", Fault::Other),
            (404, 9, "namespace 'a' does not exist", Fault::Other),
        ];
        for (status, lines, said, expected) in cases {
            assert_eq!(fault(&refusal(status, said), lines), expected, "{said}");
        }
    }
}
