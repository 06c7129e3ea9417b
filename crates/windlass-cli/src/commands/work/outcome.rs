//! Decides the outcome of an attempt from how its command ended.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use windlass_api::{FinishItem, FinishOutcome};

use super::output_tail::OutputTail;

/// `EX_DATAERR` of sysexits: the input is invalid, so a retry is useless.
const DO_NOT_RETRY: i32 = 65;
/// `EX_TEMPFAIL` of sysexits: try again later.
const RETRY_LATER: i32 = 75;

/// How a command ended.
#[derive(Debug)]
pub enum CommandEnd {
    /// It exited by itself.
    Exited(ExitStatus),
    /// It was ended because it took longer than this.
    TimedOut(Duration),
    /// It was ended because the worker shuts down.
    Stopped,
    /// The lease is lost, so that another worker may have the event. Nothing is reported.
    LeaseLost,
    /// The program could not be started, which would be the same for every event.
    NotStarted(String),
    /// The event's variables do not fit into the environment.
    EventTooLarge(String),
}

/// How a command ended, and the end of its output.
pub struct CommandResult {
    pub end: CommandEnd,
    pub stdout: OutputTail,
    pub stderr: OutputTail,
}

/// The report of an attempt: an item of `POST /events/finish` without lease and subscription.
#[derive(Debug)]
pub struct AttemptReport {
    /// The outcome for the log.
    pub label: &'static str,
    pub item: FinishItem,
}

impl CommandResult {
    /// Returns the report, or `None` if nothing is reported.
    pub fn report(&self, event_id: i64, snooze: Duration) -> Option<AttemptReport> {
        let item = |outcome| FinishItem::new(event_id, outcome);
        let error = |message: String| match self.stderr.last_line() {
            Some(line) => format!("{message}: {line}"),
            None => message,
        };
        let fail = |message| FinishItem { error_message: Some(error(message)), ..item(FinishOutcome::Fail) };
        let (label, mut item) = match &self.end {
            CommandEnd::LeaseLost => return None,
            CommandEnd::Stopped | CommandEnd::NotStarted(_) => {
                return Some(AttemptReport { label: "released", item: item(FinishOutcome::Release) });
            }
            CommandEnd::EventTooLarge(reason) => ("failed", fail(reason.clone())),
            CommandEnd::TimedOut(after) => ("timed out", fail(format!("timed out after {} s", after.as_secs()))),
            CommandEnd::Exited(status) => match (status.code(), status.signal()) {
                (Some(0), _) => ("done", item(FinishOutcome::Complete)),
                (Some(RETRY_LATER), _) => {
                    let delay_ms = Some(snooze.as_millis() as u64);
                    ("snoozed", FinishItem { delay_ms, ..item(FinishOutcome::Snooze) })
                }
                (Some(DO_NOT_RETRY), _) => {
                    let failed = fail(format!("exit code {DO_NOT_RETRY}"));
                    ("dead-lettered", FinishItem { retry: Some(false), ..failed })
                }
                (Some(code), _) => ("failed", fail(format!("exit code {code}"))),
                (None, signal) => ("failed", fail(format!("ended by {}", signal_name(signal.unwrap_or(0))))),
            },
        };
        item.detail = to_raw_value(&self.detail()).ok();
        if let CommandEnd::Exited(status) = &self.end {
            item.status_code = status.code();
        }
        Some(AttemptReport { label, item })
    }

    fn detail(&self) -> Value {
        let (code, signal) = match &self.end {
            CommandEnd::Exited(status) => (status.code(), status.signal()),
            _ => (None, None),
        };
        let mut detail = json!({ "exit_code": code, "stdout": self.stdout.text(), "stderr": self.stderr.text() });
        if let Some(signal) = signal {
            detail["signal"] = json!(signal_name(signal));
        }
        for (field, tail) in [("stdout_bytes", &self.stdout), ("stderr_bytes", &self.stderr)] {
            if let Some(total) = tail.total_if_truncated() {
                detail[field] = json!(total);
            }
        }
        detail
    }
}

fn signal_name(signal: i32) -> String {
    let names = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::SYS, "SIGSYS"),
    ];
    let known = names.iter().find(|(known, _)| known.as_raw() == signal);
    known.map_or_else(|| format!("signal {signal}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(end: CommandEnd, stderr: &str) -> CommandResult {
        let (mut out, mut err) = (OutputTail::default(), OutputTail::default());
        out.push(b"out");
        err.push(stderr.as_bytes());
        CommandResult { end, stdout: out, stderr: err }
    }

    fn exited(code: i32) -> CommandEnd {
        CommandEnd::Exited(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn exit_code_decides_the_outcome() {
        let snooze = Duration::from_secs(60);
        let table = [
            (exited(0), "", "done", json!({ "outcome": "complete", "status_code": 0 })),
            (exited(1), "", "failed", json!({ "outcome": "fail", "error_message": "exit code 1", "status_code": 1 })),
            (
                exited(3),
                "a\nno luck\n",
                "failed",
                json!({ "outcome": "fail", "error_message": "exit code 3: no luck", "status_code": 3 }),
            ),
            (
                exited(65),
                "bad",
                "dead-lettered",
                json!({ "outcome": "fail", "error_message": "exit code 65: bad", "retry": false, "status_code": 65 }),
            ),
            (exited(75), "busy", "snoozed", json!({ "outcome": "snooze", "delay_ms": 60_000, "status_code": 75 })),
            (
                CommandEnd::Exited(ExitStatus::from_raw(9)),
                "",
                "failed",
                json!({ "outcome": "fail", "error_message": "ended by SIGKILL" }),
            ),
            (
                CommandEnd::TimedOut(Duration::from_secs(30)),
                "still at it",
                "timed out",
                json!({ "outcome": "fail", "error_message": "timed out after 30 s: still at it" }),
            ),
            (
                CommandEnd::EventTooLarge("no room".into()),
                "",
                "failed",
                json!({ "outcome": "fail", "error_message": "no room" }),
            ),
            (CommandEnd::Stopped, "", "released", json!({ "outcome": "release" })),
            (CommandEnd::NotStarted("gone".into()), "", "released", json!({ "outcome": "release" })),
        ];
        for (end, stderr, label, expected) in table {
            let result = result(end, stderr);
            let AttemptReport { label: found, item } = result.report(1, snooze).unwrap();
            let mut item = serde_json::to_value(item).unwrap();
            item.as_object_mut().unwrap().retain(|field, _| field != "event_id" && field != "detail");
            assert_eq!((found, item), (label, expected), "{:?}", result.end);
        }
        assert!(result(CommandEnd::LeaseLost, "").report(1, snooze).is_none());
    }

    #[test]
    fn output_is_reported_in_the_detail() {
        let detail = result(exited(1), "no").report(1, Duration::ZERO).unwrap().item.detail.unwrap();
        assert_eq!(detail.get(), r#"{"exit_code":1,"stderr":"no","stdout":"out"}"#);
        let detail = result(CommandEnd::Exited(ExitStatus::from_raw(15)), "").detail();
        assert_eq!(detail, json!({ "exit_code": null, "stdout": "out", "stderr": "", "signal": "SIGTERM" }));
        let flood = "x".repeat(1 << 20);
        let detail = result(exited(1), &flood).detail();
        assert_eq!(detail["stderr_bytes"], 1 << 20);
        assert!(detail.to_string().len() < 64 << 10);
    }
}
