-- next_at is the next tick that is due; null while it is not active, or where none comes any more.
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

-- The key is what makes a tick happen once, whoever fires it and whatever the clock does. Without an event, the tick
-- was passed over, and so many before it; the error says why it could not be published.
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
