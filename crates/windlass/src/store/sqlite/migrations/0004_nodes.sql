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

-- Which handlers of a delivery need not run again: only of those that are live or dead letters.
CREATE TABLE handler_results (
    event_id     INTEGER NOT NULL,
    lane_id      INTEGER NOT NULL,
    namespace    TEXT NOT NULL,
    subscription TEXT NOT NULL,
    handler      TEXT NOT NULL,
    succeeded    INTEGER NOT NULL,
    error        TEXT,
    attempt      INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (event_id, lane_id, handler)
) WITHOUT ROWID;

-- So that those whose time is over are found without reading the others.
CREATE INDEX event_keys_by_end ON event_keys (namespace, expires_at);
