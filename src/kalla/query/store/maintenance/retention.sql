-- Statements about what goes: expired segments, replaced ones, and objects that nobody lists.

-- name: is_due
-- Whether a segment is past its time; and whether it is time to sweep, if anything was written since.
SELECT
    %(retention_ms)s > 0 AND EXISTS (
        SELECT FROM kalla.segments
        WHERE replaced_at IS NULL AND max_time < -%(retention_ms)s::bigint
            + (SELECT least(max(max_time), extract(epoch FROM kalla.clock()) * 1000)
               FROM kalla.segments WHERE replaced_at IS NULL)) AS expires,
    EXISTS (
        SELECT FROM kalla.metric_store,
            (SELECT created_at FROM kalla.segments ORDER BY segment_id LIMIT 1) AS first,
            (SELECT created_at FROM kalla.segments ORDER BY segment_id DESC LIMIT 1) AS last
        WHERE last.created_at > coalesce(swept_at, '-infinity')
          AND coalesce(swept_at, first.created_at)
              < kalla.clock() - make_interval(secs => %(sweep_seconds)s)) AS sweeps;

-- name: note_sweep
UPDATE kalla.metric_store SET swept_at = kalla.clock();

-- name: removable
-- A file is shared by segments of several shards: it goes when the last of them was replaced long ago.
WITH moment AS MATERIALIZED (
    SELECT kalla.clock() - make_interval(secs => %(grace_seconds)s) AS past
)
SELECT DISTINCT old.path
FROM moment, kalla.segments old
WHERE old.replaced_at < moment.past AND NOT EXISTS (
    SELECT FROM kalla.segments other
    WHERE other.path = old.path AND (other.replaced_at IS NULL OR other.replaced_at >= moment.past))
ORDER BY old.path
LIMIT %(limit)s;

-- name: forget
-- Nothing brings a replaced segment back, so that a job that comes late removes nothing live.
DELETE FROM kalla.segments WHERE path = ANY(%(paths)s) AND replaced_at IS NOT NULL;

-- name: expire
-- Behind the newest sample, so that old data that was imported stays; but never behind one that
-- claims to be of the future, which would take all others with it.
UPDATE kalla.segments SET replaced_at = kalla.clock()
WHERE replaced_at IS NULL AND %(retention_ms)s > 0 AND max_time < -%(retention_ms)s::bigint
    + (SELECT least(max(max_time), extract(epoch FROM kalla.clock()) * 1000)
       FROM kalla.segments WHERE replaced_at IS NULL);

-- name: condemn
-- An object that a compaction has written is listed when its job is settled, however long that takes.
-- While the attempt is claimed it may be; one statement sees the claim or the listed segments.
INSERT INTO kalla.segments
    (shard, level, min_time, max_time, path, rows, samples, bytes, checksum, replaced_at)
SELECT 0, 0, 0, 0, found.path, 0, 0, 0, '', kalla.clock()
FROM unnest(%(paths)s::text[], %(jobs)s::bigint[], %(fences)s::bigint[]) AS found (path, job_id, fence)
WHERE NOT EXISTS (SELECT FROM kalla.segments WHERE segments.path = found.path)
  AND NOT EXISTS (
      SELECT FROM kalla.jobs
      WHERE jobs.job_id = found.job_id AND jobs.fence = found.fence AND jobs.status = 'claimed');
