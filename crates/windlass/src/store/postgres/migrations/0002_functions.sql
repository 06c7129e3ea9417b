CREATE FUNCTION windlass._topology_lock(for_namespace text) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT hashtextextended('windlass.topology ' || for_namespace, 0)
$$;
COMMENT ON FUNCTION windlass._topology_lock IS 'Internal: the key of the advisory lock on a namespace''s subscriptions, lanes and policy.';

CREATE FUNCTION windlass._router_lock(for_namespace text) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT hashtextextended('windlass.router ' || for_namespace, 0)
$$;
COMMENT ON FUNCTION windlass._router_lock IS 'Internal: the key of the advisory lock that the active router of a namespace holds.';

CREATE FUNCTION windlass.touch_node_heartbeat(p_node_id text) RETURNS void LANGUAGE sql AS $$
    UPDATE windlass.nodes SET last_heartbeat = now(), stopped_at = NULL WHERE node_id = p_node_id
$$;

-- For programs that speak only SQL, with the default limits of limits.rs. Functions that begin with an underscore are
-- internal and may change. Most are plpgsql, which caches plans between calls.

-- Every transaction that relies on the subscriptions, lanes or policy of a namespace holds this lock in share mode
-- until it ends; a transaction that changes them holds it exclusively. It is an advisory lock, because sharers of a row
-- lock are stored in pg_multixact, where the cost of many sharers is quadratic.
--
-- The version is read by a separate statement, which sees the commits that this one waited for. The transaction gets
-- its id here because claims rely on this: it must have one before it draws ids of events.
CREATE FUNCTION windlass._hold_topology(for_namespace text, for_version bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    ignored text := pg_current_xact_id()::text;
    found_version bigint;
BEGIN
    ignored := pg_advisory_xact_lock_shared(windlass._topology_lock(for_namespace))::text;
    SELECT n.version INTO found_version FROM windlass.namespaces n WHERE n.namespace = for_namespace;
    RETURN FOUND AND found_version = coalesce(for_version, found_version);
END $$;
COMMENT ON FUNCTION windlass._hold_topology IS
    'Internal: locks a namespace against changes until the transaction ends. Returns whether it exists and, if a version is given, has this version.';

CREATE FUNCTION windlass._refuse(field text, problem text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%: %', field, problem USING ERRCODE = 'invalid_parameter_value', COLUMN = field;
END $$;
COMMENT ON FUNCTION windlass._refuse IS 'Internal: raises the error for an invalid field.';

CREATE FUNCTION windlass._check_size(field text, value text, bytes_max integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bytes integer := octet_length(convert_to(value, 'UTF8'));
BEGIN
    IF bytes > bytes_max THEN
        RAISE EXCEPTION '% is % bytes; the limit is % bytes', field, bytes, bytes_max
            USING ERRCODE = 'invalid_parameter_value', COLUMN = field;
    END IF;
END $$;
COMMENT ON FUNCTION windlass._check_size IS 'Internal: refuses a text that is too long.';

-- Control characters, and then Unicode white space.
CREATE FUNCTION windlass._check_name(field text, name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    space text := '[\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]';
BEGIN
    IF name = '' THEN
        PERFORM windlass._refuse(field, 'must not be empty');
    END IF;
    PERFORM windlass._check_size(field, name, 200);
    IF name ~ '[\u0001-\u001f\u007f-\u009f]' THEN
        PERFORM windlass._refuse(field, 'must not contain control characters');
    END IF;
    IF name ~ ('^' || space || '|' || space || '$') THEN
        PERFORM windlass._refuse(field, 'must not begin or end with white space');
    END IF;
END $$;
COMMENT ON FUNCTION windlass._check_name IS 'Internal: refuses an empty, overlong or unprintable name.';

-- Each round removes the innermost brackets, and so one level.
CREATE FUNCTION windlass._nests_deeper(value text, depth_max integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    brackets text;
BEGIN
    IF length(value) - length(translate(value, '[{', '')) <= depth_max THEN
        RETURN false;
    END IF;
    brackets := regexp_replace(value, '"(?:\\.|[^"\\])*"', '', 'g');
    brackets := regexp_replace(brackets, '[^][{}]', '', 'g');
    FOR level IN 1 .. depth_max LOOP
        EXIT WHEN brackets = '';
        brackets := regexp_replace(brackets, '\[\]|\{\}', '', 'g');
    END LOOP;
    RETURN brackets <> '';
END $$;
COMMENT ON FUNCTION windlass._nests_deeper IS 'Internal: whether JSON is nested deeper than the limit.';

-- Removes escaped backslashes first, then whole pairs: the rest is an unpaired surrogate.
CREATE FUNCTION windlass._has_lone_surrogate(value text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF strpos(value, '\u') = 0 THEN
        RETURN false;
    END IF;
    value := replace(value, '\\', ' ');
    value := regexp_replace(value, '\\u[dD][89abAB][[:xdigit:]]{2}\\u[dD][c-fC-F][[:xdigit:]]{2}', ' ', 'g');
    RETURN value ~ '\\u[dD][89a-fA-F]';
END $$;
COMMENT ON FUNCTION windlass._has_lone_surrogate IS 'Internal: whether JSON has a string that cannot be decoded.';

CREATE FUNCTION windlass._check_json(field text, value text, bytes_max integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM windlass._check_size(field, value, bytes_max);
    IF windlass._nests_deeper(value, 100) THEN
        PERFORM windlass._refuse(field, 'must not nest deeper than 100');
    END IF;
    IF windlass._has_lone_surrogate(value) THEN
        PERFORM windlass._refuse(field, 'has a \u escape that is half of a character: a lone surrogate');
    END IF;
END $$;
COMMENT ON FUNCTION windlass._check_json IS 'Internal: refuses JSON that is too large, too deep or cannot be decoded.';

CREATE FUNCTION windlass._check_metadata(field text, metadata json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM windlass._check_json(field, metadata::text, 16384);
    IF json_typeof(metadata) <> 'object' THEN
        PERFORM windlass._refuse(field, 'must be a JSON object');
    END IF;
END $$;
COMMENT ON FUNCTION windlass._check_metadata IS 'Internal: refuses metadata that is not a JSON object.';

CREATE FUNCTION windlass._check_type(field text, event_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM windlass._check_name(field, coalesce(event_type, ''));
    IF strpos(event_type, '*') > 0 THEN
        PERFORM windlass._refuse(field, 'must not contain ''*''');
    END IF;
END $$;
COMMENT ON FUNCTION windlass._check_type IS 'Internal: refuses an invalid event type.';

-- 878400 hours are about a hundred years, whatever the time zone.
CREATE FUNCTION windlass._check_times(run_at timestamptz, delay interval, expires_at timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    span interval := '878400 hours';
BEGIN
    IF run_at IS NOT NULL AND delay IS NOT NULL THEN
        PERFORM windlass._refuse('delay', 'give either run_at or a delay, not both');
    END IF;
    IF delay < interval '0' THEN
        PERFORM windlass._refuse('delay', 'must not be negative');
    END IF;
    -- Checked first: an interval that is far too long cannot be added.
    IF delay > interval '101 years' THEN
        PERFORM windlass._refuse('delay', 'must be at most 100 years');
    END IF;
    IF now() + delay > now() + span THEN
        PERFORM windlass._refuse('delay', 'must be at most 100 years');
    END IF;
    IF run_at NOT BETWEEN now() - span AND now() + span THEN
        PERFORM windlass._refuse('run_at', 'must be within 100 years from now');
    END IF;
    IF expires_at NOT BETWEEN now() - span AND now() + span THEN
        PERFORM windlass._refuse('expires_at', 'must be within 100 years from now');
    END IF;
    IF coalesce(run_at, now() + delay) >= expires_at THEN
        PERFORM windlass._refuse('expires_at', 'must be after run_at: the event could never start');
    END IF;
END $$;
COMMENT ON FUNCTION windlass._check_times IS 'Internal: refuses contradicting or out-of-range times.';

CREATE FUNCTION windlass._tag_set(tags text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    tag_set text[];
BEGIN
    PERFORM windlass._check_size('tags', tags, 2000);
    IF btrim(tags, E' \t\n\f\r') = '' THEN
        RETURN '{}';
    END IF;
    SELECT array_agg(t.tag ORDER BY t.tag) INTO tag_set
    FROM (SELECT DISTINCT btrim(i.tag, E' \t\n\f\r') COLLATE "C" AS tag
          FROM unnest(string_to_array(tags, ',')) AS i(tag)) AS t;
    IF cardinality(tag_set) > 32 THEN
        PERFORM windlass._refuse('tags', format('has %s tags; the limit is 32', cardinality(tag_set)));
    END IF;
    PERFORM windlass._check_name('tags', i.tag) FROM unnest(tag_set) AS i(tag);
    RETURN tag_set;
END $$;
COMMENT ON FUNCTION windlass._tag_set IS 'Internal: the distinct tags of a comma-separated text, trimmed and in order.';

CREATE FUNCTION windlass._type_matches(pattern text, event_type text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN right(pattern, 1) = '*' THEN starts_with(event_type, left(pattern, -1))
           ELSE pattern = event_type END
$$;
COMMENT ON FUNCTION windlass._type_matches IS 'Internal: by exact name, or by prefix ending in *.';

CREATE FUNCTION windlass._lease_us(event_type text, default_us bigint, patterns text[], durations_us bigint[])
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce((
        SELECT i.us FROM unnest(patterns, durations_us) AS i(pattern, us)
        WHERE windlass._type_matches(i.pattern, event_type)
        ORDER BY octet_length(i.pattern) DESC LIMIT 1), default_us)
$$;
COMMENT ON FUNCTION windlass._lease_us IS 'Internal: the lease duration of the longest matching pattern, or the default.';

-- The tables are empty at one moment and huge at the next, so plans must not depend on statistics.
CREATE FUNCTION windlass._known_key(
    for_namespace text, for_key text, at timestamptz, OUT event_id bigint, OUT created_at timestamptz
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    SELECT k.event_id, k.created_at INTO event_id, created_at FROM windlass.event_keys k
    WHERE k.namespace = for_namespace AND k.key = for_key AND k.expires_at > at;
    IF NOT FOUND THEN
        SELECT a.event_id, a.created_at INTO event_id, created_at FROM windlass.arrivals a
        WHERE (a.namespace = for_namespace) IS TRUE AND a.key = for_key ORDER BY a.key, a.event_id LIMIT 1;
    END IF;
END $$;
COMMENT ON FUNCTION windlass._known_key IS 'Internal: the first event with a key, as far as this transaction sees it.';

-- Whether an event that was published before has this type and payload. Contents that its policy did not keep count as
-- equal.
CREATE FUNCTION windlass._has_content(
    for_namespace text, event_id bigint, published_at timestamptz, event_type text, payload text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    first record;
BEGIN
    SELECT e.event_type, e.payload::text AS payload INTO first FROM windlass.events e
    WHERE e.namespace = for_namespace AND e.id = event_id AND e.created_at = published_at;
    RETURN NOT FOUND OR (first.event_type = event_type AND (first.payload = payload OR (
        strpos(first.payload || payload, '\u0000') = 0 AND first.payload::jsonb = payload::jsonb)));
END $$;
COMMENT ON FUNCTION windlass._has_content IS 'Internal: whether a published event has this type and payload.';

-- A notification wakes an idle router. It costs the publishing transaction a lock at commit that serializes all
-- notifying transactions. So it is omitted while no router listens, or while one polls. A transaction that is not READ
-- COMMITTED may see an old state of the routers, and always notifies.
CREATE FUNCTION windlass._notifies(router_is_idle boolean) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT CASE current_setting('windlass.notify', true) WHEN 'on' THEN true WHEN 'off' THEN false
        ELSE router_is_idle IS TRUE OR current_setting('transaction_isolation') <> 'read committed' END
$$;
COMMENT ON FUNCTION windlass._notifies IS
    'Internal: whether a transaction that publishes notifies the routers. The setting windlass.notify (on, off) forces it.';

CREATE FUNCTION windlass._notify_router(for_namespace text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF windlass._notifies((SELECT max(r.listens_until) > clock_timestamp() AND max(r.active_until) <= clock_timestamp()
                           FROM windlass.routers r WHERE r.namespace = for_namespace)) THEN
        PERFORM pg_notify('windlass', '0 ' || for_namespace || ' +');
    END IF;
END $$;
COMMENT ON FUNCTION windlass._notify_router IS 'Internal: notifies idle routers after the commit, unless another one is active.';

CREATE FUNCTION windlass._check_event(
    event_type text, payload json, title text, description text, tags text, group_id text, key text, priority integer,
    producer text, run_at timestamptz, delay interval, expires_at timestamptz, max_retries integer, metadata json
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM windlass._check_type('event_type', event_type);
    PERFORM windlass._check_json('payload', payload::text, 1048576);
    PERFORM windlass._check_size('title', title, 1000);
    PERFORM windlass._check_size('description', description, 10000);
    PERFORM windlass._tag_set(tags);
    PERFORM windlass._check_name('group_id', group_id);
    PERFORM windlass._check_name('key', key);
    PERFORM windlass._check_name('producer', producer);
    IF metadata IS NOT NULL THEN
        PERFORM windlass._check_metadata('metadata', metadata);
    END IF;
    IF priority NOT BETWEEN -32768 AND 32767 THEN
        PERFORM windlass._refuse('priority', 'must be from -32768 to 32767');
    END IF;
    IF max_retries NOT BETWEEN 0 AND 10000 THEN
        PERFORM windlass._refuse('max_retries', 'must be from 0 to 10000');
    END IF;
    PERFORM windlass._check_times(run_at, delay, expires_at);
END $$;
COMMENT ON FUNCTION windlass._check_event IS 'Internal: refuses an event with an invalid field.';

-- Stores an event and its arrival, and nothing else, so that no transaction waits for another one.
--
-- plpgsql prepares each expression again in every transaction, so there are as few as possible: usual values pass one
-- test, and only others are passed to _check_event. The test also gives the transaction its id, before the state of the
-- routers is read: a router that becomes idle continues to poll for arrivals until this transaction has ended.
CREATE FUNCTION windlass._arrive(
    namespace text, event_type text, payload json, title text, description text, tags text, group_id text, key text,
    priority integer, producer text, run_at timestamptz, delay interval, expires_at timestamptz, max_retries integer,
    metadata json, scheduled_task_id uuid
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    published_at timestamptz;
    router_is_idle boolean;
    new_id bigint;
    first record;
BEGIN
    IF (pg_current_xact_id() IS NOT NULL AND namespace <> ''
        AND ltrim(concat(event_type, tags, group_id, key, producer),
                  'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/-') = ''
        AND octet_length(concat(event_type, tags, group_id, key, producer)) <= 200
        AND '' NOT IN (event_type, coalesce(group_id, '-'), coalesce(key, '-'), coalesce(producer, '-'))
        AND octet_length(payload::text) <= 200 AND strpos(payload::text, '\u') = 0 AND tags IS NOT NULL AND priority = 0
        AND octet_length(concat(title, description)) <= 1000 AND coalesce(run_at, expires_at) IS NULL AND delay IS NULL
        AND max_retries IS NULL AND metadata IS NULL) IS NOT TRUE
    THEN
        namespace := coalesce(namespace, 'default');
        payload := coalesce(payload, 'null');
        tags := coalesce(tags, '');
        priority := coalesce(priority, 0);
        PERFORM windlass._check_event(event_type, payload, title, description, tags, group_id, key, priority, producer, run_at,
            delay, expires_at, max_retries, metadata);
    END IF;
    SELECT clock_timestamp(), nextval('windlass.events_id_seq'),
           max(r.listens_until) > clock_timestamp() AND max(r.active_until) <= clock_timestamp()
    INTO published_at, new_id, router_is_idle
    FROM windlass.routers r WHERE r.namespace = namespace;
    -- If a router exists, the namespace exists.
    IF router_is_idle IS NULL THEN
        PERFORM FROM windlass.namespaces n WHERE n.namespace = namespace;
        IF NOT FOUND THEN
            PERFORM windlass._refuse('namespace', format('%L does not exist; create it first', namespace));
        END IF;
    END IF;

    IF key IS NOT NULL THEN
        SELECT k.event_id, k.created_at INTO first FROM windlass._known_key(namespace, key, published_at) AS k;
        IF first.event_id IS NOT NULL THEN
            IF NOT windlass._has_content(namespace, first.event_id, first.created_at, event_type, payload::text) THEN
                RAISE EXCEPTION 'key: %', format('%L was used for event %s, which has another type or payload', key, first.event_id)
                    USING ERRCODE = 'unique_violation', COLUMN = 'key';
            END IF;
            RETURN first.event_id;
        END IF;
    END IF;

    INSERT INTO windlass.arrivals (namespace, event_id, created_at, max_retries, group_id, key)
    VALUES (namespace, new_id, published_at, max_retries, group_id, key);
    INSERT INTO windlass.events (id, namespace, event_type, title, description, tags, payload, group_id, key, priority,
        producer, scheduled_task_id, run_at, expires_at, metadata, created_at)
    VALUES (new_id, namespace, event_type, title, description, tags, payload, group_id, key, priority,
        producer, scheduled_task_id, coalesce(run_at, published_at + delay), expires_at, metadata, published_at);
    IF windlass._notifies(router_is_idle) THEN
        PERFORM pg_notify('windlass', '0 ' || namespace || ' +');
    END IF;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION windlass._arrive IS 'Internal: checks and stores an event, for the router to deliver after the commit.';

-- Completes a delivery in a handler's transaction, without a lock on its group. The COMMIT is sent with this call, so a
-- lost lease must raise an error. If the handler has ended its transaction, the setting of it is gone.
CREATE FUNCTION windlass._complete_in_tx(
    for_namespace text, for_subscription bigint, for_event bigint, for_lease bigint, at timestamptz, execution_ms bigint,
    OUT done_at_us bigint, OUT attempt integer, OUT worker_id text, OUT retry_count integer, OUT max_retries integer
) LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    q record;
BEGIN
    IF current_setting('windlass.handler', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION 'the handler ended its transaction' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    DELETE FROM windlass.event_queue d
    WHERE d.subscription_id = for_subscription AND d.event_id = for_event AND d.lease = for_lease
      AND (d.namespace = for_namespace) IS TRUE
    RETURNING d.event_type, d.subscription, d.group_id, d.attempts, d.worker_id, d.picked_at, d.started_at, d.retry_count,
        d.max_retries, coalesce(at, clock_timestamp()) AS done_at INTO q;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lease was lost' USING ERRCODE = 'WL409';
    END IF;
    INSERT INTO windlass.event_attempts (event_id, subscription_id, event_type, attempt, namespace, subscription, lease,
        worker_id, picked_at, started_at, finished_at, action, execution_time_ms, retry_count, max_retries)
    VALUES (for_event, for_subscription, q.event_type, q.attempts, for_namespace, q.subscription, for_lease, q.worker_id,
        q.picked_at, q.started_at, q.done_at, 'COMPLETED', execution_ms, q.retry_count, q.max_retries)
    RETURNING (extract(epoch FROM finished_at) * 1000000)::bigint, attempt, worker_id, retry_count, max_retries
    INTO done_at_us, attempt, worker_id, retry_count, max_retries;
    IF q.group_id IS NOT NULL THEN
        INSERT INTO windlass.departures (namespace, subscription, group_id, lease)
        VALUES (for_namespace, q.subscription, q.group_id, for_lease);
    END IF;
END $$;
COMMENT ON FUNCTION windlass._complete_in_tx IS 'Internal: completes a delivery in a handler''s transaction.';

CREATE FUNCTION windlass.publish(
    event_type text,
    payload json DEFAULT 'null',
    namespace text DEFAULT 'default',
    title text DEFAULT NULL,
    description text DEFAULT NULL,
    tags text DEFAULT '',
    group_id text DEFAULT NULL,
    key text DEFAULT NULL,
    priority integer DEFAULT 0,
    producer text DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    max_retries integer DEFAULT NULL,
    metadata json DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on AS $$
BEGIN
    RETURN windlass._arrive(namespace, event_type, payload, title, description, tags, group_id, key, priority, producer,
        run_at, delay, expires_at, max_retries, metadata, NULL);
END $$;
REVOKE EXECUTE ON FUNCTION windlass.publish FROM PUBLIC;
COMMENT ON FUNCTION windlass.publish IS
    'Publishes an event in the current transaction and returns its id. For a known key, returns the id of the first event.';

-- To publish with an INSERT. The view returns no rows, so granting SELECT on it reveals nothing.
CREATE VIEW windlass.outbox AS
SELECT NULL::text AS namespace, NULL::text AS event_type, NULL::json AS payload, NULL::text AS title,
       NULL::text AS description, NULL::text AS tags, NULL::text AS group_id, NULL::text AS key, NULL::integer AS priority,
       NULL::text AS producer, NULL::timestamptz AS run_at, NULL::interval AS delay, NULL::timestamptz AS expires_at,
       NULL::integer AS max_retries, NULL::json AS metadata, NULL::bigint AS id
WHERE false;
COMMENT ON VIEW windlass.outbox IS 'INSERT publishes an event in the current transaction. RETURNING id returns its id.';

CREATE FUNCTION windlass._insert_into_outbox() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
BEGIN
    NEW.id := windlass._arrive(NEW.namespace, NEW.event_type, NEW.payload, NEW.title, NEW.description, NEW.tags,
        NEW.group_id, NEW.key, NEW.priority, NEW.producer, NEW.run_at, NEW.delay, NEW.expires_at, NEW.max_retries,
        NEW.metadata, NULL);
    RETURN NEW;
END $$;
-- Without this, every role with usage on the schema could attach the function to a table of its own, and so publish.
REVOKE EXECUTE ON FUNCTION windlass._insert_into_outbox FROM PUBLIC;
COMMENT ON FUNCTION windlass._insert_into_outbox IS 'Internal: publishes a row of windlass.outbox.';

CREATE TRIGGER outbox_insert INSTEAD OF INSERT ON windlass.outbox
FOR EACH ROW EXECUTE FUNCTION windlass._insert_into_outbox();

CREATE FUNCTION windlass.append_event_log(
    p_namespace text,
    p_event_type text,
    p_payload jsonb,
    p_producer_node_id text,
    p_scheduled_task_id uuid DEFAULT NULL,
    p_metadata jsonb DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on AS $$
DECLARE
    new_id bigint := nextval('windlass.events_id_seq');
BEGIN
    PERFORM windlass._check_type('p_event_type', p_event_type);
    PERFORM windlass._check_json('p_payload', p_payload::text, 1048576);
    PERFORM windlass._check_name('p_producer_node_id', p_producer_node_id);
    PERFORM windlass._check_metadata('p_metadata', p_metadata::json);
    PERFORM FROM windlass.namespaces n WHERE n.namespace = p_namespace;
    IF NOT FOUND THEN
        PERFORM windlass._refuse('p_namespace', format('%L does not exist; create it first', p_namespace));
    END IF;
    INSERT INTO windlass.events (id, namespace, event_type, tags, payload, priority, producer, scheduled_task_id,
        metadata, created_at)
    VALUES (new_id, p_namespace, p_event_type, '', coalesce(p_payload, 'null')::json, 0, p_producer_node_id,
        p_scheduled_task_id, p_metadata::json, now());
    RETURN new_id;
END $$;
REVOKE EXECUTE ON FUNCTION windlass.append_event_log FROM PUBLIC;
COMMENT ON FUNCTION windlass.append_event_log IS
    'Stores an event in the history without a delivery and returns its id.';

CREATE FUNCTION windlass.queue_name_for_namespace(p_namespace text) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT 'core_events_' || replace(p_namespace, '-', '_')
$$;
COMMENT ON FUNCTION windlass.queue_name_for_namespace IS 'The external name of a namespace''s queue.';

CREATE FUNCTION windlass.dead_letter_queue_name_for_namespace(p_namespace text)
RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT windlass.queue_name_for_namespace(p_namespace) || '_dlq'
$$;
COMMENT ON FUNCTION windlass.dead_letter_queue_name_for_namespace IS
    'The external name of a namespace''s dead-letter queue.';

-- Formats a timestamp like the library. The time zone is set instead of passed to AT TIME ZONE, which takes names like
-- CET for offsets. The setting ends with the function, because the function declares it.
CREATE FUNCTION windlass._instant(instant timestamptz, zone text) RETURNS text
LANGUAGE plpgsql SET timezone = 'UTC' AS $$
BEGIN
    PERFORM set_config('TimeZone', zone, true);
    RETURN to_char(instant, 'YYYY-MM-DD"T"HH24:MI:SSTZH:TZM');
END $$;
COMMENT ON FUNCTION windlass._instant IS 'Internal: a timestamp in RFC 3339 with the offset of a time zone.';

CREATE FUNCTION windlass._utc(instant timestamptz) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN replace(windlass._instant(instant, 'UTC'), '+00:00', 'Z');
END $$;
COMMENT ON FUNCTION windlass._utc IS 'Internal: a timestamp in RFC 3339 in UTC.';

CREATE FUNCTION windlass._fill(template text, name text, value text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN regexp_replace(template, '\{\{ *' || replace(name, '.', '\.') || ' *\}\}', replace(value, '\', '\\'), 'g');
END $$;
COMMENT ON FUNCTION windlass._fill IS 'Internal: replaces a placeholder in double braces by its value.';

-- The schedule's name is inserted last, because it may look like another placeholder.
CREATE FUNCTION windlass._render(template text, schedule windlass.schedules, tick timestamptz, schedule_name text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    local text;
BEGIN
    IF strpos(template, '{{') = 0 THEN
        RETURN template;
    END IF;
    local := windlass._instant(tick, schedule.timezone);
    template := windlass._fill(template, 'tick.utc', windlass._utc(tick));
    template := windlass._fill(template, 'tick.local', local);
    template := windlass._fill(template, 'tick.date', left(local, 10));
    template := windlass._fill(template, 'tick.time', substr(local, 12, 8));
    template := windlass._fill(template, 'tick.unix', floor(extract(epoch FROM tick))::bigint::text);
    template := windlass._fill(template, 'tick.previous', coalesce(windlass._utc(schedule.last_at), ''));
    template := windlass._fill(template, 'tick.next', coalesce(windlass._utc(schedule.next_at), ''));
    template := windlass._fill(template, 'schedule.id', schedule.schedule_id::text);
    RETURN windlass._fill(template, 'schedule.name', schedule_name);
END $$;
COMMENT ON FUNCTION windlass._render IS 'Internal: fills in the placeholders of a schedule''s title or payload.';

-- The lock excludes others who fire the schedule until the commit.
CREATE FUNCTION windlass.run_scheduled_task(p_task_id uuid) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    schedule windlass.schedules;
    by_hand boolean;
    tick timestamptz;
    new_id bigint;
    changed_at timestamptz;
BEGIN
    SELECT * INTO schedule FROM windlass.schedules s WHERE s.schedule_id = p_task_id FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM windlass._refuse('p_task_id', format('there is no schedule %L', p_task_id));
    END IF;
    by_hand := schedule.runner <> 'pg_cron';
    tick := CASE WHEN by_hand THEN now() ELSE date_trunc('minute', now()) END;
    IF NOT schedule.active OR EXISTS (
        SELECT FROM windlass.schedule_fires f
        WHERE f.schedule_id = p_task_id AND f.tick_at = tick AND f.manual = by_hand) THEN
        RETURN NULL;
    END IF;

    new_id := windlass._arrive(
        event_type => schedule.event_type,
        payload => windlass._render(schedule.payload::text, schedule, tick,
            substr(to_json(schedule.name)::text, 2, length(to_json(schedule.name)::text) - 2))::json,
        namespace => schedule.namespace,
        title => windlass._render(schedule.title, schedule, tick, schedule.name),
        description => schedule.description,
        tags => schedule.tags,
        group_id => schedule.group_id,
        priority => schedule.priority,
        producer => 'scheduler',
        key => NULL,
        run_at => NULL,
        delay => NULL,
        expires_at => now() + schedule.expires_in_ms::double precision * interval '1 millisecond',
        max_retries => schedule.max_retries,
        metadata => schedule.metadata,
        scheduled_task_id => p_task_id);
    INSERT INTO windlass.schedule_fires (schedule_id, tick_at, manual, namespace, fired_at, event_id)
    VALUES (p_task_id, tick, by_hand, schedule.namespace, now(), new_id);
    -- Strictly increases, so that processes which read the schedule before notice the change even if the clock was set
    -- back.
    changed_at := greatest(now(), schedule.updated_at + interval '1 microsecond');
    UPDATE windlass.schedules s SET last_at = greatest(tick, s.last_at),
        last_event_id = CASE WHEN s.last_at > tick THEN s.last_event_id ELSE new_id END, updated_at = changed_at
    WHERE s.schedule_id = p_task_id AND s.namespace = schedule.namespace;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION windlass.run_scheduled_task IS
    'Publishes the event of a schedule and returns its id, or null if the schedule is not active or has already run in this minute (pg_cron) or transaction.';

CREATE FUNCTION windlass._add_counts(a bigint[], b bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(coalesce(i.a, 0) + coalesce(i.b, 0) ORDER BY i.n), '{}')
    FROM unnest(a, b) WITH ORDINALITY AS i(a, b, n)
$$;
