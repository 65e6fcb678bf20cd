SELECT * FROM other_table
---
SELECT * FROM default.left_src
---
SELECT * FROM spark_catalog.default.left_src
---
SELECT * FROM global_temp.left_src
---
SELECT * FROM information_schema.tables
---
SELECT * FROM system.information_schema.columns
---
SELECT * FROM `spark_catalog`.`default`.`secrets`
---
SELECT * FROM IDENTIFIER('secrets')
---
SELECT * FROM IDENTIFIER('text.`/etc/passwd`')
---
SELECT * FROM IDENTIFIER(:t)
---
SELECT IDENTIFIER('amount') FROM left_src
---
SELECT IDENTIFIER('reflect')('java.lang.System', 'exit', 0)
---
TABLE left_src
---
TABLE secrets
---
SELECT * FROM left_src, secrets
---
SELECT * FROM left_src l JOIN secrets s USING (id)
---
SELECT * FROM left_src NATURAL JOIN secrets
---
SELECT * FROM (secrets)
---
SELECT * FROM (left_src l JOIN secrets s ON l.id = s.id)
---
SELECT l.id FROM left_src l WHERE EXISTS (WITH secrets AS (SELECT 1 AS x FROM right_src) SELECT x FROM secrets) AND l.id IN (SELECT id FROM secrets)
---
SELECT * FROM (WITH hidden AS (SELECT * FROM right_src) SELECT * FROM hidden) a JOIN hidden b ON a.id = b.id
---
SELECT id FROM left_src UNION ALL (WITH hidden AS (SELECT id FROM right_src) SELECT id FROM hidden) UNION ALL SELECT id FROM hidden
---
SELECT * FROM STREAM left_src
---
SELECT * FROM STREAM(left_src)
---
SELECT * FROM left_src VERSION AS OF 1
---
SELECT * FROM left_src TIMESTAMP AS OF '2020-01-01'
---
SELECT * FROM left_src FOR SYSTEM_TIME AS OF '2020-01-01'
---
SELECT * FROM left_src@v1
---
SELECT * FROM left_src.history
---
SELECT * FROM left_src.`snapshots`
---
SELECT * FROM left_src WITH (option = 'value')
---
SELECT * FROM table_changes('left_src', 0)
---
SELECT * FROM VALUES (1), (2)
---
SELECT * FROM (VALUES (1)) AS t(a)
---
VALUES (1)
---
SELECT * FROM range(1000000000000)
---
SELECT * FROM explode(array(1, 2))
---
SELECT * FROM left_src, LATERAL explode(split(id, ','))
---
SELECT * FROM left_src, LATERAL (SELECT * FROM right_src)
---
SELECT * FROM left_src LATERAL VIEW explode(split(id, ',')) t AS x
---
SELECT * FROM left_src LATERAL VIEW OUTER explode(sequence(1, 1000000000)) t AS x
---
SELECT * FROM stack(2, 1, 2)
---
SELECT * FROM json_tuple('{}', 'a')
---
SELECT * FROM left_src UNPIVOT (v FOR n IN (amount))
---
SELECT * FROM left_src PIVOT (sum(amount) FOR id IN (1, 2))
---
SELECT * FROM left_src MATCH_RECOGNIZE (PATTERN (a) DEFINE a AS TRUE)
---
SELECT system.session.secret_variable FROM left_src
---
SELECT session.secret_variable FROM left_src
---
WITH `sİ` AS (SELECT id FROM left_src) SELECT id FROM `si̇`
---
WITH `left_ſrc` AS (SELECT id FROM right_src) SELECT id FROM left_src
