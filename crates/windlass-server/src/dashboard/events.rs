//! `/ui/{namespace}/events`: search events, and cancel many.

use std::borrow::Cow;

use askama::Template;
use axum::Router;
use axum::routing::{get, post};
use serde::Deserialize;
use windlass::{CancelFilter, ListFilter, MAIN, SearchFilter, SearchResult, Status};

use super::PageResult;
use super::confirm::Confirm;
use super::filter::{non_blank, parse_timestamp, split_names};
use super::form::{Form, link, local_path};
use super::format::{Badge, RelativeTime, count, pluralize};
use super::layout::{Layout, Tab, render};
use super::page_context::PageContext;
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{FormBody, QueryArgs};

pub(super) fn routes() -> Router<App> {
    Router::new().route("/ui/{namespace}/events", get(show)).route("/ui/{namespace}/events/cancel", post(cancel))
}

/// Events per page.
const PAGE_SIZE: usize = 50;

/// The filter, as it was typed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EventArgs {
    text: Option<String>,
    status: Option<String>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    tag: Option<String>,
    group: Option<String>,
    key: Option<String>,
    subscription: Option<String>,
    from: Option<String>,
    until: Option<String>,
    before: Option<i64>,
}

impl EventArgs {
    fn search(&self) -> Result<SearchFilter, ApiError> {
        Ok(SearchFilter {
            status: non_blank(self.status.as_deref()).map(|status| status.parse()).transpose()?,
            types: split_names(self.event_type.as_deref()),
            tags: split_names(self.tag.as_deref()),
            subscription: non_blank(self.subscription.as_deref()),
            text: non_blank(self.text.as_deref()),
            group_id: non_blank(self.group.as_deref()),
            key: non_blank(self.key.as_deref()),
            created_from: parse_timestamp("from", self.from.as_deref())?,
            created_before: parse_timestamp("until", self.until.as_deref())?,
            before: self.before,
            limit: PAGE_SIZE,
        })
    }

    /// The URL of the page that starts before this event.
    fn link(&self, path: &str, before: Option<i64>) -> String {
        let text = |text: &'_ Option<String>| non_blank(text.as_deref()).map(Cow::Owned);
        let before = before.map(|before| Cow::Owned(before.to_string()));
        let pairs = [
            ("text", text(&self.text)),
            ("status", text(&self.status)),
            ("type", text(&self.event_type)),
            ("tag", text(&self.tag)),
            ("group", text(&self.group)),
            ("key", text(&self.key)),
            ("subscription", text(&self.subscription)),
            ("from", text(&self.from)),
            ("until", text(&self.until)),
            ("before", before),
        ];
        link(path, pairs)
    }

    fn value(&self, field: &str) -> &str {
        let value = match field {
            "text" => &self.text,
            "status" => &self.status,
            "type" => &self.event_type,
            "tag" => &self.tag,
            "group" => &self.group,
            "key" => &self.key,
            "subscription" => &self.subscription,
            "from" => &self.from,
            _ => &self.until,
        };
        value.as_deref().map_or("", str::trim)
    }

    fn is_filtered(&self) -> bool {
        !self.link("", None).is_empty()
    }

    /// Whether a rarely used filter is set, so that its fields must be visible.
    fn has_rare_filter(&self) -> bool {
        ["group", "key", "subscription", "from", "until"].iter().any(|field| !self.value(field).is_empty())
    }

    /// Whether [`CancelFilter`] can express this filter.
    fn can_cancel_all(&self) -> bool {
        let rest = EventArgs { event_type: None, tag: None, subscription: None, before: None, ..self.clone() };
        matches!(self.value("status"), "" | "PENDING") && !EventArgs { status: None, ..rest }.is_filtered()
    }
}

