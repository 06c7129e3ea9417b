-- For programs that speak only SQL, with the default limits of limits.rs. The router checks what a trigger cannot: such
-- an event becomes a dead letter.

-- Keys that are in use, each with its first event.
CREATE VIEW known_keys AS
SELECT namespace, key, event_id FROM event_keys
WHERE expires_at > CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000
UNION ALL
SELECT namespace, key, event_id FROM arrivals WHERE key IS NOT NULL;

-- To publish with an INSERT. The view returns no rows. Times are texts that SQLite understands, and delay is in
-- seconds.
CREATE VIEW outbox AS
SELECT NULL AS namespace, NULL AS event_type, NULL AS payload, NULL AS title, NULL AS description, NULL AS tags,
       NULL AS group_id, NULL AS key, NULL AS priority, NULL AS producer, NULL AS run_at, NULL AS delay,
       NULL AS expires_at, NULL AS max_retries, NULL AS metadata
WHERE false;

CREATE TRIGGER outbox_insert INSTEAD OF INSERT ON outbox
BEGIN
    SELECT RAISE(ABORT, 'event_type: must not be empty') WHERE coalesce(NEW.event_type, '') = '';
    SELECT RAISE(ABORT, 'event_type: the limit is 200 bytes') WHERE length(CAST(NEW.event_type AS BLOB)) > 200;
    SELECT RAISE(ABORT, 'event_type: must not contain ''*''') WHERE instr(NEW.event_type, '*') > 0;
    SELECT RAISE(ABORT, 'event_type: must not begin or end with white space') WHERE trim(NEW.event_type) <> NEW.event_type;
    SELECT RAISE(ABORT, 'event_type: must not contain control characters')
    WHERE NEW.event_type GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*';
    SELECT RAISE(ABORT, 'payload: must be valid JSON') WHERE NOT json_valid(coalesce(NEW.payload, 'null'));
    SELECT RAISE(ABORT, 'payload: the limit is 1048576 bytes') WHERE length(CAST(NEW.payload AS BLOB)) > 1048576;
    SELECT RAISE(ABORT, 'title: the limit is 1000 bytes') WHERE length(CAST(NEW.title AS BLOB)) > 1000;
    SELECT RAISE(ABORT, 'description: the limit is 10000 bytes') WHERE length(CAST(NEW.description AS BLOB)) > 10000;
    SELECT RAISE(ABORT, 'tags: the limit is 2000 bytes') WHERE length(CAST(NEW.tags AS BLOB)) > 2000;
    SELECT RAISE(ABORT, 'group_id: must not be empty') WHERE NEW.group_id = '';
    SELECT RAISE(ABORT, 'group_id: the limit is 200 bytes') WHERE length(CAST(NEW.group_id AS BLOB)) > 200;
    SELECT RAISE(ABORT, 'group_id: must not begin or end with white space') WHERE trim(NEW.group_id) <> NEW.group_id;
    SELECT RAISE(ABORT, 'group_id: must not contain control characters')
    WHERE NEW.group_id GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*';
    SELECT RAISE(ABORT, 'key: must not be empty') WHERE NEW.key = '';
    SELECT RAISE(ABORT, 'key: the limit is 200 bytes') WHERE length(CAST(NEW.key AS BLOB)) > 200;
    SELECT RAISE(ABORT, 'key: must not begin or end with white space') WHERE trim(NEW.key) <> NEW.key;
    SELECT RAISE(ABORT, 'key: must not contain control characters')
    WHERE NEW.key GLOB '*[' || char(1) || '-' || char(31) || char(127) || '-' || char(159) || ']*';
    SELECT RAISE(ABORT, 'producer: must not be empty') WHERE NEW.producer = '';
    SELECT RAISE(ABORT, 'producer: the limit is 200 bytes') WHERE length(CAST(NEW.producer AS BLOB)) > 200;
    SELECT RAISE(ABORT, 'priority: must be an integer from -32768 to 32767')
    WHERE NEW.priority IS NOT NULL
      AND (typeof(NEW.priority) <> 'integer' OR NEW.priority NOT BETWEEN -32768 AND 32767);
    SELECT RAISE(ABORT, 'max_retries: must be an integer from 0 to 10000')
    WHERE NEW.max_retries IS NOT NULL
      AND (typeof(NEW.max_retries) <> 'integer' OR NEW.max_retries NOT BETWEEN 0 AND 10000);
    SELECT RAISE(ABORT, 'delay: give either run_at or a delay, not both')
    WHERE NEW.run_at IS NOT NULL AND NEW.delay IS NOT NULL;
    SELECT RAISE(ABORT, 'delay: must be a number of seconds from 0 to 100 years')
    WHERE NEW.delay IS NOT NULL
      AND (typeof(NEW.delay) NOT IN ('integer', 'real') OR NEW.delay NOT BETWEEN 0 AND 3155760000);
    SELECT RAISE(ABORT, 'run_at: must be a time such as 2031-05-06T07:08:09Z, within 100 years from now')
    WHERE NEW.run_at IS NOT NULL
      AND (typeof(NEW.run_at) <> 'text' OR coalesce(abs(julianday(NEW.run_at) - julianday('now')) > 36525, true));
    SELECT RAISE(ABORT, 'expires_at: must be a time such as 2031-05-06T07:08:09Z, within 100 years from now')
    WHERE NEW.expires_at IS NOT NULL
      AND (typeof(NEW.expires_at) <> 'text'
           OR coalesce(abs(julianday(NEW.expires_at) - julianday('now')) > 36525, true));
    SELECT RAISE(ABORT, 'expires_at: must be after run_at: the event could never start')
    WHERE (NEW.run_at IS NOT NULL OR NEW.delay IS NOT NULL)
      AND julianday(coalesce(NEW.run_at, 'now')) + coalesce(NEW.delay, 0) / 86400.0 >= julianday(NEW.expires_at);
    SELECT RAISE(ABORT, 'metadata: must be a JSON object')
    WHERE NEW.metadata IS NOT NULL
      AND CASE WHEN json_valid(NEW.metadata) THEN json_type(NEW.metadata) <> 'object' ELSE true END;
    SELECT RAISE(ABORT, 'metadata: the limit is 16384 bytes') WHERE length(CAST(NEW.metadata AS BLOB)) > 16384;
    SELECT RAISE(ABORT, 'namespace: does not exist; create it first')
    WHERE NOT EXISTS (SELECT 1 FROM namespaces WHERE namespace = coalesce(NEW.namespace, 'default'));
    SELECT RAISE(ABORT, 'key: was used for an event with another type or payload')
    FROM known_keys k JOIN events e ON e.id = k.event_id
    WHERE k.namespace = coalesce(NEW.namespace, 'default') AND k.key = NEW.key
      AND (e.event_type <> NEW.event_type OR json(e.payload) <> json(coalesce(NEW.payload, 'null')));

    INSERT INTO events (namespace, event_type, title, description, tags, payload, group_id, key, priority, producer, run_at,
                        expires_at, metadata, created_at)
    SELECT coalesce(NEW.namespace, 'default'), NEW.event_type, NEW.title, NEW.description, coalesce(NEW.tags, ''),
           coalesce(NEW.payload, 'null'), NEW.group_id, NEW.key, coalesce(NEW.priority, 0), NEW.producer,
           CASE WHEN NEW.run_at IS NOT NULL OR NEW.delay IS NOT NULL
                THEN CAST((julianday(coalesce(NEW.run_at, 'now')) - 2440587.5) * 86400000.0
                          + coalesce(NEW.delay, 0) * 1000 AS INTEGER) * 1000 END,
           CAST((julianday(NEW.expires_at) - 2440587.5) * 86400000.0 AS INTEGER) * 1000, NEW.metadata,
           CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000
    WHERE NOT EXISTS (SELECT 1 FROM known_keys k
                      WHERE k.namespace = coalesce(NEW.namespace, 'default') AND k.key = NEW.key);
    INSERT INTO arrivals (namespace, event_id, max_retries, group_id, key)
    SELECT coalesce(NEW.namespace, 'default'), last_insert_rowid(), NEW.max_retries, NEW.group_id, NEW.key
    WHERE changes() > 0;
END;
