//! `windlass tail`: what happens, as it happens.

mod line;

use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use windlass::{Status, Timestamp};

use super::{Common, status};
use crate::Result;
use crate::api::{Api, Refusal, Stream, StreamEvent, Unreachable, given, joined};
use crate::output::{print, print_json, tell, width};
use crate::when;

/// Follow what happens to events, as it happens
///
/// One line for each thing that happened, until Ctrl-C. That a worker took an event is told at once by the server it
/// took it from; in all other cases when its attempt ends. If the server goes away it is tried again until it is back.
#[derive(Args)]
#[command(after_help = "\
Examples:
  windlass tail
  windlass tail --status failed,expired --server https://events.example.com
  windlass tail --type 'order.*' --json | jq -c '{event_id, action}'")]
pub struct Tail {
    /// Only these types, exact or by prefix ending in `*`; several with commas
    #[arg(long = "type", short, value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Only with any of these tags; several with commas
    #[arg(long = "tag", value_name = "TAG", value_delimiter = ',')]
    tags: Vec<String>,
    /// Only what led to this status, as in failed; several with commas
    #[arg(long, short, value_name = "STATUS", value_delimiter = ',', value_parser = status)]
    status: Vec<Status>,
    /// Only of this subscription; of all of them if not given
    #[arg(long, value_name = "NAME")]
    subscription: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Between two tries to reach a server again: at first, and at most.
const WAIT_MIN: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(30);

impl Tail {
    pub async fn run(self) -> Result {
        let api = self.common.target.connect().await?;
        let followed = tokio::select! {
            followed = self.follow(&api) => followed,
            interrupted = tokio::signal::ctrl_c() => interrupted.map_err(Into::into),
        };
        api.close().await;
        followed
    }

    /// The first time nothing is tried again: whoever has just typed the command reads what is wrong.
    async fn follow(&self, api: &Api) -> Result {
        let mut stream = self.open(api).await?;
        if !self.common.json {
            tell(&format!(
                "Following namespace {} of {}; Ctrl-C ends it.",
                api.namespace(),
                self.common.target.shown()
            ));
        }
        loop {
            let why = self.read(&mut stream).await?;
            let lost_at = when::now();
            tell(&format!("{why}; trying to get back to it"));
            stream = self.reopen(api).await?;
            tell(&missed(lost_at));
        }
    }

    async fn open(&self, api: &Api) -> Result<Stream> {
        let statuses: Vec<String> = self.status.iter().map(Status::to_string).collect();
        let query = given([
            ("types", joined(&self.types)),
            ("tags", joined(&self.tags)),
            ("status", joined(&statuses)),
            ("subscription", self.subscription.clone()),
        ]);
        api.stream(&api.within("/events/stream"), &query).await
    }

    async fn reopen(&self, api: &Api) -> Result<Stream> {
        let mut wait = WAIT_MIN;
        loop {
            tokio::time::sleep(wait).await;
            match self.open(api).await {
                Err(error) if may_pass(&*error) => wait = (wait * 2).min(WAIT_MAX),
                opened => return opened,
            }
        }
    }

    /// Until the other side ends: why it did.
    async fn read(&self, stream: &mut Stream) -> Result<String> {
        loop {
            match stream.next().await {
                Ok(Some(event)) if event.name == "bye" => return goodbye(&event),
                Ok(Some(event)) => self.show(&event)?,
                Ok(None) => return Ok("the server ended the stream".to_owned()),
                Err(error) if may_pass(&*error) => return Ok(error.to_string()),
                Err(error) => return Err(error),
            }
        }
    }

    fn show(&self, event: &StreamEvent) -> Result {
        if self.common.json {
            return print_json(&event.data);
        }
        match event.name.as_str() {
            "activity" => print(&line::shown(&serde_json::from_str(&event.data)?, width())),
            "missed" => print(&line::missed(&serde_json::from_str(&event.data)?)),
            // Told by a newer server.
            _ => Ok(()),
        }
    }
}

/// A server that stops may come back; one that no longer knows the token will not.
fn goodbye(event: &StreamEvent) -> Result<String> {
    #[derive(Deserialize)]
    struct Bye {
        reason: String,
    }
    let Bye { reason } = serde_json::from_str(&event.data)?;
    match reason.as_str() {
        "wrong_token" => {
            let sentence = "the server no longer accepts the token".to_owned();
            Err(Refusal { status: 401, code: reason, sentence }.into())
        }
        _ => Ok("the server stops".to_owned()),
    }
}

/// Whether it is worth trying again.
fn may_pass(error: &(dyn std::error::Error + 'static)) -> bool {
    let later = |refusal: &Refusal| matches!(refusal.status, 429 | 502..=504);
    error.is::<Unreachable>() || error.downcast_ref().is_some_and(later)
}

fn missed(since: Timestamp) -> String {
    let (since, now) = (when::shown(since), when::shown(when::now()));
    format!(
        "Connected again. What happened from {since} to {now} was missed: `windlass list --since {since}` finds it."
    )
}
