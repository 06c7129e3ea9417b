-- Times are microseconds since 1970; 9223372036854775807 stands for "infinity".

CREATE TABLE namespaces (
    namespace    TEXT PRIMARY KEY,
    metadata     TEXT NOT NULL DEFAULT '{}',
    policy       TEXT NOT NULL,
    paused       INTEGER NOT NULL DEFAULT 0,
    paused_types TEXT NOT NULL DEFAULT '[]',
    version      INTEGER NOT NULL DEFAULT 1,
    created_at   INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE subscriptions (
    subscription_id INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace    TEXT NOT NULL,
    subscription TEXT NOT NULL,
    types        TEXT NOT NULL DEFAULT '[]',
    tags         TEXT NOT NULL DEFAULT '[]',
    policy       TEXT NOT NULL DEFAULT '{}',
    paused       INTEGER NOT NULL DEFAULT 0,
    starts_at    INTEGER NOT NULL,
    backfill_from INTEGER,
    created_at   INTEGER NOT NULL,
    UNIQUE (namespace, subscription)
);

-- Deliveries of one subscription with the same type, tag set and priority. Claims that filter by type or tag read these
-- lanes; maintenance removes empty lanes.
CREATE TABLE lanes (
    lane_id         INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace       TEXT NOT NULL,
    subscription_id INTEGER NOT NULL,
    subscription    TEXT NOT NULL,
    event_type      TEXT NOT NULL,
    tags            TEXT NOT NULL,
    priority        INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    UNIQUE (subscription_id, event_type, tags, priority)
);
CREATE INDEX lanes_by_namespace ON lanes (namespace, lane_id);

CREATE TABLE events (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace         TEXT NOT NULL,
    event_type        TEXT NOT NULL,
    title             TEXT,
    description       TEXT,
    tags              TEXT NOT NULL,
    payload           TEXT NOT NULL,
    group_id          TEXT,
    key               TEXT,
    priority          INTEGER NOT NULL,
    producer          TEXT,
    scheduled_task_id TEXT,
    run_at            INTEGER,
    expires_at        INTEGER,
    metadata          TEXT,
    created_at        INTEGER NOT NULL
);
CREATE INDEX events_by_namespace ON events (namespace, id);

-- Arrivals: events that were published in transactions of the application and have no deliveries yet. After their
-- commit a router turns them into deliveries and deletes the rows here.
CREATE TABLE arrivals (
    namespace   TEXT NOT NULL,
    event_id    INTEGER NOT NULL,
    max_retries INTEGER,
    group_id    TEXT,
    key         TEXT,
    PRIMARY KEY (namespace, event_id)
) WITHOUT ROWID;
CREATE INDEX arrivals_by_group ON arrivals (namespace, group_id) WHERE group_id IS NOT NULL;
CREATE INDEX arrivals_by_key ON arrivals (namespace, key, event_id) WHERE key IS NOT NULL;

-- The primary key is also the order of publishing within a subscription. out_of_order marks the rows that must be
-- claimed by (priority, ready_at) instead: those with another priority than 0, and those that were delayed, retried,
-- released or made ready by their group. The partial indexes contain exactly the claimable rows; their last columns let
-- a claim find its candidates in the index alone.
CREATE TABLE event_queue (
    subscription_id  INTEGER NOT NULL,
    event_id         INTEGER NOT NULL,
    lane_id          INTEGER NOT NULL,
    namespace        TEXT NOT NULL,
    subscription     TEXT NOT NULL,
    event_type       TEXT NOT NULL,
    priority         INTEGER NOT NULL,
    out_of_order     INTEGER NOT NULL,
    ready_at         INTEGER NOT NULL,
    due_at           INTEGER,
    attempts         INTEGER NOT NULL DEFAULT 0,
    attempts_limit   INTEGER NOT NULL,
    retry_count      INTEGER NOT NULL DEFAULT 0,
    max_retries      INTEGER,
    group_id         TEXT,
    expires_at       INTEGER,
    lease            INTEGER,
    worker_id        TEXT,
    picked_at        INTEGER,
    started_at       INTEGER,
    lease_expires_at INTEGER,
    updated_at       INTEGER NOT NULL,
    created_at       INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, event_id)
) WITHOUT ROWID;
CREATE INDEX event_queue_lane ON event_queue (lane_id, ready_at, event_id, expires_at, lease) WHERE lease IS NULL;
CREATE INDEX event_queue_out_of_order
    ON event_queue (subscription_id, priority, ready_at, event_id, lane_id, expires_at, out_of_order, lease)
    WHERE out_of_order AND lease IS NULL;
