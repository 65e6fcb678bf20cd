-- What the connector asks a source's catalogue. It only ever reads.

-- name: relation
-- Names are taken as they are stored, so that no quoting has to be guessed.
SELECT c.oid::int8 AS oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
       c.relhassubclass AND c.relkind <> 'p' AS inherited,
       has_table_privilege(c.oid, 'SELECT') AS permitted,
       current_setting('server_version_num')::int AS version,
       CASE WHEN c.relkind IN ('r', 'm')
            THEN pg_relation_size(c.oid) / current_setting('block_size')::int
            WHEN c.relkind = 'p'
            THEN (SELECT coalesce(sum(pg_relation_size(p.relid)), 0)
                  FROM pg_partition_tree(c.oid) p) / current_setting('block_size')::int
       END::int8 AS pages
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm', 'v', 'f')
  AND (n.nspname || '.' || c.relname = %(table)s
       OR (c.relname = %(table)s AND pg_table_is_visible(c.oid)))
ORDER BY n.nspname || '.' || c.relname = %(table)s DESC;

-- name: columns
-- A domain is followed down to its base; of an array, type and kind are those of its elements.
-- That a column is not null counts where all rows are held to it: not those from before a constraint
-- that was never validated, nor those of a table below that need not keep it, nor those far away.
WITH RECURSIVE family (oid) AS (
    SELECT %(oid)s::oid
  UNION
    SELECT i.inhrelid FROM pg_inherits i JOIN family f ON f.oid = i.inhparent
), held (attname, attnotnull) AS (
    SELECT a.attname, bool_and(a.attnotnull AND c.relkind <> 'f' AND n.conname IS NULL)
    FROM family f
    JOIN pg_class c ON c.oid = f.oid
    JOIN pg_attribute a ON a.attrelid = f.oid AND NOT a.attisdropped
    LEFT JOIN pg_constraint n ON n.conrelid = f.oid AND n.contype = 'n' AND NOT n.convalidated
                             AND a.attnum = ANY (n.conkey)
    GROUP BY a.attname
), resolved AS (
    SELECT a.attnum, a.attname, h.attnotnull, a.atttypid AS type, a.atttypmod AS modifier,
           format_type(a.atttypid, a.atttypmod) AS declared
    FROM pg_attribute a JOIN held h USING (attname)
    WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
    SELECT r.attnum, r.attname, r.attnotnull, t.typbasetype,
           CASE WHEN t.typtypmod <> -1 THEN t.typtypmod ELSE r.modifier END, r.declared
    FROM resolved r JOIN pg_type t ON t.oid = r.type
    WHERE t.typtype = 'd'
)
SELECT r.attname AS name, r.declared, coalesce(e.typname, t.typname) AS base,
       CASE WHEN coalesce(e.typnamespace, t.typnamespace) = 'pg_catalog'::regnamespace
              OR coalesce(e.typtype, t.typtype) <> 'b'
            THEN coalesce(e.typtype, t.typtype)::text
            ELSE 'x' END AS kind,  -- a base type that an extension brought
       r.modifier, e.oid IS NOT NULL AS array, r.attnotnull AS not_null
FROM resolved r
JOIN pg_type t ON t.oid = r.type
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE t.typtype <> 'd'
ORDER BY r.attnum;

-- name: indexes
-- Whole, valid B-trees on plain columns: those along which a range can be read.
SELECT i.indisprimary AS primary, i.indisunique AS unique,
       array_agg(a.attname::text ORDER BY k.place) AS columns,
       array_agg(CASE WHEN l.collnamespace = 'pg_catalog'::regnamespace THEN l.collname::text END
                 ORDER BY k.place) AS collations
FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_am m ON m.oid = c.relam AND m.amname = 'btree'
CROSS JOIN LATERAL generate_series(0, i.indnkeyatts - 1) AS k (place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.place]
LEFT JOIN pg_collation l ON l.oid = i.indcollation[k.place]
WHERE i.indrelid = %(oid)s AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid, i.indisprimary, i.indisunique
ORDER BY i.indisprimary DESC, i.indisunique DESC, i.indexrelid;

-- name: settings
-- Only for this transaction: values as text look the same everywhere, and a long read may be long.
-- A policy that would hide rows is an error, as it is to pg_dump: nobody would know of them.
SELECT set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO, YMD', true),
       set_config('row_security', 'off', true),
       set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
       set_config('idle_in_transaction_session_timeout', '0', true),
       CASE WHEN current_setting('server_version_num')::int >= 170000
            THEN set_config('transaction_timeout', '0', true) END;

-- name: moment
-- Of the transaction that asks, which sees this moment to its end. The function has a newer name
-- since 13; by this one older servers know it too. The time is that of BEGIN: whatever was committed
-- before it is seen.
SELECT txid_current_snapshot()::text AS seen,
       to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') AS at;

-- name: log_position
-- Where it is now: whoever wants that of a snapshot asks at once, for the log goes on.
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
             ELSE pg_current_wal_lsn() END)::text AS lsn;
