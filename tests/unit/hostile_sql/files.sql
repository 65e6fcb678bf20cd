SELECT * FROM text.`/etc/passwd`
---
SELECT * FROM `text`.`/etc/passwd`
---
SELECT * FROM `text`./*x*/`/etc/passwd`
---
SELECT * FROM csv.`s3a://bucket/key.csv`
---
SELECT * FROM parquet.`/data/evidence`
---
SELECT * FROM delta.`/data/table`
---
SELECT * FROM binaryFile.`/root/.ssh/id_rsa`
---
SELECT * FROM json.`/proc/self/environ`
---
SELECT * FROM `/etc/passwd`
---
SELECT * FROM `text./etc/passwd`
---
SELECT l.* FROM left_src l JOIN text.`/etc/passwd` p ON l.id = p.value
---
SELECT l.* FROM left_src l WHERE l.id IN (SELECT value FROM text.`/etc/passwd`)
---
SELECT (SELECT max(value) FROM text.`/etc/passwd`) FROM left_src
---
SELECT l.id FROM left_src l ORDER BY (SELECT value FROM text.`/etc/passwd`)
---
SELECT l.id FROM left_src l UNION ALL SELECT value FROM text.`/etc/passwd`
---
WITH p AS (SELECT * FROM text.`/etc/passwd`) SELECT * FROM p
---
SELECT l.id FROM left_src l UNION ALL SELECT r.id FROM right_src r ORDER BY (SELECT max(value) FROM text.`/etc/passwd`)
---
SELECT * FROM read_files('/etc/passwd')
---
SELECT * FROM read_files('/etc/passwd', format => 'text')
---
SELECT read_files('/etc/passwd') FROM left_src
---
SELECT * FROM left_src WHERE input_file_name() <> ''
---
SELECT _metadata.file_path FROM left_src
---
SELECT l._metadata FROM left_src l
---
SELECT `_metadata`.`file_path` FROM left_src
---
SELECT sum(id) OVER (ORDER BY (SELECT value FROM text.`/etc/passwd`)) FROM left_src
---
SELECT id FROM left_src GROUP BY id HAVING count(*) > (SELECT count(*) FROM text.`/etc/passwd`)
---
SELECT CASE WHEN EXISTS (SELECT 1 FROM text.`/etc/passwd`) THEN 1 END FROM left_src
