-- Statements about pipelines. Every write to the ledger carries the partition's epoch, its fence.

-- name: put_pipeline
INSERT INTO kalla.pipelines (pipeline, tombstones, batch_rows, created_by, changed_by)
VALUES (%(pipeline)s, %(tombstones)s, %(batch_rows)s, %(by)s, %(by)s)
ON CONFLICT (pipeline) DO UPDATE SET tombstones = EXCLUDED.tombstones,
    batch_rows = EXCLUDED.batch_rows, changed_at = kalla.clock(), changed_by = EXCLUDED.changed_by;

-- name: put_kafka
INSERT INTO kalla.kafka_configs (pipeline, config) VALUES (%(pipeline)s, %(config)s)
ON CONFLICT (pipeline) DO UPDATE SET config = EXCLUDED.config;

-- name: put_clickhouse
INSERT INTO kalla.clickhouse_configs (pipeline, config) VALUES (%(pipeline)s, %(config)s)
ON CONFLICT (pipeline) DO UPDATE SET config = EXCLUDED.config;

-- name: put_mapping
-- A version for every change; the same columns again make none.
INSERT INTO kalla.mappings (pipeline, version, columns, created_by)
SELECT %(pipeline)s, coalesce(max(version), 0) + 1, %(columns)s, %(by)s
FROM kalla.mappings WHERE pipeline = %(pipeline)s
HAVING NOT coalesce((SELECT columns = %(columns)s::jsonb FROM kalla.mappings
    WHERE pipeline = %(pipeline)s ORDER BY version DESC LIMIT 1), false);

-- name: put_state
INSERT INTO kalla.pipeline_state (pipeline, replicas) VALUES (%(pipeline)s, %(replicas)s)
ON CONFLICT DO NOTHING;

-- name: pipelines
SELECT pipelines.pipeline, tombstones, batch_rows, created_at, created_by, changed_at, changed_by,
    kafka_configs.config AS kafka, clickhouse_configs.config AS clickhouse,
    mapping.version AS mapping_version, mapping.columns AS mapping,
    desired, replicas, trouble, trouble_at
FROM kalla.pipelines
JOIN kalla.kafka_configs USING (pipeline)
JOIN kalla.clickhouse_configs USING (pipeline)
JOIN kalla.pipeline_state USING (pipeline)
CROSS JOIN LATERAL (SELECT version, columns FROM kalla.mappings
    WHERE mappings.pipeline = pipelines.pipeline ORDER BY version DESC LIMIT 1) AS mapping
WHERE %(pipeline)s::text IS NULL OR pipelines.pipeline = %(pipeline)s
ORDER BY pipelines.pipeline;

-- name: mapping_version
SELECT columns FROM kalla.mappings WHERE pipeline = %(pipeline)s AND version = %(version)s;

-- name: remove
DELETE FROM kalla.pipelines WHERE pipeline = %(pipeline)s RETURNING pipeline;

-- name: set_state
UPDATE kalla.pipeline_state
SET desired = coalesce(%(desired)s, desired), replicas = coalesce(%(replicas)s, replicas)
WHERE pipeline = %(pipeline)s
RETURNING desired, replicas;

-- name: set_trouble
UPDATE kalla.pipeline_state
SET trouble = %(trouble)s, trouble_at = CASE WHEN %(trouble)s::text IS NULL THEN NULL ELSE kalla.clock() END
WHERE pipeline = %(pipeline)s AND trouble IS DISTINCT FROM %(trouble)s
RETURNING pipeline;

-- name: event
INSERT INTO kalla.pipeline_events (pipeline, event, detail)
VALUES (%(pipeline)s, %(event)s, %(detail)s);

-- name: events
SELECT at, event, detail FROM kalla.pipeline_events
WHERE pipeline = %(pipeline)s ORDER BY event_id DESC LIMIT %(limit)s;

-- name: enter
-- A partition nobody has seen before starts at the offset that is the earliest.
INSERT INTO kalla.ledger (pipeline, topic, partition, topic_id, next_offset, first_offset)
VALUES (%(pipeline)s, %(topic)s, %(partition)s, %(topic_id)s, %(earliest)s, %(earliest)s)
ON CONFLICT DO NOTHING;

-- name: take
-- From here on an earlier member's intent and commit change nothing.
UPDATE kalla.ledger SET epoch = epoch + 1
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
RETURNING topic, partition, topic_id, epoch, generation, next_offset, stopped,
    intent_id, intent_end, intent_mapping, intent_table, intent_deadline;

-- name: intend
-- Before anything is inserted: who recovers knows exactly what may be there.
UPDATE kalla.ledger
SET intent_id = nextval('kalla.intents'), intent_end = %(end)s, intent_mapping = %(mapping_version)s,
    intent_table = %(table_uuid)s, intent_deadline = %(deadline)s, intent_at = kalla.clock()
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND epoch = %(epoch)s AND next_offset = %(start)s AND intent_id IS NULL AND stopped IS NULL
RETURNING intent_id;

-- name: extend
-- A recovered intent is tried again: its content is frozen, its deadline is new.
UPDATE kalla.ledger SET intent_deadline = %(deadline)s
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND epoch = %(epoch)s AND next_offset = %(start)s AND intent_id = %(intent_id)s
RETURNING intent_id;

-- name: commit
-- Trap 13: after the insert. The epoch, the offset and the intent all have to be ours.
UPDATE kalla.ledger
SET next_offset = intent_end, intent_id = NULL, intent_end = NULL, intent_mapping = NULL,
    intent_table = NULL, intent_deadline = NULL, intent_at = NULL,
    rows = rows + %(rows)s, dead = dead + %(dead)s, skipped = skipped + %(skipped)s,
    newest_at = greatest(newest_at, to_timestamp(%(newest_ms)s::double precision / 1000)),
    committed_at = kalla.clock()
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND epoch = %(epoch)s AND next_offset = %(start)s AND intent_id = %(intent_id)s
RETURNING next_offset;

-- name: stop_partition
UPDATE kalla.ledger SET stopped = %(stopped)s, reason = %(reason)s
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND epoch = %(epoch)s
RETURNING partition;

-- name: ledger
SELECT topic, partition, topic_id, epoch, generation, first_offset, next_offset, stopped, reason, rows, dead,
    skipped, newest_at, committed_at, intent_id, intent_end, intent_at,
    extract(epoch FROM kalla.clock() - intent_at)::double precision AS intent_seconds
FROM kalla.ledger WHERE pipeline = %(pipeline)s ORDER BY topic, partition;

-- name: seek
-- A new generation: rows of the earlier one stay apart, and no token of theirs is used again. Not
-- while a range is on its way, unless its topic is gone: nobody could say what became of it.
UPDATE kalla.ledger
SET next_offset = %(offset)s, first_offset = %(offset)s, generation = generation + 1,
    epoch = epoch + 1, topic_id = %(topic_id)s, stopped = NULL, reason = NULL,
    intent_id = NULL, intent_end = NULL, intent_mapping = NULL, intent_table = NULL,
    intent_deadline = NULL, intent_at = NULL
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND next_offset = %(from)s AND (intent_id IS NULL OR stopped = 'topic_replaced')
RETURNING generation;

-- name: skip_gap
UPDATE kalla.ledger
SET next_offset = %(offset)s, epoch = epoch + 1, stopped = NULL, reason = NULL,
    intent_id = NULL, intent_end = NULL, intent_mapping = NULL, intent_table = NULL,
    intent_deadline = NULL, intent_at = NULL
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND next_offset = %(from)s AND stopped = 'gap'
RETURNING partition;
