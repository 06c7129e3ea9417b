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

-- As before, and besides: events that say nothing about it expire as the policy has it, and what is published is noted
-- for the samples.
CREATE OR REPLACE FUNCTION windlass.publish(
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
    since timestamptz := now();
    to_do record;
    lane bigint;
    lanes bigint[] := '{}';
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
        SELECT s.subscription, rules || s.policy::jsonb AS rules FROM windlass.subscriptions s
        WHERE s.namespace = publish.namespace AND (s.tags = '{}' OR s.tags && tag_set)
          AND (s.types = '{}' OR EXISTS (SELECT FROM unnest(s.types) AS t(pattern)
                                         WHERE windlass._type_matches(t.pattern, publish.event_type)))
        -- Everyone locks groups in this order.
        ORDER BY s.subscription COLLATE "C"
    LOOP
        lane := windlass._lane(publish.namespace, to_do.subscription, publish.event_type,
            array_to_string(tag_set, ','), publish.priority);
        lanes := lanes || lane;
        waits := publish.group_id IS NOT NULL
            AND windlass._enter_group(publish.namespace, to_do.subscription, publish.group_id);
        IF waits AND to_do.rules ->> 'group_failure' = 'continue' THEN
            passing := passing || to_do.subscription;
        END IF;
        INSERT INTO windlass.event_queue (event_id, lane_id, namespace, subscription, ready_at, due_at,
            attempts_limit, max_retries, group_id, expires_at, updated_at, created_at)
        VALUES (new_id, lane, publish.namespace, to_do.subscription, CASE WHEN waits THEN 'infinity' ELSE due END,
            CASE WHEN publish.group_id IS NOT NULL THEN due END, (to_do.rules ->> 'max_attempts')::integer,
            coalesce(publish.max_retries, (to_do.rules ->> 'max_retries')::integer), publish.group_id,
            publish.expires_at, now(), now());
    END LOOP;

    FOR freed IN
        SELECT f.* FROM unnest(passing) WITH ORDINALITY AS p(subscription, n),
            LATERAL windlass._pass_group(publish.namespace, p.subscription, publish.group_id) AS f
        WHERE f.freed_lane IS NOT NULL ORDER BY p.n
    LOOP
        since := least(since, freed.freed_at);
        lanes := lanes || freed.freed_lane;
    END LOOP;
    IF lanes <> '{}' THEN
        PERFORM windlass._tell(publish.namespace, since, lanes);
    END IF;
    RETURN new_id;
END $$;
