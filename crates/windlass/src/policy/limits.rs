//! The limits on what a queue accepts. Each name ends with its unit, where it has one, and `_max`.

/// The limits on what a queue accepts. The defaults suit events of a few kilobytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The maximum size of a payload, in bytes of JSON; 1 MiB by default.
    pub payload_bytes_max: usize,
    /// The maximum nesting depth of a payload; 100 by default. Many parsers fail at 128, and API responses nest the
    /// payload.
    pub payload_depth_max: usize,
    /// The maximum size of metadata, in bytes of JSON.
    pub metadata_bytes_max: usize,
    /// The maximum length of a title, in bytes.
    pub title_bytes_max: usize,
    /// The maximum length of a description, in bytes.
    pub description_bytes_max: usize,
    /// The maximum length of a stored error message, in bytes; longer messages are cut.
    pub error_bytes_max: usize,
    /// The maximum size of the detail of a report, in bytes of JSON.
    pub detail_bytes_max: usize,
    /// The maximum number of tags of one event, or of one filter.
    pub tags_max: usize,
    /// The maximum number of event types of one filter.
    pub types_max: usize,
    /// The maximum length of the text of all tags of one event, in bytes. The text is indexed.
    pub tags_bytes_max: usize,
    /// The maximum number of events in one publish.
    pub publish_batch_max: usize,
    /// The maximum number of deliveries in one claim.
    pub claim_batch_max: usize,
    /// The maximum number of reports in one finish.
    pub finish_batch_max: usize,
    /// The maximum number of handler results in one report.
    pub handlers_max: usize,
    /// The maximum number of different filters (subscription, types, tags, lease) that claims of one process use
    /// concurrently.
    pub filters_max: usize,
    /// The maximum number of items in one page of a list.
    pub page_max: usize,
    /// The maximum length of a search text, in bytes.
    pub search_text_bytes_max: usize,
    /// The maximum number of events or deliveries that one page of a search scans.
    pub search_rows_max: usize,
    /// The maximum number of subscriptions in a namespace.
    pub subscriptions_max: usize,
    /// The maximum number of nodes in a namespace, including stopped and dead nodes that are still registered.
    pub nodes_max: usize,
    /// The maximum number of event types that one node registers.
    pub node_types_max: usize,
    /// The maximum number of schedules in a namespace. Several processes that add schedules concurrently may exceed it
    /// by a few thousand.
    pub schedules_max: usize,
    /// The maximum number of missed ticks, the latest ones, that a schedule fires under `MissedPolicy::All`.
    pub missed_ticks_max: usize,
    /// The maximum number of samples in one response.
    pub samples_max: usize,
    /// The maximum number of stored samples that one response aggregates.
    pub sample_rows_max: usize,
    /// The maximum number of event types of a namespace with metrics of their own in one process; the others are
    /// counted as `other`.
    pub metric_types_max: usize,
    /// The maximum number of API tokens in a database, including expired ones.
    pub tokens_max: usize,
    /// The maximum number of namespaces of one API token.
    pub token_namespaces_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            payload_bytes_max: 1 << 20,
            payload_depth_max: 100,
            metadata_bytes_max: 16 << 10,
            title_bytes_max: 1_000,
            description_bytes_max: 10_000,
            error_bytes_max: 64 << 10,
            detail_bytes_max: 64 << 10,
            tags_max: 32,
            types_max: 1_000,
            tags_bytes_max: 2_000,
            publish_batch_max: 10_000,
            claim_batch_max: 1_000,
            finish_batch_max: 10_000,
            handlers_max: 100,
            filters_max: 20_000,
            page_max: 1_000,
            search_text_bytes_max: 1_000,
            search_rows_max: 20_000,
            subscriptions_max: 100,
            nodes_max: 10_000,
            node_types_max: 1_000,
            schedules_max: 1_000_000,
            missed_ticks_max: 1_000,
            samples_max: 10_000,
            sample_rows_max: 100_000,
            metric_types_max: 100,
            tokens_max: 1_000,
            token_namespaces_max: 32,
        }
    }
}
