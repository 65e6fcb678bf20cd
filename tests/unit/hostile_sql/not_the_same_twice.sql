SELECT rand() FROM left_src
---
SELECT randn(1) FROM left_src
---
SELECT random() FROM left_src
---
SELECT uuid() FROM left_src
---
SELECT shuffle(split(id, ',')) FROM left_src
---
SELECT monotonically_increasing_id() FROM left_src
---
SELECT spark_partition_id() FROM left_src
---
SELECT now() FROM left_src
---
SELECT current_date FROM left_src
---
SELECT current_date() FROM left_src
---
SELECT `current_date` FROM left_src
---
SELECT current_timestamp FROM left_src
---
SELECT localtimestamp() FROM left_src
---
SELECT unix_timestamp() FROM left_src
---
SELECT curdate() FROM left_src
---
SELECT id FROM left_src l WHERE l.booked > current_date - INTERVAL 3 DAYS
---
SELECT id FROM left_src l WHERE l.booked = DATE 'today'
---
SELECT id FROM left_src l WHERE l.booked = CAST('now' AS TIMESTAMP)
---
SELECT id FROM left_src l WHERE l.booked > to_date(' Yesterday ')
---
SELECT id FROM left_src l WHERE l.booked > 'tomorrow UTC'
---
SELECT * FROM left_src TABLESAMPLE (10 PERCENT)
---
SELECT * FROM left_src TABLESAMPLE (5 ROWS)
---
SELECT * FROM left_src TABLESAMPLE (BUCKET 1 OUT OF 2)
---
SELECT * FROM left_src LIMIT 10
---
SELECT * FROM left_src OFFSET 10
---
SELECT id FROM left_src UNION ALL SELECT id FROM right_src LIMIT 3
---
SELECT any_value(id) FROM left_src
---
SELECT first(id) FROM left_src
---
SELECT last(id) FROM left_src GROUP BY amount
---
SELECT collect_list(id) FROM left_src
---
SELECT collect_set(id) FROM left_src
---
SELECT listagg(id) FROM left_src
---
SELECT max_by(id, amount) FROM left_src
---
SELECT row_number() OVER (PARTITION BY id) FROM left_src
---
SELECT first_value(id) OVER (PARTITION BY amount) FROM left_src
---
SELECT lag(id) OVER w FROM left_src WINDOW w AS (PARTITION BY amount)
---
SELECT row_number() FROM left_src
---
SELECT id FROM left_src DISTRIBUTE BY id
---
SELECT id FROM left_src SORT BY id
---
SELECT id FROM left_src CLUSTER BY id
---
SELECT id FROM left_src l WHERE l.booked = r'today'
---
SELECT id FROM left_src l WHERE l.booked = '\u0001today'
---
SELECT mode(amount) FROM left_src
---
SELECT `current_tımestamp` FROM left_src
---
SELECT `current_tımeſtamp` FROM left_src
---
SELECT id FROM left_src WHERE CAST('no' || 'w' AS TIMESTAMP) > CAST('2020-01-01' AS TIMESTAMP)
---
SELECT id FROM left_src WHERE booked < concat('to', 'day')
---
SELECT id FROM left_src WHERE booked < ('to' || ('d' || 'ay'))
---
SELECT to_date(lower('TO' || 'DAY')) FROM left_src
---
SELECT to_date(reverse('yadot')) FROM left_src
---
SELECT year(substring('xtoday', 2)) FROM left_src
---
SELECT date_add(replace('toxday', 'x', ''), 1) FROM left_src
---
SELECT CAST(translate('nox', 'x', 'w') AS TIMESTAMP) FROM left_src
---
SELECT CAST(btrim('xnowx', 'x') AS TIMESTAMP) FROM left_src
---
SELECT CAST(split('a,now', ',')[1] AS TIMESTAMP) FROM left_src
---
SELECT CAST(split_part('a,now', ',', 2) AS TIMESTAMP) FROM left_src
---
SELECT CAST(from_unixtime(0, '''now''') AS TIMESTAMP) FROM left_src
---
SELECT CAST(date_format(CAST('2020-01-01' AS DATE), '''now''') AS TIMESTAMP) FROM left_src
---
SELECT CAST(concat(if(TRUE, 'no', ''), 'w') AS TIMESTAMP) FROM left_src
---
SELECT CAST(concat_ws('o', 'n', 'w') AS TIMESTAMP) FROM left_src
---
SELECT CAST(chr(110) || 'ow' AS TIMESTAMP) FROM left_src
---
SELECT coalesce(booked, CAST('no' AS STRING) || 'w') FROM left_src
---
SELECT CAST('10:00' AS TIMESTAMP) FROM left_src
---
SELECT TRY_CAST(' T10:00:00' AS TIMESTAMP) FROM left_src
---
SELECT to_timestamp('10:' || '00') FROM left_src
---
SELECT TIMESTAMP '10:00:00' FROM left_src
---
SELECT date_trunc('DAY', '10:00') FROM left_src
---
SELECT dateadd(DAY, 0, '10:00') FROM left_src
---
SELECT coalesce(nullif(booked, booked), '10:00') FROM left_src
---
SELECT CAST(if(TRUE, '10:00', 'x') AS TIMESTAMP) FROM left_src
---
SELECT id FROM left_src WHERE booked > '10:00'
---
SELECT id FROM left_src WHERE booked BETWEEN '9:00' AND '10:00:00'
---
SELECT id FROM left_src WHERE booked IN ('10:00')
---
SELECT id FROM left_src WHERE '10:00' <= (booked)
---
SELECT id FROM left_src WHERE '10:00' IN (SELECT paid FROM right_src)
---
SELECT CASE WHEN amount > 0 THEN booked ELSE '10:00' END FROM left_src
---
SELECT CASE booked WHEN '10:00' THEN 1 END FROM left_src
---
SELECT booked FROM left_src UNION ALL SELECT '10:00' FROM right_src
---
WITH t AS (SELECT id, CAST('10:00' AS STRING) AS x FROM left_src) SELECT CAST(x AS TIMESTAMP) FROM t
---
SELECT CAST('10:00:' || right(id, 1) AS TIMESTAMP) FROM left_src
---
SELECT CAST(concat('10:', right(id, 1)) AS TIMESTAMP) FROM left_src
---
SELECT CAST(string('T10:00') AS TIMESTAMP) FROM left_src
---
SELECT CAST('T10' AS TIMESTAMP) FROM left_src
---
SELECT extract(DAY FROM '10:00') FROM left_src
---
SELECT date_format('10:00', 'yyyy') FROM left_src
---
SELECT max('10:00') FROM left_src
---
SELECT lag(booked, 1, '10:00') OVER (ORDER BY id) FROM left_src
---
SELECT CAST(date_format(booked, '10:00') AS TIMESTAMP) FROM left_src
---
SELECT row_number() OVER (ORDER BY 1) FROM left_src
---
SELECT first_value(memo) OVER (ORDER BY 1 + 1, 'x') FROM left_src
---
SELECT lag(memo) OVER w FROM left_src WINDOW w AS (PARTITION BY id ORDER BY NULL)
---
SELECT row_number() OVER (ORDER BY (SELECT 1)) FROM left_src
---
SELECT row_number() OVER (ORDER BY (SELECT max(r.id) FROM right_src r)) FROM left_src
---
SELECT 1 AS one, row_number() OVER (ORDER BY one) FROM left_src
---
SELECT sum(amount) OVER (ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM left_src
---
SELECT sum(amount) OVER (PARTITION BY memo ORDER BY 1 ROWS 1 PRECEDING) FROM left_src
---
SELECT max(id) OVER w FROM left_src WINDOW w AS (ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
---
SELECT id FROM left_src ORDER BY 'x' LIMIT 1
---
SELECT id, 1 AS x FROM left_src ORDER BY 2 LIMIT 1
---
SELECT id, 1 AS x FROM left_src ORDER BY X LIMIT 1
---
SELECT id FROM left_src ORDER BY (SELECT max(r.id) FROM right_src r) OFFSET 1
---
SELECT id, 1 AS `x` FROM left_src ORDER BY `X` LIMIT 1
---
SELECT CAST(format_number(0, "'T10:00:0'") AS TIMESTAMP) FROM left_src
---
SELECT CAST(date_format(booked, 'HH:mm') AS TIMESTAMP) FROM left_src
---
SELECT date_trunc('HOUR', from_unixtime(amount, 'HH:mm:ss')) FROM left_src
