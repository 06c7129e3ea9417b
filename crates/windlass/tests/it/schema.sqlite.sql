CREATE TABLE api_tokens (
    token_id    TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    secret_hash BLOB NOT NULL,
    scopes      TEXT NOT NULL,
    namespaces  TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER
) WITHOUT ROWID;

CREATE TABLE arrivals (
    namespace   TEXT NOT NULL,
    event_id    INTEGER NOT NULL,
    max_retries INTEGER,
    group_id    TEXT,
    key         TEXT,
    PRIMARY KEY (namespace, event_id)
) WITHOUT ROWID;

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

CREATE TABLE event_keys (
    namespace  TEXT NOT NULL,
    key        TEXT NOT NULL,
    event_id   INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;

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

CREATE TABLE namespaces (
    namespace    TEXT PRIMARY KEY,
    metadata     TEXT NOT NULL DEFAULT '{}',
    policy       TEXT NOT NULL,
    paused       INTEGER NOT NULL DEFAULT 0,
    paused_types TEXT NOT NULL DEFAULT '[]',
    version      INTEGER NOT NULL DEFAULT 1,
    created_at   INTEGER NOT NULL
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

CREATE TABLE retention_leftovers (
    event_id     INTEGER NOT NULL,
    subscription TEXT NOT NULL,
    namespace    TEXT NOT NULL,
    since        INTEGER NOT NULL,
    rules        INTEGER NOT NULL DEFAULT 0,
    look_at      INTEGER NOT NULL,
    PRIMARY KEY (event_id, subscription, namespace)
) WITHOUT ROWID;

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

CREATE TABLE windlass_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    applied_at INTEGER NOT NULL
);

CREATE INDEX arrivals_by_group ON arrivals (namespace, group_id) WHERE group_id IS NOT NULL;

CREATE INDEX arrivals_by_key ON arrivals (namespace, key, event_id) WHERE key IS NOT NULL;

CREATE INDEX dead_letters_by_event ON dead_letters (namespace, subscription, event_id, status, failed_at, event_type);

CREATE INDEX dead_letters_by_time ON dead_letters (namespace, failed_at, event_id);

CREATE INDEX event_attempts_by_event ON event_attempts (event_id);

CREATE INDEX event_keys_by_end ON event_keys (namespace, expires_at);

CREATE INDEX event_queue_deadline ON event_queue (subscription_id, expires_at, event_id, lane_id, ready_at, lease)
    WHERE expires_at IS NOT NULL AND lease IS NULL;

CREATE INDEX event_queue_group
    ON event_queue (group_id, subscription, namespace, ready_at = 9223372036854775807, due_at, event_id)
    WHERE group_id IS NOT NULL;

CREATE INDEX event_queue_lane ON event_queue (lane_id, ready_at, event_id, expires_at, lease) WHERE lease IS NULL;

CREATE INDEX event_queue_lane_deadline ON event_queue (lane_id, expires_at, event_id, ready_at, lease)
    WHERE expires_at IS NOT NULL AND lease IS NULL;

CREATE INDEX event_queue_leased ON event_queue (subscription_id, lease_expires_at, event_id) WHERE lease IS NOT NULL;

CREATE INDEX event_queue_out_of_order
    ON event_queue (subscription_id, priority, ready_at, event_id, lane_id, expires_at, out_of_order, lease)
    WHERE out_of_order AND lease IS NULL;

CREATE INDEX events_by_namespace ON events (namespace, id);

CREATE INDEX lanes_by_namespace ON lanes (namespace, lane_id);

CREATE INDEX retention_leftovers_by_time ON retention_leftovers (namespace, rules, look_at);

CREATE INDEX schedule_fires_by_time ON schedule_fires (namespace, fired_at);

CREATE INDEX schedules_due ON schedules (namespace, next_at, schedule_id) WHERE next_at IS NOT NULL;

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

CREATE VIEW known_keys AS
SELECT namespace, key, event_id FROM event_keys
WHERE expires_at > CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000
UNION ALL
SELECT namespace, key, event_id FROM arrivals WHERE key IS NOT NULL;

CREATE VIEW outbox AS
SELECT NULL AS namespace, NULL AS event_type, NULL AS payload, NULL AS title, NULL AS description, NULL AS tags,
       NULL AS group_id, NULL AS key, NULL AS priority, NULL AS producer, NULL AS run_at, NULL AS delay,
       NULL AS expires_at, NULL AS max_retries, NULL AS metadata
WHERE false;

CREATE TRIGGER outbox_insert INSTEAD OF INSERT ON outbox
BEGIN
    SELECT RAISE(ABORT, 'event_type: must not be empty') WHERE coalesce(NEW.event_type, '') = '';
    SELECT RAISE(ABORT, 'event_type: the limit is 200 bytes') WHERE length(CAST(NEW.event_type AS BLOB)) > 200;
    SELECT RAISE(ABORT, 'event_type: must not contain ''*''') WHERE instr(NEW.event_type, '*') > 0;
    SELECT RAISE(ABORT, 'event_type: must not begin or end with white space') WHERE trim(NEW.event_type) <> NEW.event_type;
    SELECT RAISE(ABORT, 'event_type: must not contain control characters')
    WHERE NEW.event_type GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*';
    SELECT RAISE(ABORT, 'payload: must be valid JSON') WHERE NOT json_valid(coalesce(NEW.payload, 'null'));
    SELECT RAISE(ABORT, 'payload: the limit is 1048576 bytes') WHERE length(CAST(NEW.payload AS BLOB)) > 1048576;
    SELECT RAISE(ABORT, 'title: the limit is 1000 bytes') WHERE length(CAST(NEW.title AS BLOB)) > 1000;
    SELECT RAISE(ABORT, 'description: the limit is 10000 bytes') WHERE length(CAST(NEW.description AS BLOB)) > 10000;
    SELECT RAISE(ABORT, 'tags: the limit is 2000 bytes') WHERE length(CAST(NEW.tags AS BLOB)) > 2000;
    SELECT RAISE(ABORT, 'group_id: must not be empty') WHERE NEW.group_id = '';
    SELECT RAISE(ABORT, 'group_id: the limit is 200 bytes') WHERE length(CAST(NEW.group_id AS BLOB)) > 200;
    SELECT RAISE(ABORT, 'group_id: must not begin or end with white space') WHERE trim(NEW.group_id) <> NEW.group_id;
    SELECT RAISE(ABORT, 'group_id: must not contain control characters')
    WHERE NEW.group_id GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*';
    SELECT RAISE(ABORT, 'key: must not be empty') WHERE NEW.key = '';
    SELECT RAISE(ABORT, 'key: the limit is 200 bytes') WHERE length(CAST(NEW.key AS BLOB)) > 200;
    SELECT RAISE(ABORT, 'key: must not begin or end with white space') WHERE trim(NEW.key) <> NEW.key;
    SELECT RAISE(ABORT, 'key: must not contain control characters')
    WHERE NEW.key GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*';
    SELECT RAISE(ABORT, 'producer: must not be empty') WHERE NEW.producer = '';
    SELECT RAISE(ABORT, 'producer: the limit is 200 bytes') WHERE length(CAST(NEW.producer AS BLOB)) > 200;
    SELECT RAISE(ABORT, 'priority: must be an integer from -32768 to 32767')
    WHERE NEW.priority IS NOT NULL
      AND (typeof(NEW.priority) <> 'integer' OR NEW.priority NOT BETWEEN -32768 AND 32767);
    SELECT RAISE(ABORT, 'max_retries: must be an integer from 0 to 10000')
    WHERE NEW.max_retries IS NOT NULL
      AND (typeof(NEW.max_retries) <> 'integer' OR NEW.max_retries NOT BETWEEN 0 AND 10000);
    SELECT RAISE(ABORT, 'delay: give either run_at or a delay, not both')
    WHERE NEW.run_at IS NOT NULL AND NEW.delay IS NOT NULL;
    SELECT RAISE(ABORT, 'delay: must be a number of seconds from 0 to 100 years')
    WHERE NEW.delay IS NOT NULL
      AND (typeof(NEW.delay) NOT IN ('integer', 'real') OR NEW.delay NOT BETWEEN 0 AND 3155760000);
    SELECT RAISE(ABORT, 'run_at: must be a time such as 2031-05-06T07:08:09Z, within 100 years from now')
    WHERE NEW.run_at IS NOT NULL
      AND (typeof(NEW.run_at) <> 'text' OR coalesce(abs(julianday(NEW.run_at) - julianday('now')) > 36525, true));
    SELECT RAISE(ABORT, 'expires_at: must be a time such as 2031-05-06T07:08:09Z, within 100 years from now')
    WHERE NEW.expires_at IS NOT NULL
      AND (typeof(NEW.expires_at) <> 'text'
           OR coalesce(abs(julianday(NEW.expires_at) - julianday('now')) > 36525, true));
    SELECT RAISE(ABORT, 'expires_at: must be after run_at: the event could never start')
    WHERE (NEW.run_at IS NOT NULL OR NEW.delay IS NOT NULL)
      AND julianday(coalesce(NEW.run_at, 'now')) + coalesce(NEW.delay, 0) / 86400.0 >= julianday(NEW.expires_at);
    SELECT RAISE(ABORT, 'metadata: must be a JSON object')
    WHERE NEW.metadata IS NOT NULL
      AND CASE WHEN json_valid(NEW.metadata) THEN json_type(NEW.metadata) <> 'object' ELSE true END;
    SELECT RAISE(ABORT, 'metadata: the limit is 16384 bytes') WHERE length(CAST(NEW.metadata AS BLOB)) > 16384;
    SELECT RAISE(ABORT, 'namespace: does not exist; create it first')
    WHERE NOT EXISTS (SELECT 1 FROM namespaces WHERE namespace = coalesce(NEW.namespace, 'default'));
    SELECT RAISE(ABORT, 'key: was used for an event with another type or payload')
    FROM known_keys k JOIN events e ON e.id = k.event_id
    WHERE k.namespace = coalesce(NEW.namespace, 'default') AND k.key = NEW.key
      AND (e.event_type <> NEW.event_type OR json(e.payload) <> json(coalesce(NEW.payload, 'null')));

    INSERT INTO events (namespace, event_type, title, description, tags, payload, group_id, key, priority, producer, run_at,
                        expires_at, metadata, created_at)
    SELECT coalesce(NEW.namespace, 'default'), NEW.event_type, NEW.title, NEW.description, coalesce(NEW.tags, ''),
           coalesce(NEW.payload, 'null'), NEW.group_id, NEW.key, coalesce(NEW.priority, 0), NEW.producer,
           CASE WHEN NEW.run_at IS NOT NULL OR NEW.delay IS NOT NULL
                THEN CAST((julianday(coalesce(NEW.run_at, 'now')) - 2440587.5) * 86400000.0
                          + coalesce(NEW.delay, 0) * 1000 AS INTEGER) * 1000 END,
           CAST((julianday(NEW.expires_at) - 2440587.5) * 86400000.0 AS INTEGER) * 1000, NEW.metadata,
           CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000
    WHERE NOT EXISTS (SELECT 1 FROM known_keys k
                      WHERE k.namespace = coalesce(NEW.namespace, 'default') AND k.key = NEW.key);
    INSERT INTO arrivals (namespace, event_id, max_retries, group_id, key)
    SELECT coalesce(NEW.namespace, 'default'), last_insert_rowid(), NEW.max_retries, NEW.group_id, NEW.key
    WHERE changes() > 0;
END;