#[derive(Template)]
#[template(path = "events.html")]
struct Events {
    layout: Layout,
    args: EventArgs,
    statuses: [&'static str; 7],
    subscriptions: Vec<String>,
    rows: Vec<Row>,
    looked_at: String,
    older: Option<String>,
    newest: Option<String>,
    here: String,
    can_cancel: bool,
    can_cancel_all: bool,
}

struct Row {
    id: i64,
    href: String,
    name: String,
    event_type: String,
    type_href: String,
    group: Option<(String, String)>,
    tags: Vec<(String, String)>,
    badge: Badge,
    is_pending: bool,
    note: String,
    next: Option<RelativeTime>,
    attempts: u32,
    created: RelativeTime,
}

impl Row {
    fn new(ctx: &PageContext, found: SearchResult) -> Row {
        let events = ctx.path("events");
        let to = |name: &'static str, value: &str| link(&events, [(name, Some(value.to_owned().into()))]);
        let delivery = &found.delivery;
        let waits_for_group = delivery.status == Status::Pending && delivery.ready_at.is_none();
        let later = delivery.ready_at.filter(|at| delivery.status == Status::Pending && *at > ctx.now);
        Row {
            id: found.event_id,
            href: ctx.path(&format!("events/{}", found.event_id)),
            name: found.title.unwrap_or_else(|| found.event_type.clone()),
            type_href: to("type", &found.event_type),
            group: found.group_id.map(|group| (to("group", &group), group)),
            tags: split_names(Some(&found.tags)).into_iter().map(|tag| (to("tag", &tag), tag)).collect(),
            badge: delivery.status.into(),
            is_pending: delivery.status == Status::Pending,
            note: match (&delivery.worker_id, waits_for_group) {
                (Some(worker), _) => format!("by {worker}"),
                (None, true) => "behind its group".to_owned(),
                (None, false) if later.is_some() && delivery.retry_count > 0 => "tried again".to_owned(),
                (None, false) if later.is_some() => "starts".to_owned(),
                _ => String::new(),
            },
            next: later.map(|at| RelativeTime::new(at, ctx.now)),
            attempts: delivery.attempts,
            created: RelativeTime::new(found.created_at, ctx.now),
            event_type: found.event_type,
        }
    }
}

async fn show(ctx: PageContext, QueryArgs(args): QueryArgs<EventArgs>) -> PageResult {
    let found = ctx.queue.search(args.search()?).await?;
    let subscriptions = ctx.queue.subscriptions().await?;
    let path = ctx.path("events");
    let rows: Vec<Row> = found.events.into_iter().map(|found| Row::new(&ctx, found)).collect();
    render(&Events {
        layout: ctx.layout(Tab::Events, "Events"),
        statuses: Status::ALL.map(Status::as_str),
        subscriptions: subscriptions.into_iter().map(|subscription| subscription.subscription).collect(),
        looked_at: pluralize(found.looked_at, "event", "events"),
        older: found.next.map(|next| args.link(&path, Some(next))),
        newest: args.before.map(|_| args.link(&path, None)),
        here: args.link(&path, args.before),
        can_cancel: ctx.may_act && rows.iter().any(|row| row.is_pending),
        can_cancel_all: ctx.may_act && args.can_cancel_all(),
        rows,
        args,
    })
}

/// Cancels the selected events, or all pending events that match.
async fn cancel(ctx: PageContext, FormBody(fields, _memory): FormBody) -> PageResult {
    let mut form = Form(fields);
    let back = form.get("back").and_then(local_path).map_or_else(|| ctx.path("events"), str::to_owned);
    let filter = cancel_filter(&form, ctx.queue.limits().page_max)?;
    if form.is_confirmed() {
        let cancelled = ctx.queue.cancel_all(filter).await?;
        return ctx.redirect_with_notice(&back, &format!("{} cancelled.", pluralize(cancelled, "event", "events")));
    }
    if let Some(newest) = newest(&ctx).await? {
        form.0.push(("up_to".to_owned(), newest.to_string()));
    }
    let number = pending(&ctx, &filter).await?;
    let subscription = filter.subscription.as_deref().unwrap_or(MAIN);
    let confirm = Confirm {
        tab: Tab::Events,
        question: format!("Cancel {}?", pluralize(number, "event", "events")),
        detail: format!(
            "{} will never be delivered to the subscription {subscription}. Events held by a worker are not affected. \
             This cannot be undone.",
            if number == 1 { "It" } else { "They" }
        ),
        button: format!("Cancel {}", count(number)),
        destructive: true,
        action: ctx.path("events/cancel"),
        back,
    };
    confirm.ask(&ctx, form)
}

fn cancel_filter(form: &Form, max: usize) -> Result<CancelFilter, ApiError> {
    let subscription = Some(form.get("subscription").unwrap_or(MAIN).to_owned());
    let up_to = form.get("up_to").and_then(|id| id.parse().ok());
    let of_subscription = CancelFilter { subscription, up_to, ..CancelFilter::default() };
    Ok(match form.get("what") {
        Some("matching") => {
            CancelFilter { types: split_names(form.get("type")), tags: split_names(form.get("tag")), ..of_subscription }
        }
        _ => CancelFilter { event_ids: selected(form, max)?, ..of_subscription },
    })
}

/// The newest event. Events published after the confirmation page are excluded, so that the confirmed number is right.
async fn newest(ctx: &PageContext) -> Result<Option<i64>, ApiError> {
    let found = ctx.queue.search(SearchFilter { limit: 1, ..SearchFilter::default() }).await?;
    Ok(found.events.first().map(|event| event.event_id))
}

fn selected(form: &Form, max: usize) -> Result<Vec<i64>, ApiError> {
    let bad = || ApiError::invalid("id", "must be the number of an event");
    let ids: Vec<i64> = form.all("id").map(|id| id.parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
    match ids.len() {
        0 => Err(ApiError::invalid("id", "select at least one event first")),
        many if many > max => Err(ApiError::invalid("id", format!("has {many} events; the limit is {max}"))),
        _ => Ok(ids),
    }
}

/// How many events that match the filter are pending.
async fn pending(ctx: &PageContext, filter: &CancelFilter) -> Result<u64, ApiError> {
    if filter.event_ids.is_empty() {
        let list = ListFilter {
            status: Some(Status::Pending),
            types: filter.types.clone(),
            tags: filter.tags.clone(),
            subscription: filter.subscription.clone(),
            limit: 1,
            offset: 0,
        };
        return Ok(ctx.queue.list(list).await?.total);
    }
    let mut waiting = 0;
    for id in &filter.event_ids {
        let view = ctx.queue.get(*id).await?;
        let delivery = view.delivery(filter.subscription.as_deref().unwrap_or(MAIN));
        waiting += u64::from(delivery.is_some_and(|delivery| delivery.status == Status::Pending));
    }
    Ok(waiting)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(query: &[(&str, &str)]) -> EventArgs {
        let json: serde_json::Map<String, serde_json::Value> =
            query.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
        serde_json::from_value(json.into()).unwrap()
    }

    #[test]
    fn selection_is_limited_to_the_page_size() {
        let form = |ids: &[&str]| Form(ids.iter().map(|id| ("id".to_owned(), (*id).to_owned())).collect());
        assert_eq!(selected(&form(&["1", "2"]), 2).unwrap(), [1, 2]);
        for bad in [&[][..], &["x"], &["1", "2", "3"]] {
            assert!(selected(&form(bad), 2).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn filters_are_kept_in_links() {
        let asked = [("type", "order.*"), ("status", ""), ("text", " a&b ")];
        assert_eq!(args(&asked).link("/e", Some(7)), "/e?text=a%26b&type=order.*&before=7");
        assert!(!args(&[("status", " ")]).is_filtered());
    }

    #[test]
    fn cancel_all_is_offered_only_if_its_filter_is_equivalent() {
        for fine in [&[][..], &[("type", "a")], &[("tag", "a"), ("status", "PENDING"), ("subscription", "x")]] {
            assert!(args(fine).can_cancel_all(), "{fine:?}");
        }
        for not in [("text", "a"), ("status", "FAILED"), ("group", "g"), ("key", "k"), ("from", "2025-12-24T10:30")] {
            assert!(!args(&[("type", "a"), not]).can_cancel_all(), "{not:?}");
        }
    }
}
