-- What happened within so many seconds from an instant on. depth and oldest_ms are NULL where nobody looked,
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

-- What was published in transactions of others and is not in samples yet. Rows are only ever added, so that nobody
-- waits for somebody else's transaction.
CREATE TABLE windlass.uncounted (
    namespace  text NOT NULL,
    id         bigserial,
    event_type text NOT NULL,
    published  bigint NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (namespace, id)
);

CREATE FUNCTION windlass._add_counts(a bigint[], b bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(coalesce(i.a, 0) + coalesce(i.b, 0) ORDER BY i.n), '{}')
    FROM unnest(a, b) WITH ORDINALITY AS i(a, b, n)
$$;
