-- Statements about the ledger. Every write carries the partition's epoch, its fence.

-- name: enter
-- A partition nobody has seen before starts at the offset that is the earliest. Its generation is
-- new: rows and tokens of another pipeline, or of a removed one, may be in the same table.
INSERT INTO kalla.ledger
    (pipeline, topic, partition, topic_id, generation, next_offset, first_offset)
SELECT %(pipeline)s, %(topic)s, %(partition)s, %(topic_id)s, coalesce(max(generation) + 1, 0),
    %(earliest)s, %(earliest)s
FROM (
    SELECT generation FROM kalla.former_generations
    WHERE topic = %(topic)s AND partition = %(partition)s
    UNION ALL
    SELECT generation FROM kalla.ledger WHERE topic = %(topic)s AND partition = %(partition)s
) AS used
ON CONFLICT DO NOTHING;

-- name: take
-- From here on an earlier member's intent and commit change nothing.
UPDATE kalla.ledger SET epoch = epoch + 1, slot = %(slot)s, worker = %(worker)s
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
RETURNING topic, partition, topic_id, epoch, generation, next_offset, stopped,
    intent_id, intent_end, intent_part, intent_mapping, intent_table, intent_deadline;

-- name: intend
-- Before anything is inserted: who recovers knows exactly what may be there.
UPDATE kalla.ledger
SET intent_id = nextval('kalla.intents'), intent_end = %(end)s, intent_mapping = %(mapping_version)s,
    intent_table = %(table_uuid)s, intent_deadline = %(deadline)s, intent_at = kalla.clock()
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND epoch = %(epoch)s AND next_offset = %(start)s AND intent_id IS NULL AND stopped IS NULL
RETURNING intent_id;

-- name: extend
-- A recovered intent is tried again: its content is frozen, its deadline is new. It may be cut
-- where no earlier insert can arrive any more; not where it is stopped.
UPDATE kalla.ledger SET intent_deadline = %(deadline)s, intent_part = %(part)s
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND epoch = %(epoch)s AND next_offset = %(start)s AND intent_id = %(intent_id)s
  AND stopped IS NULL
RETURNING intent_id;

-- name: shorten
-- An intent of which nothing was ever inserted, nor can arrive; what is behind it is an ordinary
-- range again.
UPDATE kalla.ledger SET intent_end = %(end)s, intent_deadline = 0
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND epoch = %(epoch)s AND next_offset = %(start)s AND intent_id = %(intent_id)s
  AND intent_end >= %(end)s AND intent_part IS NULL
RETURNING intent_id;

-- name: commit
-- Trap 13: after the insert. The epoch, the offset and the intent all have to be ours.
UPDATE kalla.ledger
SET next_offset = intent_end, intent_id = NULL, intent_end = NULL, intent_part = NULL,
    intent_mapping = NULL, intent_table = NULL, intent_deadline = NULL, intent_at = NULL,
    rows = rows + %(rows)s, dead = dead + %(dead)s, skipped = skipped + %(skipped)s,
    filtered = filtered + %(filtered)s,
    newest_at = greatest(newest_at, to_timestamp(%(newest_ms)s::double precision / 1000)),
    committed_at = kalla.clock()
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND epoch = %(epoch)s AND next_offset = %(start)s AND intent_id = %(intent_id)s
  AND intent_end = %(end)s AND stopped IS NULL
RETURNING next_offset;

-- name: commit_part
-- The intent stays open for the rest, whose next part is twice as long: a passing slowness must not
-- make all later parts short. No insert of it can arrive any more: it was settled before the range
-- was cut. Its number is new, because every part was a block of its own.
UPDATE kalla.ledger
SET next_offset = %(end)s, intent_id = nextval('kalla.intents'),
    intent_part = least(%(end)s + 2 * (%(end)s - next_offset), intent_end), intent_deadline = 0,
    rows = rows + %(rows)s, dead = dead + %(dead)s, skipped = skipped + %(skipped)s,
    filtered = filtered + %(filtered)s,
    newest_at = greatest(newest_at, to_timestamp(%(newest_ms)s::double precision / 1000)),
    committed_at = kalla.clock()
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND epoch = %(epoch)s AND next_offset = %(start)s AND intent_id = %(intent_id)s
  AND intent_part = %(end)s AND intent_end > %(end)s AND stopped IS NULL
