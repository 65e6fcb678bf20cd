SELECT reflect('java.lang.Runtime', 'getRuntime')
---
SELECT java_method('java.lang.System', 'getenv', 'AWS_SECRET_ACCESS_KEY')
---
SELECT try_reflect('java.lang.System', 'exit', 1)
---
SELECT REFLECT('java.lang.System', 'getProperty', 'user.home') FROM left_src
---
SELECT `reflect`('java.lang.System', 'getProperty', 'user.home') FROM left_src
---
SELECT reflect/**/('java.lang.System', 'exit', 0) FROM left_src
---
SELECT system.builtin.reflect('java.lang.System', 'exit', 0) FROM left_src
---
SELECT builtin.java_method('java.lang.System', 'exit', 0) FROM left_src
---
SELECT l.id FROM left_src l WHERE reflect('java.lang.System', 'exit', 0) IS NULL
---
SELECT l.id FROM left_src l JOIN right_src r ON java_method('java.lang.System', 'exit', 0) = r.id
---
SELECT abs(reflect('java.lang.System', 'nanoTime')) FROM left_src
---
SELECT sum(l.amount) OVER (PARTITION BY reflect('java.lang.System', 'nanoTime')) FROM left_src l
---
SELECT TRANSFORM(id) USING 'cat /etc/passwd' AS (x) FROM left_src
---
SELECT TRANSFORM (id, amount) ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' USING '/bin/sh' AS (x STRING) FROM left_src
---
SELECT transform(*) USING 'bash' FROM left_src
---
SELECT /* innocent */ TRANSFORM(id) /* really */ USING 'sh -c id' FROM left_src
---
FROM left_src MAP id USING 'cat' AS x
---
FROM left_src REDUCE id USING 'cat' AS x
---
MAP id USING 'sh' FROM left_src
---
SELECT * FROM (SELECT TRANSFORM(id) USING 'cat' AS (x) FROM left_src) t
---
WITH t AS (SELECT TRANSFORM(id) USING 'cat' AS (x) FROM left_src) SELECT * FROM t
---
SELECT transform(split(id, ','), x -> reflect('java.lang.System', 'exit', 0)) FROM left_src
---
SELECT python_udf(id) FROM left_src
---
SELECT aggregate(split(id, ','), 0, (a, x) -> a + 1) FROM left_src
