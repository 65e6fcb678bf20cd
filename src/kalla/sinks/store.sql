-- Statements about pipelines: what is wanted, how messages become rows, what happened.

-- name: put_pipeline
INSERT INTO kalla.pipelines (pipeline, options, guarantee, created_by, changed_by)
VALUES (%(pipeline)s, %(options)s, %(guarantee)s, %(by)s, %(by)s)
ON CONFLICT (pipeline) DO UPDATE SET options = EXCLUDED.options, guarantee = EXCLUDED.guarantee,
    changed_at = kalla.clock(), changed_by = EXCLUDED.changed_by;

-- name: put_kafka
INSERT INTO kalla.kafka_configs (pipeline, config) VALUES (%(pipeline)s, %(config)s)
ON CONFLICT (pipeline) DO UPDATE SET config = EXCLUDED.config;

-- name: put_clickhouse
INSERT INTO kalla.clickhouse_configs (pipeline, config) VALUES (%(pipeline)s, %(config)s)
ON CONFLICT (pipeline) DO UPDATE SET config = EXCLUDED.config;

-- name: put_mapping
-- A version for every change of mapping, filters or tombstones; the same again makes none.
INSERT INTO kalla.mappings (pipeline, version, columns, filters, tombstones, created_by)
SELECT %(pipeline)s, coalesce(max(version), 0) + 1, %(columns)s, %(filters)s, %(tombstones)s, %(by)s
FROM kalla.mappings WHERE pipeline = %(pipeline)s
HAVING NOT coalesce((SELECT (columns, filters, tombstones)
        = (%(columns)s::jsonb, %(filters)s::jsonb, %(tombstones)s)
    FROM kalla.mappings WHERE pipeline = %(pipeline)s ORDER BY version DESC LIMIT 1), false);

-- name: put_state
INSERT INTO kalla.pipeline_state (pipeline, replicas) VALUES (%(pipeline)s, %(replicas)s)
ON CONFLICT DO NOTHING;

-- name: pipelines
SELECT pipelines.pipeline, options, guarantee, created_at, created_by, changed_at, changed_by,
    kafka_configs.config AS kafka, clickhouse_configs.config AS clickhouse,
    mapping.version, mapping.columns, mapping.filters, mapping.tombstones,
    -- Workers of an earlier version write every trouble into pipeline_state, and nobody ends it.
    desired, replicas, poisoned,
    coalesce(CASE WHEN poisoned THEN pipeline_state.trouble END, slot.trouble) AS trouble,
    coalesce(CASE WHEN poisoned THEN trouble_at END, slot.at) AS trouble_at, slot.retry_at
FROM kalla.pipelines
JOIN kalla.kafka_configs USING (pipeline)
JOIN kalla.clickhouse_configs USING (pipeline)
JOIN kalla.pipeline_state USING (pipeline)
CROSS JOIN LATERAL (SELECT version, columns, filters, tombstones FROM kalla.mappings
    WHERE mappings.pipeline = pipelines.pipeline ORDER BY version DESC LIMIT 1) AS mapping
LEFT JOIN LATERAL (SELECT trouble, at, retry_at FROM kalla.slot_troubles
    WHERE slot_troubles.pipeline = pipelines.pipeline
      AND retry_at > kalla.clock() - interval '1 minute'
    ORDER BY at LIMIT 1) AS slot ON NOT poisoned AND desired = 'started'
WHERE %(pipeline)s::text IS NULL OR pipelines.pipeline = %(pipeline)s
ORDER BY pipelines.pipeline;

-- name: all_rules
SELECT version, columns, filters, tombstones FROM kalla.mappings
WHERE pipeline = %(pipeline)s ORDER BY version DESC;

-- name: rules
SELECT version, columns, filters, tombstones FROM kalla.mappings
WHERE pipeline = %(pipeline)s AND version = %(version)s;

-- name: rival
-- Rows name their topic, partition and offset: two pipelines must not write the same ones.
SELECT pipeline FROM kalla.kafka_configs JOIN kalla.clickhouse_configs USING (pipeline)
WHERE pipeline <> %(pipeline)s
  AND coalesce((clickhouse_configs.config ->> 'provenance')::boolean, true)
  AND kafka_configs.config ->> 'topic' = %(topic)s
  AND clickhouse_configs.config ->> 'url' = %(url)s
  AND coalesce(clickhouse_configs.config ->> 'database', 'default') = %(database)s
  AND clickhouse_configs.config ->> 'table' = %(table)s