CREATE INDEX event_queue_deadline ON event_queue (subscription_id, expires_at, event_id, lane_id, ready_at, lease)
    WHERE expires_at IS NOT NULL AND lease IS NULL;
CREATE INDEX event_queue_lane_deadline ON event_queue (lane_id, expires_at, event_id, ready_at, lease)
    WHERE expires_at IS NOT NULL AND lease IS NULL;
CREATE INDEX event_queue_leased ON event_queue (subscription_id, lease_expires_at, event_id) WHERE lease IS NOT NULL;
-- The delivery of a group that may be claimed or is in progress comes before those that wait at infinity.
CREATE INDEX event_queue_group
    ON event_queue (group_id, subscription, namespace, ready_at = 9223372036854775807, due_at, event_id)
    WHERE group_id IS NOT NULL;

-- Append-only: rowid grows with finished_at.
CREATE TABLE event_attempts (
    event_id          INTEGER NOT NULL,
    subscription_id   INTEGER NOT NULL,
    attempt           INTEGER NOT NULL,
    namespace         TEXT NOT NULL,
    subscription      TEXT NOT NULL,
    event_type        TEXT NOT NULL,
    lease             INTEGER,
    worker_id         TEXT,
    picked_at         INTEGER,
    started_at        INTEGER,
    finished_at       INTEGER NOT NULL,
    action            TEXT NOT NULL,
    status_code       INTEGER,
    execution_time_ms INTEGER,
    error_message     TEXT,
    detail            TEXT,
    next_retry_at     INTEGER,
    retry_count       INTEGER NOT NULL,
    max_retries       INTEGER
);
CREATE INDEX event_attempts_by_event ON event_attempts (event_id);

-- A row for each group with deliveries in the queue.
CREATE TABLE event_groups (
    namespace     TEXT NOT NULL,
    subscription  TEXT NOT NULL,
    group_id      TEXT NOT NULL,
    -- How many deliveries it has.
    depth         INTEGER NOT NULL,
    -- The latest due time of a delivery that was due when it was added. Later ones are not due before it, even if the clock
    -- was set back.
    last_at       INTEGER NOT NULL,
    -- If this is in the future, the first delivery is delayed until then, or was: one that is due earlier goes before it.
    delayed_until INTEGER,
    -- The last run: its lease, how many of its deliveries are still in progress, and the latest due time among them.
    run_lease     INTEGER,
    run_left      INTEGER NOT NULL DEFAULT 0,
    run_to        INTEGER,
    PRIMARY KEY (group_id, subscription, namespace)
) WITHOUT ROWID;

CREATE TABLE dead_letters (
    event_id        INTEGER NOT NULL,
    subscription_id INTEGER NOT NULL,
    namespace    TEXT NOT NULL,
    subscription TEXT NOT NULL,
    event_type   TEXT NOT NULL,
    status       TEXT NOT NULL,
    reason       TEXT NOT NULL,
    error        TEXT,
    attempts     INTEGER NOT NULL,
    retry_count  INTEGER NOT NULL,
    max_retries  INTEGER,
    failed_at    INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (event_id, subscription_id)
) WITHOUT ROWID;
CREATE INDEX dead_letters_by_time ON dead_letters (namespace, failed_at, event_id);

