-- How far each walk through the history has come: everything up to this place was looked at, for this keep and under
-- these rules. The rules are a hash of all that a policy says about keeping.
CREATE TABLE retention_marks (
    namespace TEXT NOT NULL,
    walk      TEXT NOT NULL,
    keep_ms   INTEGER NOT NULL,
    rules     INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    id        INTEGER NOT NULL,
    lane_id   INTEGER NOT NULL,
    PRIMARY KEY (namespace, walk, keep_ms)
) WITHOUT ROWID;

-- Deliveries that no walk comes by any more: of purged dead letters, of removed subscriptions, imported ones. Each is
-- looked at when its time is over, and whenever the rules are others than those it was looked at under.
CREATE TABLE retention_leftovers (
    event_id     INTEGER NOT NULL,
    subscription TEXT NOT NULL,
    namespace    TEXT NOT NULL,
    since        INTEGER NOT NULL,
    rules        INTEGER NOT NULL DEFAULT 0,
    look_at      INTEGER NOT NULL,
    PRIMARY KEY (event_id, subscription, namespace)
) WITHOUT ROWID;
CREATE INDEX retention_leftovers_by_time ON retention_leftovers (namespace, rules, look_at);
