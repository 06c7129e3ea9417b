-- How far each walk through the history has come: everything up to this place was looked at, for this keep and under
-- these rules. The rules are a hash of all that a policy says about keeping.
CREATE TABLE windlass.retention_marks (
    namespace text NOT NULL,
    walk      text NOT NULL,
    keep_ms   bigint NOT NULL,
    rules     bigint NOT NULL,
    at        timestamptz NOT NULL,
    id        bigint NOT NULL,
    lane_id   bigint NOT NULL,
    PRIMARY KEY (namespace, walk, keep_ms)
);

-- Deliveries that no walk comes by any more: of purged dead letters, of removed subscriptions, imported ones. Each is
-- looked at when its time is over, and whenever the rules are others than those it was looked at under.
CREATE TABLE windlass.retention_leftovers (
    event_id     bigint NOT NULL,
    subscription text NOT NULL,
    namespace    text NOT NULL,
    since        timestamptz NOT NULL,
    rules        bigint NOT NULL DEFAULT 0,
    look_at      timestamptz NOT NULL,
    PRIMARY KEY (event_id, subscription, namespace)
);
CREATE INDEX retention_leftovers_by_time ON windlass.retention_leftovers (namespace, rules, look_at);