CREATE TABLE event_keys (
    namespace  TEXT NOT NULL,
    key        TEXT NOT NULL,
    event_id   INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;

CREATE VIEW event_log AS
SELECT namespace, event_id, subscription, attempt, worker_id, 'PICKED' AS action, NULL AS status_code,
       NULL AS error_message, NULL AS execution_time_ms, picked_at AS created_at, 0 AS step
FROM event_attempts WHERE picked_at IS NOT NULL
UNION ALL
SELECT namespace, event_id, subscription, attempt, worker_id, 'STARTED', NULL, NULL, NULL, started_at, 1
FROM event_attempts WHERE started_at IS NOT NULL
UNION ALL
SELECT namespace, event_id, subscription, attempt, worker_id, action, status_code, error_message,
       execution_time_ms, finished_at, 2
FROM event_attempts
UNION ALL
SELECT namespace, event_id, subscription, attempts, worker_id, 'PICKED', NULL, NULL, NULL, picked_at, 0
FROM event_queue WHERE lease IS NOT NULL
UNION ALL
SELECT namespace, event_id, subscription, attempts, worker_id, 'STARTED', NULL, NULL, NULL, started_at, 1
FROM event_queue WHERE lease IS NOT NULL AND started_at IS NOT NULL;

-- Tokens belong to the whole database, not to a namespace. Only a hash of the secret is stored. An empty array of
-- namespaces means all.
CREATE TABLE api_tokens (
    token_id    TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    secret_hash BLOB NOT NULL,
    scopes      TEXT NOT NULL,
    namespaces  TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER
) WITHOUT ROWID;


CREATE TABLE nodes (
    namespace      TEXT NOT NULL,
    node_id        TEXT NOT NULL,
    display_name   TEXT,
    description    TEXT,
    metadata       TEXT NOT NULL DEFAULT '{}',
    event_types    TEXT NOT NULL DEFAULT '[]',
    registered_at  INTEGER NOT NULL,
    last_heartbeat INTEGER NOT NULL,
    stopped_at     INTEGER,
    PRIMARY KEY (namespace, node_id)
) WITHOUT ROWID;

-- Results of handlers that need not run again, for deliveries in the queue and dead letters.
CREATE TABLE handler_results (
    event_id     INTEGER NOT NULL,
    subscription_id INTEGER NOT NULL,
    namespace    TEXT NOT NULL,
    subscription TEXT NOT NULL,
    handler      TEXT NOT NULL,
    succeeded    INTEGER NOT NULL,
    error        TEXT,
    attempt      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (event_id, subscription_id, handler)
) WITHOUT ROWID;

-- Finds expired keys without reading the others.
CREATE INDEX event_keys_by_end ON event_keys (namespace, expires_at);

-- One row per maintenance task. A worker acquires a task for a limited time; if the worker crashes, another one
-- acquires it.
CREATE TABLE maintenance_tasks (
    namespace   TEXT NOT NULL,
    task        TEXT NOT NULL,
    every_ms    INTEGER NOT NULL,
    next_at     INTEGER NOT NULL,
    held_until  INTEGER,
    worker_id   TEXT NOT NULL,
    runs        INTEGER NOT NULL DEFAULT 0,
    last_run_at INTEGER,
    took_ms     INTEGER,
    done        INTEGER,
    error       TEXT,
    PRIMARY KEY (namespace, task)
) WITHOUT ROWID;

-- next_at is the next due tick; null while the schedule is paused or if there are no more ticks.
CREATE TABLE schedules (
    schedule_id   TEXT PRIMARY KEY,
    namespace     TEXT NOT NULL,
    name          TEXT NOT NULL,
    cron          TEXT NOT NULL,
    timezone      TEXT NOT NULL,
    event_type    TEXT NOT NULL,
    title         TEXT,
    description   TEXT,
    tags          TEXT NOT NULL DEFAULT '',
    payload       TEXT NOT NULL,
    group_id      TEXT,
    priority      INTEGER NOT NULL DEFAULT 0,
    max_retries   INTEGER,
    metadata      TEXT,
    expires_in_ms INTEGER,
    missed        TEXT NOT NULL DEFAULT 'once' CHECK (missed IN ('skip', 'once', 'all')),
    runner        TEXT NOT NULL DEFAULT 'windlass' CHECK (runner = 'windlass'),
    active        INTEGER NOT NULL DEFAULT 1,
    next_at       INTEGER,
    last_at       INTEGER,
    last_event_id INTEGER,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    UNIQUE (namespace, name)
) WITHOUT ROWID;
CREATE INDEX schedules_due ON schedules (namespace, next_at, schedule_id) WHERE next_at IS NOT NULL;

-- The primary key makes each tick happen once, whichever process fires it and whatever the clock does. A tick without
-- an event was skipped, together with `skipped` earlier ones, or could not be published: then there is an error.
CREATE TABLE schedule_fires (
    schedule_id TEXT NOT NULL,
    tick_at     INTEGER NOT NULL,
    manual      INTEGER NOT NULL,
    namespace   TEXT NOT NULL,
    fired_at    INTEGER NOT NULL,
    event_id    INTEGER,
    skipped     INTEGER NOT NULL DEFAULT 0,
    error       TEXT,
    PRIMARY KEY (schedule_id, tick_at, manual)
) WITHOUT ROWID;
CREATE INDEX schedule_fires_by_time ON schedule_fires (namespace, fired_at);

-- The progress of each walk of retention through history: everything up to this position was checked, for this
-- retention duration and under these rules. The rules are a hash of the retention settings of a policy.
CREATE TABLE retention_marks (
    namespace TEXT NOT NULL,
    walk      TEXT NOT NULL,
    keep_ms   INTEGER NOT NULL,
    rules     INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    id        INTEGER NOT NULL,
    subscription_id INTEGER NOT NULL,
    PRIMARY KEY (namespace, walk, keep_ms)
) WITHOUT ROWID;

-- Deliveries that the walks have passed: of purged dead letters, of removed subscriptions, and imported ones. Each is
-- checked when its retention has passed, and whenever the rules have changed.
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

-- Counts for the span_s seconds after a time. depth and oldest_ms are NULL if they were not sampled;
-- wait and run are histograms: JSON arrays of counts.
CREATE TABLE samples (
    namespace  TEXT NOT NULL,
    span_s     INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    event_type TEXT NOT NULL,
    published  INTEGER NOT NULL,
    completed  INTEGER NOT NULL,
    failed     INTEGER NOT NULL,
    retried    INTEGER NOT NULL,
    expired    INTEGER NOT NULL,
    cancelled  INTEGER NOT NULL,
    depth      INTEGER,
    oldest_ms  INTEGER,
    wait       TEXT NOT NULL,
    run        TEXT NOT NULL,
    PRIMARY KEY (namespace, span_s, at, event_type)
) WITHOUT ROWID;

-- The filters of recent claim requests of each process, so that a missing consumer can be reported. filter_id is a hash
-- of the rest of the filter.
CREATE TABLE consumers (
    namespace    TEXT NOT NULL,
    process      TEXT NOT NULL,
    filter_id    INTEGER NOT NULL,
    subscription TEXT NOT NULL,
    types        TEXT NOT NULL,
    except_types TEXT NOT NULL,
    tags         TEXT NOT NULL,
    worker_id    TEXT NOT NULL,
    seen_at      INTEGER NOT NULL,
    PRIMARY KEY (namespace, process, filter_id)
) WITHOUT ROWID;

-- Serves searches of dead letters by event. The last columns let dead letters be counted in the index alone.
CREATE INDEX dead_letters_by_event ON dead_letters (namespace, subscription, event_id, status, failed_at, event_type);
