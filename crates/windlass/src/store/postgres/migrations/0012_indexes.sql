-- Every lookup of an event names its namespace, so one index serves them all: that of the namespace by id, which was there
-- beside the primary key. What is published has one entry less to write.
DROP INDEX IF EXISTS windlass.events_by_namespace;
ALTER TABLE windlass.events DROP CONSTRAINT events_pkey, ADD PRIMARY KEY (namespace, id, created_at);

-- The walk through what is left of months that are over goes namespace by namespace, since ids alone are in no index.
INSERT INTO windlass.retention_marks (namespace, walk, keep_ms, rules, at, id, lane_id)
SELECT n.namespace, m.walk, 0, 0, 'epoch', 0, 0
FROM windlass.retention_marks m, windlass.namespaces n WHERE m.namespace = '' AND m.walk = 'strays';
DELETE FROM windlass.retention_marks WHERE namespace = '' AND walk = 'strays';
