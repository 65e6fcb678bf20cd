SELECT /*+ BROADCAST(l) */ * FROM left_src l
---
SELECT /*+ REPARTITION(1000000) */ * FROM left_src l
---
SELECT /*+ COALESCE(1), MERGE(l) */ * FROM left_src l
---
SELECT /* /*+ x */ reflect('a', 'b') /* */ FROM left_src
---
SELECT /* a /* b */ reflect('a', 'b') FROM left_src */ FROM left_src
---
SELECT -- harmless
reflect('java.lang.System', 'exit', 0) FROM left_src
---
SELECT /*! reflect('a', 'b'), */ ref/**/lect('a', 'b') FROM left_src
---
SELECT “id” FROM left_src
---
SELECT ‘id’ FROM left_src
---
SELECT id FROM left_src WHERE id = ‘x’ OR 1=1
---
SELECT id FROM left_src WHERE id = ＇x＇
---
SELECT id​ FROM left_src
---
SELECT id FROM left_src ‮WHERE 1=1
---
SELECT ｒｅｆｌｅｃｔ('a', 'b') FROM left_src
---
SELECT rеflect('a', 'b') FROM left_src
---
SELECT 'unclosed FROM left_src
---
SELECT "unclosed FROM left_src
---
SELECT `unclosed FROM left_src
---
SELECT id FROM left_src /* unclosed
---
SELECT 'a\' FROM left_src
---
SELECT id FROM left_src WHERE id = :id
---
SELECT id FROM left_src WHERE id = ?
---
SELECT id FROM left_src WHERE id = ${spark.secret}
---
SELECT ${env:SECRET} FROM left_src
---
SELECT id FROM left_src WHERE id = @x
---
SELECT id FROM left_src WHERE id = {x}
---
SELECT {{ secret }} FROM left_src
---
FROM left_src |> SELECT id
---
FROM left_src |> WHERE reflect('a', 'b') = 1
---
SELECT id FROM left_src |> AGGREGATE count(*)
---
FROM left_src SELECT id
---
SELECT id::array<array<int>> FROM left_src
---
SELECT CAST(id AS STRUCT<a: INT>) FROM left_src
---
SELECT CAST(id AS MAP<STRING, STRING>) FROM left_src
---
SELECT CAST(id AS BINARY) FROM left_src
---
SELECT CAST(id AS VARIANT) FROM left_src
---
SELECT X'1F' FROM left_src
---
SELECT abs(id AS x) FROM left_src
---
SELECT tolerance_match(a => 1, b => 2, t => 3) FROM left_src
---
SELECT l.abs(id) FROM left_src l
---
SELECT session.tolerance_match(1, 2, 3) FROM left_src
---
SELECT id AS (a, b) FROM left_src
---
SELECT AS STRUCT id FROM left_src
---
SELECT a -> a FROM left_src
---
SELECT id FROM left_src WINDOW w AS (ORDER BY reflect('a', 'b'))
---
SELECT FROM left_src
---
SELECT
---
(SELECT)
---
--
---
/* nothing */
---
;
