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

CREATE FUNCTION windlass.touch_node_heartbeat(p_node_id text) RETURNS void LANGUAGE sql AS $$
    UPDATE windlass.nodes SET last_heartbeat = now(), stopped_at = NULL WHERE node_id = p_node_id
$$;

-- Which handlers of a delivery need not run again: only of those that are live or dead letters.
CREATE TABLE windlass.handler_results (
    event_id     bigint NOT NULL,
    lane_id      bigint NOT NULL,
    namespace    text NOT NULL,
    subscription text NOT NULL,
    handler      text NOT NULL,
    succeeded    boolean NOT NULL,
    error        text,
    attempt      integer NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (event_id, lane_id, handler)
);

-- So that those whose time is over are found without reading the others.
CREATE INDEX event_keys_by_end ON windlass.event_keys (namespace, expires_at);
