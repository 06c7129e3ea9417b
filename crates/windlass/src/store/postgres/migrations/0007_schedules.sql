-- next_at is the next tick that is due; null while it is not active, where pg_cron runs it, or where none comes any more.
CREATE TABLE windlass.schedules (
    schedule_id   uuid PRIMARY KEY,
    namespace     text NOT NULL,
    name          text NOT NULL,
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
    missed        text NOT NULL DEFAULT 'once',
    runner        text NOT NULL DEFAULT 'windlass',
    active        boolean NOT NULL DEFAULT true,
    next_at       timestamptz,
    last_at       timestamptz,
    last_event_id bigint,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    UNIQUE (namespace, name)
) WITH (fillfactor = 70);
CREATE INDEX schedules_due ON windlass.schedules (namespace, next_at) WHERE next_at IS NOT NULL;

-- The key is what makes a tick happen once, whoever fires it and whatever the clock does. Without an event, the tick
-- was passed over, and so many before it.
CREATE TABLE windlass.schedule_fires (
    schedule_id uuid NOT NULL,
    tick_at     timestamptz NOT NULL,
    manual      boolean NOT NULL,
    namespace   text NOT NULL,
    fired_at    timestamptz NOT NULL,
    event_id    bigint,
    skipped     integer NOT NULL DEFAULT 0,
    PRIMARY KEY (schedule_id, tick_at, manual)
);
CREATE INDEX schedule_fires_by_time ON windlass.schedule_fires (namespace, fired_at);