LIMIT 1;

-- name: keep_generations
-- No later pipeline uses them again: their rows and tokens stay in ClickHouse.
INSERT INTO kalla.former_generations (topic, partition, generation)
SELECT topic, partition, generation FROM kalla.ledger WHERE pipeline = %(pipeline)s
ON CONFLICT (topic, partition) DO UPDATE
SET generation = greatest(former_generations.generation, EXCLUDED.generation);

-- name: remove
DELETE FROM kalla.pipelines WHERE pipeline = %(pipeline)s RETURNING pipeline;

-- name: set_state
UPDATE kalla.pipeline_state
SET desired = coalesce(%(desired)s, desired), replicas = coalesce(%(replicas)s, replicas),
    poisoned = poisoned AND %(desired)s::text IS NULL,
    trouble = CASE WHEN %(desired)s::text IS NULL THEN trouble END,
    trouble_at = CASE WHEN %(desired)s::text IS NULL THEN trouble_at END
WHERE pipeline = %(pipeline)s
RETURNING desired, replicas;

-- name: stop_poisoned
UPDATE kalla.pipeline_state SET desired = 'stopped', poisoned = true, trouble = %(trouble)s,
    trouble_at = kalla.clock()
WHERE pipeline = %(pipeline)s AND desired = 'started'
RETURNING pipeline;

-- name: set_trouble
-- Again with every try: a person may have cleared it by pressing Start. The inner query still
-- reads the row as it was before.
INSERT INTO kalla.slot_troubles (pipeline, instance, trouble, retry_at)
SELECT pipeline, %(instance)s, %(trouble)s,
    kalla.clock() + make_interval(secs => %(retry_seconds)s)
FROM kalla.pipelines WHERE pipelines.pipeline = %(pipeline)s
ON CONFLICT (pipeline, instance) DO UPDATE
SET trouble = EXCLUDED.trouble, retry_at = EXCLUDED.retry_at,
    at = CASE WHEN slot_troubles.trouble = EXCLUDED.trouble THEN slot_troubles.at ELSE EXCLUDED.at END
RETURNING (SELECT before.trouble FROM kalla.slot_troubles AS before
    WHERE before.pipeline = %(pipeline)s AND before.instance = %(instance)s) AS before;

-- name: end_trouble
DELETE FROM kalla.slot_troubles WHERE pipeline = %(pipeline)s AND instance = %(instance)s
RETURNING trouble AS before;

-- name: end_troubles
DELETE FROM kalla.slot_troubles WHERE pipeline = %(pipeline)s;

-- name: forget_troubles
-- Who has one tries again within seconds: this worker is gone, or the slot is.
DELETE FROM kalla.slot_troubles WHERE retry_at < kalla.clock() - interval '1 minute';

-- name: event
INSERT INTO kalla.pipeline_events (pipeline, event, detail)
VALUES (%(pipeline)s, %(event)s, %(detail)s);

-- name: events
SELECT at, event, detail FROM kalla.pipeline_events
WHERE pipeline = %(pipeline)s ORDER BY event_id DESC LIMIT %(limit)s;

-- name: put_audit
INSERT INTO kalla.pipeline_audits (pipeline, result) VALUES (%(pipeline)s, %(result)s)
ON CONFLICT (pipeline) DO UPDATE SET at = kalla.clock(), result = EXCLUDED.result;

-- name: last_audit
SELECT at, result FROM kalla.pipeline_audits WHERE pipeline = %(pipeline)s;

-- name: rates
SELECT partition, at, rows, dead, waiting FROM kalla.pipeline_rates
WHERE pipeline = %(pipeline)s AND at > kalla.clock() - make_interval(mins => 30)
ORDER BY at, partition;

-- name: recent_rates
-- Rows a second of the last half minute; the ten seconds that are not over yet do not count.
SELECT pipeline, (sum(rows) / 30.0)::double precision AS rows_per_second FROM kalla.pipeline_rates
WHERE at >= date_bin('10 seconds', kalla.clock(), 'epoch') - interval '30 seconds'
  AND at < date_bin('10 seconds', kalla.clock(), 'epoch')
GROUP BY pipeline;

-- name: forget_rates
DELETE FROM kalla.pipeline_rates WHERE at < kalla.clock() - interval '1 hour';
