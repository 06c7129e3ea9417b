-- One row for each piece of upkeep that recurs. Whoever takes it holds it for a while; if he dies, others take over.
CREATE TABLE duties (
    namespace   TEXT NOT NULL,
    duty        TEXT NOT NULL,
    every_ms    INTEGER NOT NULL,
    next_at     INTEGER NOT NULL,
    held_until  INTEGER,
    worker_id   TEXT NOT NULL,
    runs        INTEGER NOT NULL DEFAULT 0,
    last_run_at INTEGER,
    took_ms     INTEGER,
    done        INTEGER,
    error       TEXT,
    PRIMARY KEY (namespace, duty)
) WITHOUT ROWID;
