INSERT INTO left_src SELECT * FROM right_src
---
INSERT OVERWRITE DIRECTORY '/tmp/out' USING parquet SELECT * FROM left_src
---
INSERT OVERWRITE LOCAL DIRECTORY '/tmp/out' SELECT * FROM left_src
---
WITH t AS (SELECT 1 AS x) INSERT INTO left_src SELECT * FROM t
---
FROM left_src INSERT INTO right_src SELECT *
---
CREATE TABLE t AS SELECT * FROM left_src
---
CREATE OR REPLACE TEMPORARY VIEW left_src AS SELECT 1
---
CREATE FUNCTION f AS 'com.example.Evil' USING JAR '/tmp/evil.jar'
---
CREATE TEMPORARY FUNCTION tolerance_match(a INT) RETURNS BOOLEAN RETURN TRUE
---
DROP TABLE left_src
---
DROP VIEW left_src
---
ALTER TABLE left_src ADD COLUMN x INT
---
TRUNCATE TABLE left_src
---
DELETE FROM left_src
---
UPDATE left_src SET amount = 0
---
MERGE INTO left_src USING right_src ON TRUE WHEN MATCHED THEN DELETE
---
SELECT * INTO stolen FROM left_src
---
SELECT id FROM left_src FOR UPDATE
---
SET spark.sql.ansi.enabled=false
---
SET x = 1
---
SET VAR x = 1
---
RESET
---
DECLARE x INT DEFAULT 1
---
ADD JAR '/tmp/evil.jar'
---
ADD FILE '/etc/passwd'
---
ADD ARCHIVE '/tmp/a.zip'
---
LIST JARS
---
CACHE TABLE left_src
---
UNCACHE TABLE left_src
---
REFRESH TABLE left_src
---
USE default
---
SHOW TABLES
---
DESCRIBE left_src
---
EXPLAIN SELECT * FROM left_src
---
ANALYZE TABLE left_src COMPUTE STATISTICS
---
LOAD DATA INPATH '/etc/passwd' INTO TABLE left_src
---
EXECUTE IMMEDIATE 'DROP TABLE left_src'
---
EXECUTE IMMEDIATE concat('DROP ', 'TABLE left_src')
---
CALL system.evil()
---
COMMENT ON TABLE left_src IS 'x'
---
GRANT SELECT ON left_src TO everybody
---
MSCK REPAIR TABLE left_src
---
VACUUM left_src
---
OPTIMIZE left_src
---
DFS -ls /
---
BEGIN SELECT 1; END
---
BEGIN DECLARE x INT; SET VAR x = 1; SELECT x; END
---
WITH x AS (DROP TABLE left_src) SELECT * FROM x
---
WITH x AS (ADD JAR '/tmp/evil.jar') SELECT * FROM x
---
WITH x AS (INSERT INTO left_src VALUES (1)) SELECT * FROM x
---
SELECT * FROM (DELETE FROM left_src)
---
COPY INTO left_src FROM '/tmp'
---
EXPORT DATA left_src