RETURNING next_offset, intent_id, intent_part, intent_deadline;

-- name: stop_partition
UPDATE kalla.ledger SET stopped = %(stopped)s, reason = %(reason)s
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND epoch = %(epoch)s AND stopped IS NULL
RETURNING partition;

-- name: ledger
SELECT topic, partition, topic_id, epoch, generation, first_offset, next_offset, stopped, reason,
    rows, dead, skipped, filtered, newest_at, committed_at, intent_id, intent_end, intent_at,
    extract(epoch FROM kalla.clock() - intent_at)::double precision AS intent_seconds,
    slot, worker, log_start, log_end, retention_ms,
    extract(epoch FROM kalla.clock() - newest_at)::double precision AS newest_seconds
FROM kalla.ledger WHERE pipeline = %(pipeline)s ORDER BY topic, partition;

-- name: note_log
-- What Kafka's log looks like, for lag on pages; the fence keeps an earlier member's view out.
UPDATE kalla.ledger SET log_start = %(log_start)s, log_end = %(log_end)s,
    retention_ms = %(retention_ms)s, log_at = kalla.clock()
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND epoch = %(epoch)s;

-- name: add_rate
INSERT INTO kalla.pipeline_rates (pipeline, partition, at, rows, dead, waiting)
VALUES (%(pipeline)s, %(partition)s, date_bin('10 seconds', kalla.clock(), 'epoch'), %(rows)s,
    %(dead)s, %(waiting)s)
ON CONFLICT (pipeline, at, partition) DO UPDATE SET rows = pipeline_rates.rows + EXCLUDED.rows,
    dead = pipeline_rates.dead + EXCLUDED.dead, waiting = EXCLUDED.waiting;

-- name: intents_since
SELECT last_value - %(intent_id)s AS count FROM kalla.intents;

-- name: intent_age
-- How long ago an intent was written, and how many intents and parts were since: no more blocks
-- than that can have pushed out its token.
SELECT last_value - intent_id AS later,
    extract(epoch FROM kalla.clock() - intent_at)::double precision AS seconds
FROM kalla.ledger, kalla.intents
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND intent_id = %(intent_id)s;

-- name: seek
-- A new generation: rows of the earlier one stay apart, and no token of theirs is used again. Not
-- while a range is on its way, unless it is stopped: then no insert of it can arrive any more, or
-- nobody can say what became of it.
UPDATE kalla.ledger
SET next_offset = %(offset)s, first_offset = %(offset)s, generation = generation + 1,
    epoch = epoch + 1, topic_id = %(topic_id)s, stopped = NULL, reason = NULL,
    intent_id = NULL, intent_end = NULL, intent_part = NULL, intent_mapping = NULL,
    intent_table = NULL, intent_deadline = NULL, intent_at = NULL
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND next_offset = %(from)s AND (intent_id IS NULL OR stopped IS NOT NULL)
RETURNING generation;

-- name: skip_gap
UPDATE kalla.ledger
SET next_offset = %(offset)s, epoch = epoch + 1, stopped = NULL, reason = NULL,
    intent_id = NULL, intent_end = NULL, intent_part = NULL, intent_mapping = NULL,
    intent_table = NULL, intent_deadline = NULL, intent_at = NULL
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND next_offset = %(from)s AND stopped = 'gap'
  AND (intent_end IS NULL OR intent_end <= %(offset)s)
RETURNING partition;

-- name: skip_into_intent
-- The offsets behind the gap may have been inserted: the intent stays open for them.
UPDATE kalla.ledger
SET next_offset = %(offset)s, intent_part = intent_end, epoch = epoch + 1, stopped = NULL,
    reason = NULL
WHERE pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s
  AND next_offset = %(from)s AND stopped = 'gap' AND intent_end > %(offset)s
RETURNING partition;
