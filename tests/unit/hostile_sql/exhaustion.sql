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
---
SELECT round(amount, 30000000) FROM left_src
---
SELECT round(CAST(1.5 AS DOUBLE), -30000000) FROM left_src
---
SELECT round(amount, id) FROM left_src
---
SELECT round(amount, 30 * 1000000) FROM left_src
---
SELECT bround(amount, 39) FROM left_src
---
SELECT ceil(amount, 30000000), floor(amount, 30000000) FROM left_src
---
SELECT format_number(amount, 2000000000) FROM left_src
---
SELECT format_number(amount, memo) FROM left_src
---
SELECT format_number(amount, concat('#', memo)) FROM left_src
---
SELECT id, concat(memo, memo) AS a, concat(a, a) AS b, concat(b, b) AS c, concat(c, c) AS d, concat(d, d) AS e, concat(e, e, e, e, e) AS f, concat(f, f, f, f, f) AS g, concat(g, g, g, g, g, g, g, g) AS h, concat(h, h, h) AS i FROM left_src
---
WITH a AS (SELECT id, replace(memo, 'a', memo) AS m FROM left_src) SELECT id, replace(m, 'a', m) AS m FROM a
---
SELECT id, regexp_replace(regexp_replace(memo, '', '$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0$0'), '', 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy') FROM left_src
---
SELECT concat_ws(s, split(s, '')) FROM (SELECT concat_ws(memo, split(memo, '')) AS s FROM left_src) t
---
WITH a0 AS (SELECT id, memo AS m FROM left_src), a1 AS (SELECT id, concat(m, m) AS m FROM a0), a2 AS (SELECT id, concat(m, m) AS m FROM a1), a3 AS (SELECT id, concat(m, m) AS m FROM a2), a4 AS (SELECT id, concat(m, m) AS m FROM a3), a5 AS (SELECT id, concat(m, m) AS m FROM a4), a6 AS (SELECT id, concat(m, m) AS m FROM a5), a7 AS (SELECT id, concat(m, m) AS m FROM a6), a8 AS (SELECT id, concat(m, m) AS m FROM a7), a9 AS (SELECT id, concat(m, m) AS m FROM a8), a10 AS (SELECT id, concat(m, m) AS m FROM a9), a11 AS (SELECT id, concat(m, m) AS m FROM a10), a12 AS (SELECT id, concat(m, m) AS m FROM a11), a13 AS (SELECT id, concat(m, m) AS m FROM a12), a14 AS (SELECT id, concat(m, m) AS m FROM a13) SELECT id, length(m) FROM a14
---
WITH a0 AS (SELECT id, memo AS m FROM left_src), a1 AS (SELECT id, m || m AS m FROM a0), a2 AS (SELECT id, m || m AS m FROM a1), a3 AS (SELECT id, m || m AS m FROM a2), a4 AS (SELECT id, m || m AS m FROM a3), a5 AS (SELECT id, m || m AS m FROM a4), a6 AS (SELECT id, m || m AS m FROM a5), a7 AS (SELECT id, m || m AS m FROM a6), a8 AS (SELECT id, m || m AS m FROM a7), a9 AS (SELECT id, m || m AS m FROM a8), a10 AS (SELECT id, m || m AS m FROM a9), a11 AS (SELECT id, m || m AS m FROM a10), a12 AS (SELECT id, m || m AS m FROM a11), a13 AS (SELECT id, m || m AS m FROM a12), a14 AS (SELECT id, m || m AS m FROM a13) SELECT id, length(m) FROM a14
---
WITH a0 AS (SELECT id, memo AS m FROM left_src), a1 AS (SELECT id, hex(m) AS m FROM a0), a2 AS (SELECT id, hex(m) AS m FROM a1), a3 AS (SELECT id, hex(m) AS m FROM a2), a4 AS (SELECT id, hex(m) AS m FROM a3), a5 AS (SELECT id, hex(m) AS m FROM a4), a6 AS (SELECT id, hex(m) AS m FROM a5), a7 AS (SELECT id, hex(m) AS m FROM a6), a8 AS (SELECT id, hex(m) AS m FROM a7), a9 AS (SELECT id, hex(m) AS m FROM a8), a10 AS (SELECT id, hex(m) AS m FROM a9), a11 AS (SELECT id, hex(m) AS m FROM a10), a12 AS (SELECT id, hex(m) AS m FROM a11), a13 AS (SELECT id, hex(m) AS m FROM a12), a14 AS (SELECT id, hex(m) AS m FROM a13) SELECT id, length(m) FROM a14
---
WITH a0 AS (SELECT id, memo AS m FROM left_src), a1 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a0), a2 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a1), a3 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a2), a4 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a3), a5 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a4), a6 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a5), a7 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a6), a8 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a7), a9 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a8), a10 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a9), a11 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a10), a12 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a11), a13 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a12), a14 AS (SELECT id, CASE WHEN id > '0' THEN upper(concat_ws('', m, m)) END AS m FROM a13) SELECT id, length(m) FROM a14
---
SELECT id, concat(m, m) AS m FROM (SELECT id, concat(m, m) AS m FROM (SELECT id, concat(m, m) AS m FROM (SELECT id, concat(m, m) AS m FROM (SELECT id, concat(m, m) AS m FROM (SELECT id, concat(m, m) AS m FROM (SELECT id, concat(m, m) AS m FROM (SELECT id, concat(m, m) AS m FROM (SELECT id, concat(m, m) AS m FROM (SELECT id, concat(m, m) AS m FROM (SELECT id, concat(m, m) AS m FROM (SELECT id, concat(m, m) AS m FROM (SELECT id, concat(m, m) AS m FROM (SELECT id, concat(m, m) AS m FROM (SELECT id, memo AS m FROM left_src) t0) t1) t2) t3) t4) t5) t6) t7) t8) t9) t10) t11) t12) t13
---
SELECT id FROM left_src l WHERE length(replace(replace(replace(replace(memo, 'x', 'xxxxxxxxxxxx'), 'x', 'xxxxxxxxxxxx'), 'x', 'xxxxxxxxxxxx'), 'x', 'xxxxxxxxxxxx')) > 1
---
WITH p AS (SELECT id, '%a%a%a%a%a%a%a%a%a%a%a%a%b' AS pattern FROM left_src) SELECT l.id FROM left_src l JOIN p ON l.memo LIKE p.pattern
---
SELECT id FROM left_src WHERE memo LIKE lpad('%', 1000, '%a')
---
SELECT id FROM left_src WHERE memo LIKE replace(memo, 'a', '%')
---
SELECT id FROM left_src WHERE memo LIKE (SELECT max(translate(memo, 'ab', '%%')) FROM right_src)
---
SELECT l.id FROM left_src l JOIN (SELECT replace(memo, 'a', chr(37)) AS p FROM right_src) r ON l.memo LIKE r.p
---
WITH a0 AS (SELECT id, memo AS m FROM left_src), `ſ1` AS (SELECT id, m || m AS m FROM a0), `ſ2` AS (SELECT id, m || m AS m FROM `S1`), `ſ3` AS (SELECT id, m || m AS m FROM `S2`), `ſ4` AS (SELECT id, m || m AS m FROM `S3`), `ſ5` AS (SELECT id, m || m AS m FROM `S4`), `ſ6` AS (SELECT id, m || m AS m FROM `S5`), `ſ7` AS (SELECT id, m || m AS m FROM `S6`), `ſ8` AS (SELECT id, m || m AS m FROM `S7`), `ſ9` AS (SELECT id, m || m AS m FROM `S8`), `ſ10` AS (SELECT id, m || m AS m FROM `S9`), `ſ11` AS (SELECT id, m || m AS m FROM `S10`), `ſ12` AS (SELECT id, m || m AS m FROM `S11`), `ſ13` AS (SELECT id, m || m AS m FROM `S12`), `ſ14` AS (SELECT id, m || m AS m FROM `S13`), `ſ15` AS (SELECT id, m || m AS m FROM `S14`) SELECT id FROM s15
---
SELECT id FROM left_src WHERE memo RLIKE '.*.*.*.*.*.*.*.*y'
---
SELECT id FROM left_src WHERE lpad(id, 60, 'a') RLIKE 'a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?aaaaaaaaaaaaaaaaaaaaaaaaaaaab'
---
SELECT split(memo, '.*.*.*.*x')[0] FROM left_src
---
SELECT regexp_count(memo, r'\s*\s*\s*\s*x') FROM left_src
---
SELECT id FROM left_src WHERE memo LIKE '%a%a%a%b'
---
SELECT `replace`(`replace`(`replace`(`replace`(`replace`(memo, 'x', 'xxxxxxxxxxxx'), 'x', 'xxxxxxxxxxxx'), 'x', 'xxxxxxxxxxxx'), 'x', 'xxxxxxxxxxxx'), 'x', 'xxxxxxxxxxxx') FROM left_src
---
SELECT regexp_replace(regexp_replace(memo, '(?=(.*))', '$1'), '(?=(.*))', '$1') FROM left_src
---
SELECT levenshtein(a, a || 'x') FROM (SELECT concat(memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo) || concat(memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo) || concat(memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo) || concat(memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo) || concat(memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo) || concat(memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo) || concat(memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo) || concat(memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo,memo) AS a FROM left_src) t
---
SELECT CAST('1e-100000000' AS DECIMAL(10, 2)) FROM left_src
---
SELECT decimal(' -1.5E-99999999 ') FROM left_src
---
SELECT CAST('1e-' || '100000000' AS DECIMAL(10, 2)) FROM left_src
---
SELECT CAST(id || 'e-100000000' AS DECIMAL(10, 2)) FROM left_src
---
SELECT CAST(concat_ws('', memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo) AS DECIMAL(38, 2)) FROM left_src
---
SELECT decimal(concat_ws('', memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo, memo)) FROM left_src
