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
    namespace       text NOT NULL,
    subscription    text NOT NULL,
    subscription_id bigserial UNIQUE,
    -- The priorities of its lanes, except 0. Claims read the deliveries of each of them.
    priorities      smallint[] NOT NULL DEFAULT '{}',
    types        text[] NOT NULL DEFAULT '{}',
    tags         text[] NOT NULL DEFAULT '{}',
    policy       json NOT NULL DEFAULT '{}',
    paused       boolean NOT NULL DEFAULT false,
    starts_at    timestamptz NOT NULL,
    backfill_from bigint,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (namespace, subscription)
);

-- Deliveries of one subscription with the same type, tag set and priority. Claims that filter by type or tag read these
-- lanes; maintenance removes empty lanes. Lanes are numbered at commit, one transaction at a time: a process that has
-- listed all lanes up to a number misses none below it.
CREATE TABLE windlass.lanes (
    lane_id         bigserial PRIMARY KEY,
    number          bigint,
    namespace       text NOT NULL,
    subscription_id bigint NOT NULL,
    subscription    text NOT NULL,
    event_type      text NOT NULL,
    tags            text NOT NULL,
    priority        smallint NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    UNIQUE (subscription_id, event_type, tags, priority)
);
CREATE INDEX lanes_by_number ON windlass.lanes (namespace, number);
CREATE SEQUENCE windlass.lanes_number_seq;

CREATE FUNCTION windlass._number_lane() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('windlass.lanes ' || NEW.namespace, 0));
    UPDATE windlass.lanes SET number = nextval('windlass.lanes_number_seq') WHERE lane_id = NEW.lane_id;
    UPDATE windlass.subscriptions s SET priorities = s.priorities || NEW.priority
    WHERE s.subscription_id = NEW.subscription_id AND NEW.priority <> 0 AND NOT s.priorities @> ARRAY[NEW.priority];
    RETURN NULL;
END $$;
-- Without this, every role with usage on the schema could attach the function to a table of its own.
REVOKE EXECUTE ON FUNCTION windlass._number_lane FROM PUBLIC;
COMMENT ON FUNCTION windlass._number_lane IS
    'Internal: numbers lanes in the order of their commits, and adds their priorities to the subscriptions.';

CREATE CONSTRAINT TRIGGER lanes_number AFTER INSERT ON windlass.lanes DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION windlass._number_lane();

-- History is partitioned by month, so that whole months can be dropped. The default partitions store rows of months
-- without a partition: no event is lost if the clock jumps ahead.
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
    PRIMARY KEY (namespace, id, created_at)
) PARTITION BY RANGE (created_at);
CREATE TABLE windlass.events_default PARTITION OF windlass.events DEFAULT;

