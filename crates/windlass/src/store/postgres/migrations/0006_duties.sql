-- One row for each piece of upkeep that recurs. Whoever takes it holds it for a while; if he dies, others take over.
CREATE TABLE windlass.duties (
    namespace   text NOT NULL,
    duty        text NOT NULL,
    every_ms    bigint NOT NULL,
    next_at     timestamptz NOT NULL,
    held_until  timestamptz,
    worker_id   text NOT NULL,
    runs        bigint NOT NULL DEFAULT 0,
    last_run_at timestamptz,
    took_ms     bigint,
    done        bigint,
    error       text,
    PRIMARY KEY (namespace, duty)
) WITH (fillfactor = 50);
