-- next_at is the next tick that is due; null while it is not active, where pg_cron runs it, or where none comes any more.
CREATE TABLE windlass.schedules (
    schedule_id   uuid PRIMARY KEY,
    namespace     text NOT NULL,
    name          text COLLATE "C" NOT NULL,
    cron          text NOT NULL,
    timezone      text NOT NULL,
    event_type    text NOT NULL,
    title         text,
    description   text,
    tags          text NOT NULL DEFAULT '',
    payload       json NOT NULL,
    group_id      text,
    priority      smallint NOT NULL DEFAULT 0,
    max_retries   integer,
    metadata      json,
    expires_in_ms bigint,
    missed        text NOT NULL DEFAULT 'once' CHECK (missed IN ('skip', 'once', 'all')),
    runner        text NOT NULL DEFAULT 'windlass' CHECK (runner IN ('windlass', 'pg_cron')),
    active        boolean NOT NULL DEFAULT true,
    next_at       timestamptz,
    last_at       timestamptz,
    last_event_id bigint,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    UNIQUE (namespace, name)
) WITH (fillfactor = 70);
CREATE INDEX schedules_due ON windlass.schedules (namespace, next_at, schedule_id) WHERE next_at IS NOT NULL;

-- The key is what makes a tick happen once, whoever fires it and whatever the clock does. Without an event, the tick
-- was passed over, and so many before it; the error says why it could not be published.
CREATE TABLE windlass.schedule_fires (
    schedule_id uuid NOT NULL,
    tick_at     timestamptz NOT NULL,
    manual      boolean NOT NULL,
    namespace   text NOT NULL,
    fired_at    timestamptz NOT NULL,
    event_id    bigint,
    skipped     integer NOT NULL DEFAULT 0,
    error       text,
    PRIMARY KEY (schedule_id, tick_at, manual)
);
CREATE INDEX schedule_fires_by_time ON windlass.schedule_fires (namespace, fired_at);

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
