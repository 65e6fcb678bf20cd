SELECT repeat('x', 2000000000) FROM left_src
---
SELECT space(2000000000) FROM left_src
---
SELECT lpad(id, 2000000000, 'x') FROM left_src
---
SELECT rpad(id, 1000 * 1000000, 'x') FROM left_src
---
SELECT sequence(1, 1000000000) FROM left_src
---
SELECT array_repeat(1, 1000000000) FROM left_src
---
SELECT explode(sequence(1, 1000000000)) FROM left_src
---
SELECT posexplode(split(id, '')) FROM left_src
---
SELECT stack(2, 1, 2) FROM left_src
---
SELECT inline(array(struct(1))) FROM left_src
---
SELECT format_string('%2000000000d', 1) FROM left_src
---
SELECT printf('%2000000000d', 1) FROM left_src
---
SELECT id FROM left_src WHERE id RLIKE '^(a+)+$'
---
SELECT id FROM left_src WHERE id RLIKE r'^(\d+,?)*$'
---
SELECT id FROM left_src WHERE id REGEXP '(a|aa)+$'
---
SELECT id FROM left_src WHERE id RLIKE '((a*))*b'
---
SELECT regexp_replace(id, '(x+x+)+y', '') FROM left_src
---
SELECT regexp_extract(id, r'(a*)\1\1', 1) FROM left_src
---
SELECT id FROM left_src l JOIN right_src r ON l.id RLIKE r.id
---
SELECT split(id, amount) FROM left_src
---
WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT * FROM t
---
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n FROM t), u AS (SELECT * FROM t) SELECT * FROM u
---
WITH RECURSIVE t AS (SELECT id FROM left_src) SELECT * FROM t
---
WITH t AS (SELECT * FROM t) SELECT * FROM t
---
WITH a AS (SELECT * FROM b), b AS (SELECT * FROM a) SELECT * FROM a
---
WITH a AS (SELECT * FROM left_src l JOIN c ON TRUE), b AS (SELECT * FROM a), c AS (SELECT * FROM b) SELECT * FROM c
---
WITH left_src AS (SELECT * FROM right_src) SELECT * FROM left_src
---
WITH a AS (SELECT 1 AS x), A AS (SELECT 2 AS x) SELECT * FROM a
---
WITH a AS (SELECT l.* FROM left_src l, left_src m), b AS (SELECT x.id FROM a x, a y, a z), c AS (SELECT x.id FROM b x, b y, b z), d AS (SELECT x.id FROM c x, c y, c z, c w) SELECT * FROM d
---
SELECT id FROM left_src GROUP BY CUBE (id, amount)
---
SELECT id FROM left_src GROUP BY GROUPING SETS ((id), ())
---
SELECT id FROM left_src START WITH id = 1 CONNECT BY PRIOR id = amount
---
SELECT id FROM left_src WHERE memo LIKE '%a%a%a%a%a%a%a%b'
---
SELECT id FROM left_src WHERE memo ILIKE concat('%a%a%', '%a%a%a%')
---
SELECT int(int(int(int(int(int(int(int(int(int(int(int(int(int(int(int(int(int(id)))))))))))))))))) FROM left_src
---
SELECT 1 FROM left_src JOIN right_src JOIN right_src JOIN right_src JOIN right_src JOIN right_src JOIN right_src JOIN right_src JOIN right_src JOIN right_src JOIN right_src JOIN right_src JOIN right_src JOIN right_src JOIN right_src JOIN right_src JOIN right_src
