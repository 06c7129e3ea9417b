CREATE FUNCTION windlass.touch_node_heartbeat(p_node_id text) RETURNS void LANGUAGE sql AS $$
    UPDATE windlass.nodes SET last_heartbeat = now(), stopped_at = NULL WHERE node_id = p_node_id
$$;

-- For those who speak only SQL. `publish` does what publish.rs does, with the usual limits of limits.rs. What begins
-- with an underscore is part of it and may change. Nearly all is plpgsql, which keeps its plans from call to call.

CREATE FUNCTION windlass._refuse(field text, problem text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%: %', field, problem USING ERRCODE = 'invalid_parameter_value', COLUMN = field;
END $$;
COMMENT ON FUNCTION windlass._refuse IS 'Internal: says what is wrong with a field.';

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

-- Control characters, and then what Unicode calls white space.
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

-- Each round takes away the innermost brackets, and so one level.
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
COMMENT ON FUNCTION windlass._nests_deeper IS 'Internal: whether JSON nests deeper than that.';

-- Escaped backslashes first, then whole pairs: what is left is half of one.
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
COMMENT ON FUNCTION windlass._check_metadata IS 'Internal: refuses what is not an object.';

CREATE FUNCTION windlass._check_type(field text, event_type text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM windlass._check_name(field, coalesce(event_type, ''));
    IF strpos(event_type, '*') > 0 THEN
        PERFORM windlass._refuse(field, 'must not contain ''*''');
    END IF;
END $$;
COMMENT ON FUNCTION windlass._check_type IS 'Internal: refuses what is no event type.';

-- 878400 hours are a hundred years, whatever the time zone.
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
    -- First by itself: what is far too long cannot be added.
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
COMMENT ON FUNCTION windlass._check_times IS 'Internal: refuses instants that make no sense.';

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

-- What is named in the overrides, be it null, replaces what is in the base.
CREATE FUNCTION windlass._policy_of_type(policy jsonb, event_type text) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    RETURN (policy -> 'base') || coalesce((
        SELECT o.overrides FROM jsonb_each(policy -> 'types') AS o(pattern, overrides)
        WHERE windlass._type_matches(o.pattern, event_type)
        ORDER BY octet_length(o.pattern) DESC, o.pattern COLLATE "C" DESC LIMIT 1), '{}');
END $$;
COMMENT ON FUNCTION windlass._policy_of_type IS 'Internal: the base with the overrides of the longest matching pattern.';

-- The caller has locked the namespace's row, so no lane is removed before it commits.
CREATE FUNCTION windlass._lane(for_namespace text, for_subscription bigint, for_type text, for_tags text,
                               for_priority integer)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    found_id bigint;
BEGIN
    SELECT lane_id INTO found_id FROM windlass.lanes
    WHERE subscription_id = for_subscription AND event_type = for_type AND tags = for_tags
      AND priority = for_priority;
    IF FOUND THEN
        RETURN found_id;
    END IF;
    INSERT INTO windlass.lanes (namespace, subscription_id, subscription, event_type, tags, priority)
    SELECT for_namespace, s.subscription_id, s.subscription, for_type, for_tags, for_priority
    FROM windlass.subscriptions s WHERE s.subscription_id = for_subscription
    ON CONFLICT DO NOTHING;
    SELECT lane_id INTO STRICT found_id FROM windlass.lanes
    WHERE subscription_id = for_subscription AND event_type = for_type AND tags = for_tags
      AND priority = for_priority;
    RETURN found_id;
END $$;
COMMENT ON FUNCTION windlass._lane IS 'Internal: finds or makes a lane.';

CREATE FUNCTION windlass._claim_key(for_namespace text, for_key text, new_id bigint, key_window interval)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    owner bigint;
BEGIN
    INSERT INTO windlass.event_keys AS k (namespace, key, event_id, created_at, expires_at)
    VALUES (for_namespace, for_key, new_id, now(), now() + key_window)
    ON CONFLICT (namespace, key) DO UPDATE SET
        event_id = CASE WHEN k.expires_at <= excluded.created_at THEN excluded.event_id ELSE k.event_id END,
        created_at = CASE WHEN k.expires_at <= excluded.created_at THEN excluded.created_at ELSE k.created_at END,
        expires_at = CASE WHEN k.expires_at <= excluded.created_at THEN excluded.expires_at ELSE k.expires_at END
    RETURNING k.event_id INTO owner;
    RETURN owner;
END $$;
COMMENT ON FUNCTION windlass._claim_key IS 'Internal: the event that a key stands for: the new one, or the first.';

CREATE FUNCTION windlass._enter_group(for_namespace text, for_subscription text, for_group text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    waits boolean;
BEGIN
    INSERT INTO windlass.event_groups AS g (namespace, subscription, group_id, depth)
    VALUES (for_namespace, for_subscription, for_group, 1)
    ON CONFLICT (group_id, subscription, namespace) DO UPDATE SET depth = g.depth + 1
    RETURNING g.depth > 1 INTO waits;
    RETURN waits;
END $$;
COMMENT ON FUNCTION windlass._enter_group IS 'Internal: locks a group and counts a member in; whether it has to wait.';

-- A new member goes before those that wait for a retry. The queue is empty at one moment and huge at the next,
-- so the planner must not go by its statistics.
CREATE FUNCTION windlass._pass_group(for_namespace text, for_subscription text, for_group text,
                                     OUT freed_subscription bigint, OUT freed_lane bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    next record;
BEGIN
    -- Whoever is ready may be claimed at this very moment: locking them waits for that claim.
    PERFORM FROM windlass.event_queue
    WHERE group_id = for_group AND subscription = for_subscription AND namespace = for_namespace
      AND ready_at < 'infinity' FOR UPDATE;
    IF EXISTS (
        SELECT FROM windlass.event_queue
        WHERE group_id = for_group AND subscription = for_subscription AND namespace = for_namespace
          AND ready_at < 'infinity' AND (lease IS NOT NULL OR ready_at <= now())) THEN
        RETURN;
    END IF;
    SELECT event_id, subscription_id, due_at INTO next FROM windlass.event_queue
    WHERE group_id = for_group AND subscription = for_subscription AND namespace = for_namespace
      AND ready_at = 'infinity' AND due_at <= now()
    ORDER BY event_id LIMIT 1;
    IF NOT FOUND THEN
        SELECT event_id, subscription_id, due_at INTO next FROM windlass.event_queue
        WHERE group_id = for_group AND subscription = for_subscription AND namespace = for_namespace
        ORDER BY due_at, event_id LIMIT 1;
    END IF;
    UPDATE windlass.event_queue SET ready_at = 'infinity', out_of_order = true
    WHERE group_id = for_group AND subscription = for_subscription AND namespace = for_namespace
      AND ready_at < 'infinity' AND event_id <> next.event_id;
    UPDATE windlass.event_queue SET ready_at = due_at, out_of_order = true
    WHERE subscription_id = next.subscription_id AND event_id = next.event_id AND ready_at <> due_at
    RETURNING subscription_id, lane_id INTO freed_subscription, freed_lane;
END $$;
COMMENT ON FUNCTION windlass._pass_group IS 'Internal: lets a group go on past those who wait for a retry.';

-- As notify.rs reads it; from nobody, so that every process listens.
CREATE FUNCTION windlass._tell(namespace text, lanes text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('windlass', format('0 %s %s', namespace,
        CASE WHEN cardinality(lanes) <= 100 THEN array_to_string(lanes, ',') ELSE '-' END));
END $$;
COMMENT ON FUNCTION windlass._tell IS 'Internal: wakes those who wait, after the commit.';

-- With the rights of its owner: roles that were given what publishing needs shall not need more from now on. Anybody can
-- call it, so it notes nothing that could not be counted.
CREATE FUNCTION windlass._note_published(
    for_namespace text, for_types text[], for_counts bigint[], published_at timestamptz
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO windlass.uncounted (namespace, event_type, published, created_at)
    SELECT n.namespace, i.event_type, i.published, published_at
    FROM windlass.namespaces n, unnest(for_types, for_counts) AS i(event_type, published)
    WHERE n.namespace = for_namespace AND octet_length(i.event_type) BETWEEN 1 AND 200
      AND i.published BETWEEN 1 AND 1000000000
      AND published_at >= '1970-01-01 00:00:00Z' AND published_at < '9999-12-31 00:00:00Z';
END $$;
COMMENT ON FUNCTION windlass._note_published IS 'Internal: what the samples will count.';

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
) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
#variable_conflict use_column
DECLARE
    tag_set text[];
    rules jsonb;
    new_id bigint;
    first_id bigint;
    begins_at timestamptz;
    due timestamptz;
    to_do record;
    lane bigint;
    lanes text[] := '{}';
    waits boolean;
    passing text[] := '{}';
    freed record;
BEGIN
    publish.payload := coalesce(publish.payload, 'null');
    publish.tags := coalesce(publish.tags, '');
    publish.priority := coalesce(publish.priority, 0);
    PERFORM windlass._check_type('event_type', publish.event_type);
    PERFORM windlass._check_size('title', publish.title, 1000);
    PERFORM windlass._check_size('description', publish.description, 10000);
    tag_set := windlass._tag_set(publish.tags);
    PERFORM windlass._check_json('payload', publish.payload::text, 1048576);
    PERFORM windlass._check_metadata('metadata', publish.metadata);
    PERFORM windlass._check_name('group_id', publish.group_id);
    PERFORM windlass._check_name('key', publish.key);
    PERFORM windlass._check_name('producer', publish.producer);
    IF publish.priority NOT BETWEEN -32768 AND 32767 THEN
        PERFORM windlass._refuse('priority', 'must be from -32768 to 32767');
    END IF;
    IF publish.max_retries NOT BETWEEN 0 AND 10000 THEN
        PERFORM windlass._refuse('max_retries', 'must be from 0 to 10000');
    END IF;
    PERFORM windlass._check_times(publish.run_at, publish.delay, publish.expires_at);
    begins_at := coalesce(publish.run_at, now() + publish.delay);
    due := greatest(now(), begins_at);

    -- The lock keeps policy and subscriptions as they are until the commit, so that a new one misses nothing.
    SELECT n.policy::jsonb INTO rules FROM windlass.namespaces n WHERE n.namespace = publish.namespace FOR SHARE;
    IF NOT FOUND THEN
        PERFORM windlass._refuse('namespace', format('%L does not exist; create it first', publish.namespace));
    END IF;

    new_id := nextval('windlass.events_id_seq');
    IF publish.key IS NOT NULL THEN
        first_id := windlass._claim_key(publish.namespace, publish.key, new_id,
            (rules #>> '{base,key_window_ms}')::double precision * interval '1 millisecond');
        IF first_id <> new_id THEN
            RETURN first_id;
        END IF;
    END IF;

    rules := windlass._policy_of_type(rules, publish.event_type);
    publish.expires_at := coalesce(publish.expires_at,
        due + (rules ->> 'expires_after_ms')::double precision * interval '1 millisecond');

    INSERT INTO windlass.events (id, namespace, event_type, title, description, tags, payload, group_id, key,
        priority, producer, run_at, expires_at, metadata, created_at)
    VALUES (new_id, publish.namespace, publish.event_type, publish.title, publish.description, publish.tags,
        publish.payload, publish.group_id, publish.key, publish.priority, publish.producer, begins_at,
        publish.expires_at, publish.metadata, now());

    PERFORM windlass._note_published(publish.namespace, ARRAY[publish.event_type], ARRAY[1::bigint], now());

    FOR to_do IN
        SELECT s.subscription_id, s.subscription, rules || s.policy::jsonb AS rules FROM windlass.subscriptions s
        WHERE s.namespace = publish.namespace AND (s.tags = '{}' OR s.tags && tag_set)
          AND (s.types = '{}' OR EXISTS (SELECT FROM unnest(s.types) AS t(pattern)
                                         WHERE windlass._type_matches(t.pattern, publish.event_type)))
        -- Everyone locks groups in this order.
        ORDER BY s.subscription COLLATE "C"
    LOOP
        lane := windlass._lane(publish.namespace, to_do.subscription_id, publish.event_type,
            array_to_string(tag_set, ','), publish.priority);
        lanes := lanes || (to_do.subscription_id || ':' || lane);
        waits := publish.group_id IS NOT NULL
            AND windlass._enter_group(publish.namespace, to_do.subscription, publish.group_id);
        IF waits AND to_do.rules ->> 'group_failure' = 'continue' THEN
            passing := passing || to_do.subscription;
        END IF;
        INSERT INTO windlass.event_queue (event_id, subscription_id, lane_id, namespace, subscription, event_type,
            priority, out_of_order, ready_at, due_at, attempts_limit, max_retries, group_id, expires_at, updated_at,
            created_at)
        VALUES (new_id, to_do.subscription_id, lane, publish.namespace, to_do.subscription, publish.event_type,
            publish.priority, publish.priority <> 0 OR waits OR due > now(), CASE WHEN waits THEN 'infinity' ELSE due END,
            CASE WHEN publish.group_id IS NOT NULL THEN due END, (to_do.rules ->> 'max_attempts')::integer,
            coalesce(publish.max_retries, (to_do.rules ->> 'max_retries')::integer), publish.group_id,
            publish.expires_at, now(), now());
    END LOOP;

    FOR freed IN
        SELECT f.* FROM unnest(passing) WITH ORDINALITY AS p(subscription, n),
            LATERAL windlass._pass_group(publish.namespace, p.subscription, publish.group_id) AS f
        WHERE f.freed_lane IS NOT NULL ORDER BY p.n
    LOOP
        lanes := lanes || (freed.freed_subscription || ':' || freed.freed_lane || '!');
    END LOOP;
    IF lanes <> '{}' THEN
        PERFORM windlass._tell(publish.namespace, lanes);
    END IF;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION windlass.publish IS
    'Publishes an event in the present transaction, and returns its id; for a key that is known, the first event''s.';

CREATE FUNCTION windlass.append_event_log(
    p_namespace text,
    p_event_type text,
    p_payload jsonb,
    p_producer_node_id text,
    p_scheduled_task_id uuid DEFAULT NULL,
    p_metadata jsonb DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
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
COMMENT ON FUNCTION windlass.append_event_log IS
    'Stores an event in the history only, for nobody to handle, and returns its id.';

CREATE FUNCTION windlass.queue_name_for_namespace(p_namespace text) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT 'core_events_' || replace(p_namespace, '-', '_')
$$;
COMMENT ON FUNCTION windlass.queue_name_for_namespace IS 'What the queue of a namespace is called elsewhere.';

CREATE FUNCTION windlass.dead_letter_queue_name_for_namespace(p_namespace text)
RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT windlass.queue_name_for_namespace(p_namespace) || '_dlq'
$$;
COMMENT ON FUNCTION windlass.dead_letter_queue_name_for_namespace IS
    'What the dead letters of a namespace are called elsewhere.';

-- As the library writes an instant. The zone is set, and not given to AT TIME ZONE: that takes CET and the like for
-- offsets. What is set here ends with the function, since it has the setting itself.
CREATE FUNCTION windlass._instant(instant timestamptz, zone text) RETURNS text
LANGUAGE plpgsql SET timezone = 'UTC' AS $$
BEGIN
    PERFORM set_config('TimeZone', zone, true);
    RETURN to_char(instant, 'YYYY-MM-DD"T"HH24:MI:SSTZH:TZM');
END $$;
COMMENT ON FUNCTION windlass._instant IS 'Internal: an instant in RFC 3339, with the offset of a time zone.';

CREATE FUNCTION windlass._utc(instant timestamptz) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN replace(windlass._instant(instant, 'UTC'), '+00:00', 'Z');
END $$;
COMMENT ON FUNCTION windlass._utc IS 'Internal: an instant in RFC 3339, in UTC.';

CREATE FUNCTION windlass._fill(template text, name text, value text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN regexp_replace(template, '\{\{ *' || replace(name, '.', '\.') || ' *\}\}', replace(value, '\', '\\'), 'g');
END $$;
COMMENT ON FUNCTION windlass._fill IS 'Internal: puts a value in where its name stands in double braces.';

-- The schedule's name is put in last, since it may look like one of the others.
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
COMMENT ON FUNCTION windlass._render IS 'Internal: puts values into the title or the payload of a schedule.';

-- The lock keeps others who fire it out until the commit, so that what is found here stays so.
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

    new_id := windlass.publish(
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
        expires_at => now() + schedule.expires_in_ms::double precision * interval '1 millisecond',
        max_retries => schedule.max_retries,
        metadata => schedule.metadata);
    UPDATE windlass.events e SET scheduled_task_id = p_task_id
    WHERE e.id = new_id AND e.namespace = schedule.namespace AND e.created_at = now();
    INSERT INTO windlass.schedule_fires (schedule_id, tick_at, manual, namespace, fired_at, event_id)
    VALUES (p_task_id, tick, by_hand, schedule.namespace, now(), new_id);
    -- Whoever read it before notices, even where the clock stood still or went back.
    changed_at := greatest(now(), schedule.updated_at + interval '1 microsecond');
    UPDATE windlass.schedules s SET last_at = greatest(tick, s.last_at),
        last_event_id = CASE WHEN s.last_at > tick THEN s.last_event_id ELSE new_id END, updated_at = changed_at
    WHERE s.schedule_id = p_task_id AND s.namespace = schedule.namespace;
    RETURN new_id;
END $$;
COMMENT ON FUNCTION windlass.run_scheduled_task IS
    'Publishes the event of a schedule, and returns its id; null where it is not active, or was run in this minute.';

CREATE FUNCTION windlass._add_counts(a bigint[], b bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(coalesce(i.a, 0) + coalesce(i.b, 0) ORDER BY i.n), '{}')
    FROM unnest(a, b) WITH ORDINALITY AS i(a, b, n)
$$;
