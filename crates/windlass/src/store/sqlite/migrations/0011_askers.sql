-- What each process was lately asked for by those who claim, so that it can be told that nobody asks for an event.
-- filter_id is a hash of the rest of the filter.
CREATE TABLE askers (
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

-- For those who search dead letters by event, the newest first: the primary key has those of all namespaces. The last
-- columns, and the lane, let dead letters be counted in the index alone.
CREATE INDEX dead_letters_by_event ON dead_letters (namespace, subscription, event_id, status, failed_at);