-- Arrivals: events that were published in transactions of the application and have no deliveries yet. After their
-- commit a router turns them into deliveries and deletes the rows here.
CREATE TABLE windlass.arrivals (
    namespace   text NOT NULL,
    event_id    bigint NOT NULL,
    created_at  timestamptz NOT NULL,
    max_retries integer,
    group_id    text,
    key         text,
    PRIMARY KEY (namespace, event_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_threshold = 100000);
-- Without the namespace, and statements compare the namespace `IS TRUE`: a plain condition on it would let the planner
-- scan all arrivals by the primary key.
CREATE INDEX arrivals_by_group ON windlass.arrivals (group_id) WHERE group_id IS NOT NULL;
CREATE INDEX arrivals_by_key ON windlass.arrivals (key, event_id) WHERE key IS NOT NULL;

-- Departures: deliveries of groups that were completed in transactions of the application, which do not lock the group.
-- After their commit they are subtracted from the group, and its next delivery becomes ready.
CREATE TABLE windlass.departures (
    namespace    text NOT NULL,
    subscription text NOT NULL,
    group_id     text NOT NULL,
    lease        bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_threshold = 100000);
CREATE INDEX departures_by_group ON windlass.departures (namespace, group_id, subscription);

-- The routers of each namespace. Publishers notify them until listens_until, unless a router is active: an active
-- router polls for arrivals until active_until.
CREATE TABLE windlass.routers (
    namespace     text NOT NULL,
    router        text NOT NULL,
    listens_until timestamptz NOT NULL,
    active_until  timestamptz NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (namespace, router)
) WITH (fillfactor = 50);

-- A claim changes no indexed column, so it is a HOT update; the fill factor leaves room for it. The columns that a
-- claim changes come last, so that the WAL of a claim contains little more than them.
--
-- The primary key is also the order of publishing within a subscription. out_of_order marks the rows that must be
-- claimed by (priority, ready_at) instead: those with another priority than 0, and those that were delayed, retried,
-- released or made ready by their group.
CREATE TABLE windlass.event_queue (
    subscription_id  bigint NOT NULL,
    event_id         bigint NOT NULL,
    lane_id          bigint NOT NULL,
    ready_at         timestamptz NOT NULL,
    created_at       timestamptz NOT NULL,
    attempts_limit   integer NOT NULL,
    retry_count      integer NOT NULL DEFAULT 0,
    priority         smallint NOT NULL,
    out_of_order     boolean NOT NULL,
    namespace        text NOT NULL,
    subscription     text NOT NULL,
    event_type       text NOT NULL,
    group_id         text,
    max_retries      integer,
    due_at           timestamptz,
    expires_at       timestamptz,
    attempts         integer NOT NULL DEFAULT 0,
    updated_at       timestamptz NOT NULL,
    lease            bigint,
    picked_at        timestamptz,
    started_at       timestamptz,
    lease_expires_at timestamptz,
    worker_id        text,
    PRIMARY KEY (subscription_id, event_id)
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
CREATE INDEX event_queue_lane ON windlass.event_queue (lane_id, ready_at, event_id);
CREATE INDEX event_queue_out_of_order ON windlass.event_queue (subscription_id, priority, ready_at, event_id)
    WHERE out_of_order;
-- ready_at keeps claims from visiting rows that are delayed or wait for their group.
CREATE INDEX event_queue_deadline ON windlass.event_queue (subscription_id, expires_at, event_id, ready_at)
    WHERE expires_at IS NOT NULL;
CREATE INDEX event_queue_lane_deadline ON windlass.event_queue (lane_id, expires_at, event_id, ready_at)
    WHERE expires_at IS NOT NULL;
-- isfinite(ready_at) distinguishes the delivery of a group that may be claimed or is in progress from the waiting ones.
CREATE INDEX event_queue_group ON windlass.event_queue
    (group_id, subscription, namespace, isfinite(ready_at), due_at, event_id) WHERE group_id IS NOT NULL;

-- The deliveries that a claim leased, so that expired leases and stuck deliveries are found by an index. An index on
-- the lease columns of event_queue would do the same but would make every claim write all indexes of its row. A row
-- covers the deliveries with this lease in this range of events; a claim of scattered events has several rows. check_at
-- is when the lease expires unless it is renewed; maintenance then checks the deliveries.
CREATE TABLE windlass.leases (
    subscription_id bigint NOT NULL,
    check_at        timestamptz NOT NULL,
    claimed_at      timestamptz NOT NULL,
    lease           bigint NOT NULL,
    namespace       text NOT NULL,
    first_id        bigint NOT NULL,
    last_id         bigint NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX leases_by_check ON windlass.leases (subscription_id, check_at);
CREATE INDEX leases_by_claim ON windlass.leases (subscription_id, claimed_at);

-- The id orders attempts that ended at the same time.
CREATE TABLE windlass.event_attempts (
    id                bigserial,
    event_id          bigint NOT NULL,
    subscription_id   bigint NOT NULL,
    attempt           integer NOT NULL,
    namespace         text NOT NULL,
    subscription      text NOT NULL,
    event_type        text NOT NULL,
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
CREATE INDEX event_attempts_by_namespace ON windlass.event_attempts (namespace, finished_at);
CREATE TABLE windlass.event_attempts_default PARTITION OF windlass.event_attempts DEFAULT;

-- A row for each group with deliveries in the queue, and the lock on it: every transaction that adds or finishes
-- deliveries of the group locks the row. Claims of a single delivery do not need it.
CREATE TABLE windlass.event_groups (
    namespace     text NOT NULL,
    subscription  text NOT NULL,
    group_id      text NOT NULL,
    -- The number of deliveries.
    depth         bigint NOT NULL,
    -- The latest due time of a delivery that was due when it was added. Later deliveries are not due before it, even if
    -- the clock was set back.
    last_at       timestamptz NOT NULL,
    -- If this is in the future, the first delivery is or was delayed until then, and one that is due earlier overtakes
    -- it.
    delayed_until timestamptz,
    -- The last run: its lease, how many of its deliveries are still in progress, and the latest due time among them.
    run_lease     bigint,
    run_left      integer NOT NULL DEFAULT 0,
    run_to        timestamptz,
    PRIMARY KEY (group_id, subscription, namespace)
) WITH (fillfactor = 50);

CREATE TABLE windlass.dead_letters (
    event_id        bigint NOT NULL,
    subscription_id bigint NOT NULL,
    namespace    text NOT NULL,
    subscription text NOT NULL,
    event_type   text NOT NULL,
    status       text NOT NULL,
    reason       text NOT NULL,
    error        text,
    attempts     integer NOT NULL,
    retry_count  integer NOT NULL,
    max_retries  integer,
    failed_at    timestamptz NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (event_id, subscription_id)
);
CREATE INDEX dead_letters_by_time ON windlass.dead_letters (namespace, failed_at, event_id);
CREATE INDEX dead_letters_by_event ON windlass.dead_letters (namespace, subscription, event_id);

CREATE TABLE windlass.event_keys (
    namespace  text NOT NULL,
    key        text NOT NULL,
    event_id   bigint NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (namespace, key)
);
CREATE INDEX event_keys_by_end ON windlass.event_keys (namespace, expires_at);

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
SELECT s.namespace, q.event_id, s.subscription, q.attempts, q.worker_id, 'PICKED', NULL, NULL, NULL, q.picked_at,
       9223372036854775807, 0
FROM windlass.subscriptions s JOIN windlass.event_queue q USING (subscription_id) WHERE q.lease IS NOT NULL
UNION ALL
SELECT s.namespace, q.event_id, s.subscription, q.attempts, q.worker_id, 'STARTED', NULL, NULL, NULL, q.started_at,
       9223372036854775807, 1
FROM windlass.subscriptions s JOIN windlass.event_queue q USING (subscription_id)
WHERE q.lease IS NOT NULL AND q.started_at IS NOT NULL;

-- Tokens belong to the whole database, not to a namespace. Only a hash of the secret is stored. An empty array of
-- namespaces means all.
CREATE TABLE windlass.api_tokens (
    token_id    text PRIMARY KEY,
    name        text NOT NULL,
    secret_hash bytea NOT NULL,
    scopes      text[] NOT NULL,
    namespaces  text[] NOT NULL,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz
);

CREATE TABLE windlass.nodes (
    namespace      text NOT NULL,
    node_id        text NOT NULL,
    display_name   text,
    description    text,
    metadata       json NOT NULL DEFAULT '{}',
    event_types    text[] NOT NULL DEFAULT '{}',
    registered_at  timestamptz NOT NULL,
    last_heartbeat timestamptz NOT NULL,
    stopped_at     timestamptz,
    PRIMARY KEY (namespace, node_id)
) WITH (fillfactor = 50);

-- Results of handlers that need not run again, for deliveries in the queue and dead letters.
CREATE TABLE windlass.handler_results (
    event_id     bigint NOT NULL,
    subscription_id bigint NOT NULL,
    namespace    text NOT NULL,
    subscription text NOT NULL,
    handler      text NOT NULL,
    succeeded    boolean NOT NULL,
    error        text,
    attempt      integer NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (event_id, subscription_id, handler)
);

-- One row per maintenance task. A worker acquires a task for a limited time; if the worker crashes, another one
-- acquires it.
CREATE TABLE windlass.maintenance_tasks (
    namespace   text NOT NULL,
    task        text NOT NULL,
    every_ms    bigint NOT NULL,
    next_at     timestamptz NOT NULL,
    held_until  timestamptz,
    worker_id   text NOT NULL,
    runs        bigint NOT NULL DEFAULT 0,
    last_run_at timestamptz,
    took_ms     bigint,
    done        bigint,
    error       text,
    PRIMARY KEY (namespace, task)
) WITH (fillfactor = 50);

-- next_at is the next due tick; null while the schedule is paused, if pg_cron runs it, or if there are no more ticks.
CREATE TABLE windlass.schedules (
    schedule_id   uuid PRIMARY KEY,
    namespace     text NOT NULL,
    name          text COLLATE "C" NOT NULL,
    cron          text NOT NULL,
    timezone      text NOT NULL,
    event_type    text NOT NULL,
    title         text,
    description   text,
    tags          text NOT NULL DEFAULT '',
    payload       json NOT NULL,
    group_id      text,
    priority      smallint NOT NULL DEFAULT 0,
    max_retries   integer,
    metadata      json,
    expires_in_ms bigint,
    missed        text NOT NULL DEFAULT 'once' CHECK (missed IN ('skip', 'once', 'all')),
    runner        text NOT NULL DEFAULT 'windlass' CHECK (runner IN ('windlass', 'pg_cron')),
    active        boolean NOT NULL DEFAULT true,
    next_at       timestamptz,
    last_at       timestamptz,
    last_event_id bigint,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    UNIQUE (namespace, name)
) WITH (fillfactor = 70);
CREATE INDEX schedules_due ON windlass.schedules (namespace, next_at, schedule_id) WHERE next_at IS NOT NULL;

-- The primary key makes each tick happen once, whichever process fires it and whatever the clock does. A tick without
-- an event was skipped, together with `skipped` earlier ones, or could not be published: then there is an error.
CREATE TABLE windlass.schedule_fires (
    schedule_id uuid NOT NULL,
    tick_at     timestamptz NOT NULL,
    manual      boolean NOT NULL,
    namespace   text NOT NULL,
    fired_at    timestamptz NOT NULL,
    event_id    bigint,
    skipped     integer NOT NULL DEFAULT 0,
    error       text,
    PRIMARY KEY (schedule_id, tick_at, manual)
);
CREATE INDEX schedule_fires_by_time ON windlass.schedule_fires (namespace, fired_at);

-- The progress of each walk of retention through history: everything up to this position was checked, for this
-- retention duration and under these rules. The rules are a hash of the retention settings of a policy.
CREATE TABLE windlass.retention_marks (
    namespace text NOT NULL,
    walk      text NOT NULL,
    keep_ms   bigint NOT NULL,
    rules     bigint NOT NULL,
    at        timestamptz NOT NULL,
    id        bigint NOT NULL,
    subscription_id bigint NOT NULL,
    PRIMARY KEY (namespace, walk, keep_ms)
);

-- Deliveries that the walks have passed: of purged dead letters, of removed subscriptions, and imported ones. Each is
-- checked when its retention has passed, and whenever the rules have changed.
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

-- Counts for the span_s seconds after a time. depth and oldest_ms are NULL if they were not sampled;
-- wait and run are histograms: counts by bucket.
CREATE TABLE windlass.samples (
    namespace  text NOT NULL,
    span_s     integer NOT NULL,
    at         timestamptz NOT NULL,
    event_type text NOT NULL,
    published  bigint NOT NULL,
    completed  bigint NOT NULL,
    failed     bigint NOT NULL,
    retried    bigint NOT NULL,
    expired    bigint NOT NULL,
    cancelled  bigint NOT NULL,
    depth      bigint,
    oldest_ms  bigint,
    wait       bigint[] NOT NULL,
    run        bigint[] NOT NULL,
    PRIMARY KEY (namespace, span_s, at, event_type)
) WITH (fillfactor = 70);

-- The filters of recent claim requests of each process, so that a missing consumer can be reported. filter_id is a hash
-- of the rest of the filter.
CREATE TABLE windlass.consumers (
    namespace    text NOT NULL,
    process      text NOT NULL,
    filter_id    bigint NOT NULL,
    subscription text NOT NULL,
    types        json NOT NULL,
    except_types json NOT NULL,
    tags         json NOT NULL,
    worker_id    text NOT NULL,
    seen_at      timestamptz NOT NULL,
    PRIMARY KEY (namespace, process, filter_id)
) WITH (fillfactor = 50);
