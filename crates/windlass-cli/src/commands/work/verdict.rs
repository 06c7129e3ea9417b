//! What becomes of an event after its command ended: pure.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::kept::Tail;

/// `EX_DATAERR` of sysexits: what was given is wrong, and will be.
const NEVER: i32 = 65;
/// `EX_TEMPFAIL`: try again later.
const LATER: i32 = 75;

/// How a command ended.
#[derive(Debug)]
pub enum Ended {
    /// By itself.
    Exited(ExitStatus),
    /// It took longer than this, and was ended.
    TimedOut(Duration),
    /// It was ended since the worker stops.
    Stopped,
    /// Somebody else may have the event: nothing is to be reported.
    Lost,
    /// It could not even be started, and the next would fare no better.
    NotStarted(String),
    /// It could not be started with what this event has.
    TooLarge(String),
}

/// What a command printed, and how it ended.
pub struct Ran {
    pub ended: Ended,
    pub stdout: Tail,
    pub stderr: Tail,
}

/// What is reported: an item of `POST /events/finish` but for whose it is.
#[derive(Debug, PartialEq)]
pub struct Verdict {
    /// A word for the log.
    pub word: &'static str,
    pub item: Value,
}

impl Ran {
    /// `None`: nothing is to be reported.
    pub fn verdict(&self, snooze: Duration) -> Option<Verdict> {
        let verdict = |word, item| Some(Verdict { word, item });
        let error = |said: String| match self.stderr.last_line() {
            Some(line) => format!("{said}: {line}"),
            None => said,
        };
        let fail = |said: String| json!({ "outcome": "fail", "error_message": error(said) });
        let (word, mut item) = match &self.ended {
            Ended::Lost => return None,
            Ended::Stopped | Ended::NotStarted(_) => return verdict("released", json!({ "outcome": "release" })),
            Ended::TooLarge(why) => ("failed", fail(why.clone())),
            Ended::TimedOut(after) => ("timed out", fail(format!("timed out after {} s", after.as_secs()))),
            Ended::Exited(status) => match (status.code(), status.signal()) {
                (Some(0), _) => ("done", json!({ "outcome": "complete" })),
                (Some(LATER), _) => ("put back", json!({ "outcome": "snooze", "delay_ms": snooze.as_millis() as u64 })),
                (Some(NEVER), _) => {
                    let mut item = fail(format!("exit code {NEVER}"));
                    item["retry"] = json!(false);
                    ("given up", item)
                }
                (Some(code), _) => ("failed", fail(format!("exit code {code}"))),
                (None, signal) => ("failed", fail(format!("ended by {}", name(signal.unwrap_or(0))))),
            },
        };
        item["detail"] = self.detail();
        if let Ended::Exited(status) = &self.ended {
            item["status_code"] = json!(status.code());
        }
        verdict(word, item)
    }

    fn detail(&self) -> Value {
        let (code, signal) = match &self.ended {
            Ended::Exited(status) => (status.code(), status.signal()),
            _ => (None, None),
        };
        let mut detail = json!({ "exit_code": code, "stdout": self.stdout.text(), "stderr": self.stderr.text() });
        if let Some(signal) = signal {
            detail["signal"] = json!(name(signal));
        }
        for (field, tail) in [("stdout_bytes", &self.stdout), ("stderr_bytes", &self.stderr)] {
            if let Some(total) = tail.cut_from() {
                detail[field] = json!(total);
            }
        }
        detail
    }
}

fn name(signal: i32) -> String {
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

    fn ran(ended: Ended, stderr: &str) -> Ran {
        let (mut out, mut err) = (Tail::default(), Tail::default());
        out.push(b"out");
        err.push(stderr.as_bytes());
        Ran { ended, stdout: out, stderr: err }
    }

    fn exited(code: i32) -> Ended {
        Ended::Exited(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn the_exit_code_is_the_outcome() {
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
                "given up",
                json!({ "outcome": "fail", "error_message": "exit code 65: bad", "retry": false, "status_code": 65 }),
            ),
            (exited(75), "busy", "put back", json!({ "outcome": "snooze", "delay_ms": 60_000, "status_code": 75 })),
            (
                Ended::Exited(ExitStatus::from_raw(9)),
                "",
                "failed",
                json!({ "outcome": "fail", "error_message": "ended by SIGKILL", "status_code": null }),
            ),
            (
                Ended::TimedOut(Duration::from_secs(30)),
                "still at it",
                "timed out",
                json!({ "outcome": "fail", "error_message": "timed out after 30 s: still at it" }),
            ),
            (Ended::TooLarge("no room".into()), "", "failed", json!({ "outcome": "fail", "error_message": "no room" })),
            (Ended::Stopped, "", "released", json!({ "outcome": "release" })),
            (Ended::NotStarted("gone".into()), "", "released", json!({ "outcome": "release" })),
        ];
        for (ended, stderr, word, expected) in table {
            let ran = ran(ended, stderr);
            let Verdict { word: found, mut item } = ran.verdict(snooze).unwrap();
            item.as_object_mut().unwrap().remove("detail");
            assert_eq!((found, item), (word, expected), "{:?}", ran.ended);
        }
        assert_eq!(ran(Ended::Lost, "").verdict(snooze), None);
    }

    #[test]
    fn what_was_printed_is_kept() {
        let detail = ran(exited(1), "no").verdict(Duration::ZERO).unwrap().item["detail"].clone();
        assert_eq!(detail, json!({ "exit_code": 1, "stdout": "out", "stderr": "no" }));
        let detail = ran(Ended::Exited(ExitStatus::from_raw(15)), "").detail();
        assert_eq!(detail, json!({ "exit_code": null, "stdout": "out", "stderr": "", "signal": "SIGTERM" }));
        let flood = "x".repeat(1 << 20);
        let detail = ran(exited(1), &flood).detail();
        assert_eq!(detail["stderr_bytes"], 1 << 20);
        assert!(detail.to_string().len() < 64 << 10);
    }
}
