//! Events of the library as bodies of responses, with the delivery of one subscription.

use serde_json::value::RawValue;
use windlass::{DeliveryView, Error, Event, EventView, LogEntry, Status};
use windlass_api::{EventBody, EventOptions, LogEntryBody};

/// Maximum total size of the payloads in a response with many events.
pub(super) const PAYLOADS_BYTES_MAX: usize = 32 << 20;

/// How many of these payloads fit into a response: at least one.
pub(super) fn count_fitting<'a>(payloads: impl Iterator<Item = &'a RawValue>) -> usize {
    let mut bytes = 0usize;
    let fits = |(index, payload): &(usize, &RawValue)| {
        bytes = bytes.saturating_add(payload.get().len());
        *index == 0 || bytes <= PAYLOADS_BYTES_MAX
    };
    payloads.enumerate().take_while(fits).count()
}

/// Moves the optional properties out of an event.
pub(super) fn take_options(event: &mut Event) -> EventOptions {
    EventOptions {
        group_id: event.group_id.take(),
        key: event.key.take(),
        priority: event.priority,
        run_at: event.run_at,
        expires_at: event.expires_at,
        metadata: event.metadata.take(),
        producer: event.producer.take(),
        scheduled_task_id: event.scheduled_task_id.take(),
    }
}

/// An event in the state in which it was published.
pub(super) fn published(mut event: Event, max_retries: Option<u32>) -> EventBody {
    EventBody {
        options: take_options(&mut event),
        id: event.id,
        event_type: event.event_type,
        title: event.title,
        description: event.description,
        tags: event.tags,
        status: Status::Pending,
        payload: event.payload,
        attempts: 0,
        retry_count: 0,
        max_retries,
        next_retry_at: None,
        created_at: event.created_at,
        updated_at: event.created_at,
        worker_id: None,
        lease_expires_at: None,
        error_message: None,
        deliveries: Vec::new(),
        logs: None,
    }
}

/// An event that was completed and, according to the policy, not kept.
pub(super) fn completed_without_history(event: Event, max_retries: Option<u32>) -> EventBody {
    EventBody { status: Status::Completed, ..published(event, max_retries) }
}

/// An event with the state of its delivery to this subscription.
pub(super) fn for_subscription(subscription: &str, view: EventView) -> Result<EventBody, Error> {
    let Some(delivery) = view.delivery(subscription).cloned() else {
        return Err(Error::EventNotFound { namespace: view.event.namespace, event_id: view.event.id });
    };
    let DeliveryView { status, attempts, retry_count, next_retry_at, updated_at, .. } = delivery;
    let deliveries = if view.deliveries.len() > 1 { view.deliveries } else { Vec::new() };
    Ok(EventBody {
        status,
        attempts,
        retry_count,
        next_retry_at,
        updated_at,
        worker_id: delivery.worker_id,
        lease_expires_at: delivery.lease_expires_at,
        error_message: delivery.error_message,
        deliveries,
        ..published(view.event, delivery.max_retries)
    })
}

/// An entry of an event's log.
pub(super) fn log_entry(entry: LogEntry) -> LogEntryBody {
    LogEntryBody {
        id: entry.id,
        event_id: entry.event_id,
        worker_id: entry.worker_id,
        action: entry.action,
        status_code: entry.status_code,
        error_message: entry.error_message,
        execution_time_ms: entry.execution_time_ms,
        detail: entry.detail,
        created_at: entry.created_at,
    }
}
