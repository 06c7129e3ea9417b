//! `windlass tail`: prints activities as they happen.

mod line;

use std::time::Duration;

use clap::Args;
use windlass::{Status, Timestamp};
use windlass_api::ByeMessage;

use super::{NamespaceArgs, parse_status};
use crate::Result;
use crate::api::{Api, ApiError, EventStream, ServerSentEvent, Unreachable, comma_separated, present_params};
use crate::output::{print, print_json, print_note, terminal_width};
use crate::time;

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
    #[arg(long, short, value_name = "STATUS", value_delimiter = ',', value_parser = parse_status)]
    status: Vec<Status>,
    /// Only of this subscription; of all of them if not given
    #[arg(long, value_name = "NAME")]
    subscription: Option<String>,
    #[command(flatten)]
    common: NamespaceArgs,
}

/// Delay between attempts to reconnect. It doubles from the minimum up to the maximum.
const RECONNECT_DELAY_MIN: Duration = Duration::from_millis(500);
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(30);

impl Tail {
    pub async fn run(self) -> Result {
        let api = self.common.target.connect().await?;
        let result = tokio::select! {
            result = self.follow(&api) => result,
            interrupted = tokio::signal::ctrl_c() => interrupted.map_err(Into::into),
        };
        api.close().await;
        result
    }

    /// Follows the stream and reconnects when it breaks. The first connection is not retried, so that the user sees the
    /// error.
    async fn follow(&self, api: &Api) -> Result {
        let mut stream = self.open(api).await?;
        if !self.common.json {
            print_note(&format!(
                "Following namespace {} of {}; Ctrl-C ends it.",
                api.namespace(),
                self.common.target.display_name()
            ));
        }
        loop {
            let reason = self.read(&mut stream).await?;
            let lost_at = time::now();
            print_note(&format!("{reason}; trying to get back to it"));
            stream = self.reopen(api).await?;
            print_note(&missed_note(lost_at));
        }
    }

    async fn open(&self, api: &Api) -> Result<EventStream> {
        let statuses: Vec<String> = self.status.iter().map(Status::to_string).collect();
        let query = present_params([
            ("types", comma_separated(&self.types)),
            ("tags", comma_separated(&self.tags)),
            ("status", comma_separated(&statuses)),
            ("subscription", self.subscription.clone()),
        ]);
        api.stream(&api.namespace_path("/events/stream"), &query).await
    }

    async fn reopen(&self, api: &Api) -> Result<EventStream> {
        let mut delay = RECONNECT_DELAY_MIN;
        loop {
            tokio::time::sleep(delay).await;
            match self.open(api).await {
                Err(error) if is_temporary(&*error) => delay = (delay * 2).min(RECONNECT_DELAY_MAX),
                opened => return opened,
            }
        }
    }

    /// Prints events until the stream ends. Returns the reason.
    async fn read(&self, stream: &mut EventStream) -> Result<String> {
        loop {
            match stream.next().await {
                Ok(Some(event)) if event.name == "bye" => return closing_reason(&event),
                Ok(Some(event)) => self.show(&event)?,
                Ok(None) => return Ok("the server ended the stream".to_owned()),
                Err(error) if is_temporary(&*error) => return Ok(error.to_string()),
                Err(error) => return Err(error),
            }
        }
    }

    fn show(&self, event: &ServerSentEvent) -> Result {
        if self.common.json {
            return print_json(&event.data);
        }
        match event.name.as_str() {
            "activity" => print(&line::format_activity(&serde_json::from_str(&event.data)?, terminal_width())),
            "missed" => print(&line::format_missed(&serde_json::from_str(&event.data)?)),
            // Skip event names of newer servers.
            _ => Ok(()),
        }
    }
}

/// Returns why the server closed the stream. A rejected token is an error; a stopped server may come back.
fn closing_reason(event: &ServerSentEvent) -> Result<String> {
    let ByeMessage { reason } = serde_json::from_str(&event.data)?;
    match &*reason {
        "wrong_token" => {
            let message = "the server no longer accepts the token".to_owned();
            Err(ApiError { status: 401, code: reason.into_owned(), message }.into())
        }
        _ => Ok("the server stops".to_owned()),
    }
}

/// Whether the error is temporary, so that a retry may succeed.
fn is_temporary(error: &(dyn std::error::Error + 'static)) -> bool {
    let is_retryable = |api_error: &ApiError| matches!(api_error.status, 429 | 502..=504);
    error.is::<Unreachable>() || error.downcast_ref().is_some_and(is_retryable)
}

fn missed_note(since: Timestamp) -> String {
    let (since, now) = (time::format_timestamp(since), time::format_timestamp(time::now()));
    format!(
        "Connected again. What happened from {since} to {now} was missed: `windlass list --since {since}` finds it."
    )
}
