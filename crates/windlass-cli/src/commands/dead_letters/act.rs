//! `windlass dead-letters redrive` and `purge`.

use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Filter;
use crate::Result;
use crate::api::{Answer, Api, Refusal};
use crate::commands::Common;
use crate::exit::Usage;
use crate::output::{confirm, counted, print, print_json, progress};

/// What is done, and how it is told.
#[derive(Clone, Copy)]
pub struct Deed {
    verb: &'static str,
    /// Also what the answer's number is called.
    done: &'static str,
    /// It cannot be undone, so it is asked about in every case.
    for_good: bool,
}

pub const REDRIVE: Deed = Deed { verb: "redrive", done: "redriven", for_good: false };
pub const PURGE: Deed = Deed { verb: "purge", done: "purged", for_good: true };

#[derive(Args)]
pub struct Act {
    /// The events' ids
    #[arg(value_name = "ID")]
    event_ids: Vec<i64>,
    #[command(flatten)]
    filter: Filter,
    /// All there are in the namespace
    #[arg(long)]
    all: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    common: Common,
}

/// The most ids that one request may name.
const IDS_MAX: usize = 1_000;
/// How often the bar moves.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl Act {
    pub async fn run(self, deed: Deed) -> Result {
        match (self.event_ids.is_empty() && self.filter.is_empty(), self.all) {
            (true, false) => Err(Usage("say which: by their ids, a filter such as --type, or --all".to_owned()).into()),
            (false, true) => Err(Usage("--all makes no sense with ids or a filter".to_owned()).into()),
            _ => self.common.target.with(async |api| self.act(api, deed).await).await,
        }
    }

    async fn act(&self, api: &Api, deed: Deed) -> Result {
        let count = match self.event_ids.len() {
            0 => self.matching(api).await?,
            given => given as u64,
        };
        let letters = counted(count, "dead letter");
        if count > 0 && (deed.for_good || self.event_ids.is_empty()) {
            confirm(&format!("{} {letters}", deed.verb), self.yes)?;
        }
        let bar = progress(deed.verb, count);
        let done = match self.event_ids.is_empty() {
            true => self.all_that_match(api, deed, count, &bar).await,
            false => self.those_named(api, deed, &bar).await,
        };
        bar.finish_and_clear();
        let done = done?;
        match self.common.json {
            true => print_json(&json!({ deed.done: done }).to_string())?,
            false => print(&format!("{} {}.", counted(done, "dead letter"), deed.done))?,
        }
        match count.saturating_sub(done) {
            left if left > 0 && !self.event_ids.is_empty() => Err(not_found(left, count).into()),
            _ => Ok(()),
        }
    }

    /// How many there are by now.
    async fn matching(&self, api: &Api) -> Result<u64> {
        #[derive(Deserialize)]
        struct Body {
            total: u64,
        }
        let mut query = self.filter.query();
        query.push(("limit", "1".to_owned()));
        let answer = api.get(&api.within("/dead-letters"), &query).await?;
        Ok(answer.read::<Body>()?.total)
    }

    /// One request does it all; how far it is can be seen by what is left.
    async fn all_that_match(&self, api: &Api, deed: Deed, count: u64, bar: &ProgressBar) -> Result<u64> {
        let mut body = self.filter.body();
        if self.all {
            body.insert("all".to_owned(), json!(true));
        }
        let path = api.within(&format!("/dead-letters/{}", deed.verb));
        let mut request = std::pin::pin!(api.post(&path, &[], &body));
        loop {
            tokio::select! {
                answer = &mut request => return told(&answer?, deed),
                () = tokio::time::sleep(LOOK_EVERY), if !bar.is_hidden() => {
                    // It is only for show.
                    if let Ok(left) = self.matching(api).await {
                        bar.set_position(count.saturating_sub(left));
                    }
                }
            }
        }
    }

    async fn those_named(&self, api: &Api, deed: Deed, bar: &ProgressBar) -> Result<u64> {
        let path = api.within(&format!("/dead-letters/{}", deed.verb));
        let mut done = 0;
        for ids in self.event_ids.chunks(IDS_MAX) {
            let mut body: Map<String, Value> = self.filter.body();
            body.insert("event_ids".to_owned(), json!(ids));
            done += told(&api.post(&path, &[], &body).await?, deed)?;
            bar.inc(ids.len() as u64);
        }
        Ok(done)
    }
}

/// How many, as the answer says.
fn told(answer: &Answer, deed: Deed) -> Result<u64> {
    let body: Map<String, Value> = answer.read()?;
    let number = body.get(deed.done).and_then(Value::as_u64);
    number.ok_or_else(|| format!("the answer was not understood: it does not say how many were {}", deed.done).into())
}

fn not_found(left: u64, of: u64) -> Refusal {
    let sentence = match of {
        1 => "no dead letter has this id, or none that matches".to_owned(),
        _ => format!("for {left} of the {of} ids there is no dead letter, or none that matches"),
    };
    Refusal { status: 404, code: "dead_letter_not_found".to_owned(), sentence }
}
