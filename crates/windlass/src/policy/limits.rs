//! A limit on everything, with its unit in its name.

/// What one queue accepts. The defaults suit events of a few kilobytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The largest payload, in bytes of JSON. 1 MiB unless set.
    pub payload_bytes_max: usize,
    /// How deep a payload may nest; 100 unless set. Many parsers give up at 128, and answers wrap it.
    pub payload_depth_max: usize,
    /// The largest metadata, in bytes of JSON.
    pub metadata_bytes_max: usize,
    /// The longest title, in bytes.
    pub title_bytes_max: usize,
    /// The longest description, in bytes.
    pub description_bytes_max: usize,
    /// The longest error message kept, in bytes; a longer one is cut.
    pub error_bytes_max: usize,
    /// The largest detail of a report, in bytes of JSON.
    pub detail_bytes_max: usize,
    /// The most tags of one event, or of one filter.
    pub tags_max: usize,
    /// The most event types of one filter.
    pub types_max: usize,
    /// The longest text of all tags of one event, in bytes; an index holds it.
    pub tags_bytes_max: usize,
    /// The most events in one publish.
    pub publish_batch_max: usize,
    /// The most deliveries in one claim.
    pub claim_batch_max: usize,
    /// The most outcomes in one finish.
    pub finish_batch_max: usize,
    /// The most handler results in one report.
    pub handlers_max: usize,
    /// The most different filters (subscription, types, tags, lease) that claims of one process use at once.
    pub filters_max: usize,
    /// The longest page of a list.
    pub page_max: usize,
    /// The longest text to search for, in bytes.
    pub search_text_bytes_max: usize,
    /// The most events or deliveries that one page of a search looks at.
    pub search_rows_max: usize,
    /// The most subscriptions in a namespace.
    pub subscriptions_max: usize,
    /// The most nodes in a namespace, those included that were not heard of for long.
    pub nodes_max: usize,
    /// The most event types that one node may name.
    pub node_types_max: usize,
    /// The most schedules in a namespace. Several processes that add some at once may pass it by a few thousand.
    pub schedules_max: usize,
    /// The most ticks that a schedule makes up for under `MissedPolicy::All`; the latest.
    pub missed_ticks_max: usize,
    /// The most samples in one answer.
    pub samples_max: usize,
    /// The most stored samples that one answer is made of.
    pub sample_rows_max: usize,
    /// The most event types of a namespace that metrics of one process tell apart; the others go by `other`.
    pub metric_types_max: usize,
    /// The most API tokens in a database, expired ones included.
    pub tokens_max: usize,
    /// The most namespaces that one API token may name.
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
