-- What happened within so many seconds from an instant on. depth and oldest_ms are NULL where nobody looked,
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
