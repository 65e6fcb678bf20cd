-- Statements about the metric store: which segments there are, and the metadata of metrics.

-- name: take_turns
-- Numbers are given in the order of commits: a segment with a lower number that appeared later would
-- win over samples that were acknowledged, and compacted, before it.
SELECT pg_advisory_xact_lock(hashtextextended('kalla.segments', 0));

-- name: add
INSERT INTO kalla.segments
    (shard, level, min_time, max_time, path, row_group, row_groups, rows, samples, bytes, checksum)
SELECT shard, level, min_time, max_time, path, row_group, row_groups, rows, samples, bytes, checksum
FROM jsonb_to_recordset(%(segments)s) AS given
    (shard integer, level integer, min_time bigint, max_time bigint, path text, row_group integer,
     row_groups integer, rows bigint, samples bigint, bytes bigint, checksum text)
ORDER BY shard, row_group;

-- name: live
SELECT segment_id, shard, level, min_time, max_time, path, row_group, row_groups, rows, samples, bytes,
       checksum
FROM kalla.segments
WHERE replaced_at IS NULL AND max_time > %(after)s AND min_time <= %(until)s
ORDER BY segment_id;

-- name: snapshot
-- One statement sees one set: a compaction's old segments or its new ones, never both or neither.
-- The count of all of a shard's segments lets explain tell how many were left out.
SELECT shard, count(*) AS listed,
       array_agg(segment_id)
           FILTER (WHERE max_time > %(after)s AND min_time <= %(until)s) AS segment_ids
FROM kalla.segments
WHERE replaced_at IS NULL
GROUP BY shard;

-- name: described
-- Those of a snapshot, also if they were replaced since: only replaced_at of a row ever changes.
SELECT segment_id, shard, level, min_time, max_time, path, row_group, row_groups, rows, samples, bytes,
       checksum
FROM kalla.segments
WHERE segment_id = ANY(%(segment_ids)s);

-- name: following
-- In the order of numbers, so that a reader goes on behind the last it has seen.
SELECT segment_id, shard, level, min_time, max_time, path, row_group, row_groups, rows, samples, bytes,
       checksum
FROM kalla.segments
WHERE replaced_at IS NULL AND segment_id > %(after)s
ORDER BY segment_id
LIMIT %(limit)s;

-- name: count_following
SELECT count(*) AS left FROM kalla.segments WHERE replaced_at IS NULL AND segment_id > %(after)s;

-- name: still_live
SELECT segment_id, shard, level, min_time, max_time, path, row_group, row_groups, rows, samples, bytes,
       checksum
FROM kalla.segments
WHERE segment_id = ANY(%(segment_ids)s) AND replaced_at IS NULL;

-- name: newest
SELECT max(max_time) AS newest FROM kalla.segments WHERE replaced_at IS NULL;

-- name: retire
-- Only what is still live: of two compactions of the same segment the second finds too few.
UPDATE kalla.segments SET replaced_at = kalla.clock()
WHERE segment_id = ANY(%(segment_ids)s) AND replaced_at IS NULL
RETURNING segment_id;

-- name: fix_shards
-- The first who asks decides for all: a series must be in the same shard whoever writes it.
INSERT INTO kalla.metric_store (shards) VALUES (%(shards)s) ON CONFLICT DO NOTHING;

-- name: shards
SELECT shards FROM kalla.metric_store;

-- name: note_metadata
INSERT INTO kalla.metric_metadata (metric, type, help, unit)
SELECT metric, type, help, unit
FROM jsonb_to_recordset(%(metadata)s) AS given (metric text, type text, help text, unit text)
ORDER BY metric
ON CONFLICT (metric) DO UPDATE
SET type = excluded.type, help = excluded.help, unit = excluded.unit, updated_at = kalla.clock()
WHERE (metric_metadata.type, metric_metadata.help, metric_metadata.unit)
      IS DISTINCT FROM (excluded.type, excluded.help, excluded.unit);

-- name: metadata_changed_at
SELECT max(updated_at) AS metadata_changed_at FROM kalla.metric_metadata;

-- name: metadata
SELECT metric, type, help, unit FROM kalla.metric_metadata
WHERE %(metric)s::text IS NULL OR metric = %(metric)s
ORDER BY metric
LIMIT %(limit)s;
