CREATE TABLE windlass.namespaces (
    namespace    text PRIMARY KEY,
    metadata     json NOT NULL DEFAULT '{}',
    policy       json NOT NULL,
    paused       boolean NOT NULL DEFAULT false,
    paused_types text[] NOT NULL DEFAULT '{}',
    version      bigint NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL
);

CREATE TABLE windlass.subscriptions (
    namespace    text NOT NULL,
    subscription text NOT NULL,
    types        text[] NOT NULL DEFAULT '{}',
    tags         text[] NOT NULL DEFAULT '{}',
    policy       json NOT NULL DEFAULT '{}',
    paused       boolean NOT NULL DEFAULT false,
    starts_at    timestamptz NOT NULL,
    backfill_from bigint,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (namespace, subscription)
);

CREATE TABLE windlass.lanes (
    lane_id      bigserial PRIMARY KEY,
    namespace    text NOT NULL,
    subscription text NOT NULL,
    event_type   text NOT NULL,
    tags         text NOT NULL,
    priority     smallint NOT NULL,
    UNIQUE (namespace, subscription, event_type, tags, priority)
);

-- History is partitioned by month, so that it is dropped and not deleted. The default partitions take
-- what no month was made for: a late clock-jump never loses an event.
CREATE TABLE windlass.events (
    id                bigserial,
    namespace         text NOT NULL,
    event_type        text NOT NULL,
    title             text,
    description       text,
    tags              text NOT NULL,
    payload           json NOT NULL,
    group_id          text,
    key               text,
    priority          smallint NOT NULL,
    producer          text,
    scheduled_task_id uuid,
    run_at            timestamptz,
    expires_at        timestamptz,
    metadata          json,
    created_at        timestamptz NOT NULL,
    PRIMARY KEY (id, created_at)
) PARTITION BY RANGE (created_at);
CREATE INDEX events_by_namespace ON windlass.events (namespace, id);
CREATE TABLE windlass.events_default PARTITION OF windlass.events DEFAULT;

-- A claim changes no indexed column, so it is a HOT update; the fill factor leaves it room.
CREATE TABLE windlass.event_queue (
    event_id         bigint NOT NULL,
    lane_id          bigint NOT NULL,
    namespace        text NOT NULL,
    subscription     text NOT NULL,
    ready_at         timestamptz NOT NULL,
    due_at           timestamptz,
    attempts         integer NOT NULL DEFAULT 0,
    attempts_limit   integer NOT NULL,
    retry_count      integer NOT NULL DEFAULT 0,
    max_retries      integer,
    group_id         text,
    expires_at       timestamptz,
    lease            bigint,
    worker_id        text,
    picked_at        timestamptz,
    started_at       timestamptz,
    lease_expires_at timestamptz,
    updated_at       timestamptz NOT NULL,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (event_id, lane_id)
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
CREATE INDEX event_queue_hot ON windlass.event_queue (lane_id, ready_at, event_id);
CREATE INDEX event_queue_deadline ON windlass.event_queue (lane_id, expires_at, event_id)
    WHERE expires_at IS NOT NULL;
CREATE INDEX event_queue_group ON windlass.event_queue (group_id, subscription, namespace, ready_at, event_id)
    WHERE group_id IS NOT NULL;

-- The id tells the order of entries that share an instant.
CREATE TABLE windlass.event_attempts (
    id                bigserial,
    event_id          bigint NOT NULL,
    lane_id           bigint NOT NULL,
    attempt           integer NOT NULL,
    namespace         text NOT NULL,
    subscription      text NOT NULL,
    lease             bigint,
    worker_id         text,
    picked_at         timestamptz,
    started_at        timestamptz,
    finished_at       timestamptz NOT NULL,
    action            text NOT NULL,
    status_code       integer,
    execution_time_ms bigint,
    error_message     text,
    detail            json,
    next_retry_at     timestamptz,
    retry_count       integer NOT NULL,
    max_retries       integer
) PARTITION BY RANGE (finished_at);
CREATE INDEX event_attempts_by_event ON windlass.event_attempts (event_id);
CREATE INDEX event_attempts_by_time ON windlass.event_attempts USING brin (finished_at);
CREATE TABLE windlass.event_attempts_default PARTITION OF windlass.event_attempts DEFAULT;

CREATE TABLE windlass.event_groups (
    namespace    text NOT NULL,
    subscription text NOT NULL,
    group_id     text NOT NULL,
    depth        bigint NOT NULL,
    PRIMARY KEY (group_id, subscription, namespace)
) WITH (fillfactor = 50);

CREATE TABLE windlass.dead_letters (
    event_id     bigint NOT NULL,
    lane_id      bigint NOT NULL,
    namespace    text NOT NULL,
    subscription text NOT NULL,
    status       text NOT NULL,
    reason       text NOT NULL,
    error        text,
    attempts     integer NOT NULL,
    retry_count  integer NOT NULL,
    max_retries  integer,
    failed_at    timestamptz NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (event_id, lane_id)
);
CREATE INDEX dead_letters_by_time ON windlass.dead_letters (namespace, failed_at, event_id);

CREATE TABLE windlass.event_keys (
    namespace  text NOT NULL,
    key        text NOT NULL,
    event_id   bigint NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (namespace, key)
);

CREATE VIEW windlass.event_log AS
SELECT namespace, event_id, subscription, attempt, worker_id, 'PICKED' AS action, NULL::integer AS status_code,
       NULL::text AS error_message, NULL::bigint AS execution_time_ms, picked_at AS created_at, id AS entry, 0 AS step
FROM windlass.event_attempts WHERE picked_at IS NOT NULL
UNION ALL
SELECT namespace, event_id, subscription, attempt, worker_id, 'STARTED', NULL, NULL, NULL, started_at, id, 1
FROM windlass.event_attempts WHERE started_at IS NOT NULL
UNION ALL
SELECT namespace, event_id, subscription, attempt, worker_id, action, status_code, error_message,
       execution_time_ms, finished_at, id, 2
FROM windlass.event_attempts
UNION ALL
SELECT namespace, event_id, subscription, attempts, worker_id, 'PICKED', NULL, NULL, NULL, picked_at, 9223372036854775807, 0
FROM windlass.event_queue WHERE lease IS NOT NULL
UNION ALL
SELECT namespace, event_id, subscription, attempts, worker_id, 'STARTED', NULL, NULL, NULL, started_at, 9223372036854775807, 1
FROM windlass.event_queue WHERE lease IS NOT NULL AND started_at IS NOT NULL;
