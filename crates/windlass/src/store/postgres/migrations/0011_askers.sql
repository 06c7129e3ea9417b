-- What each process was lately asked for by those who claim, so that it can be told that nobody asks for an event.
-- filter_id is a hash of the rest of the filter.
CREATE TABLE windlass.askers (
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

-- For those who search dead letters by event, the newest first: the primary key has those of all namespaces.
CREATE INDEX dead_letters_by_event ON windlass.dead_letters (namespace, subscription, event_id);
