SELECT l.id AS left_id, r.id AS right_id,
       CASE WHEN l.amount = r.amount THEN 'exact'
            WHEN tolerance_match(l.amount, r.amount, 0.01) THEN 'close'
            ELSE 'far' END AS how,
       CASE l.currency WHEN 'EUR' THEN 1 WHEN 'USD' THEN 2 END AS code
FROM left_src l JOIN right_src r ON l.invoice = r.reference
---
SELECT id, CAST(amount AS DECIMAL(38, 9)) AS exact, amount::int AS whole,
       TRY_CAST(memo AS DATE) AS day, CAST(id AS STRING) AS text,
       try_cast(memo AS BIGINT) AS number, CAST(booked AS TIMESTAMP) AS moment,
       string(amount) AS shown, CAST(memo AS VARCHAR(3)) AS short, date(booked) AS d
FROM left_src
---
SELECT id, 1.50BD * amount AS a, 10L + 1 AS b, 1e3 AS c, .5 AS d, 1.25 AS e, - -amount AS f,
       -(amount - -1) AS g, amount * 100 % 7 AS h, 17 DIV 5 AS i, amount / 3 AS j, 5. AS k,
       1.5D AS l, 3S AS m, 2 * (3 + 4) AS n, NOT amount = 0 AND id > '1' OR FALSE AS o
FROM left_src
---
SELECT id, 'it''s' AS a, 'it\'s' AS b, "double" AS c, 'back\\slash' AS d, r'\d+' AS e,
       'tab\tnew\nline' AS f, 'a"b' AS g, '' AS h, '50\%' AS i, '\u00e9 \101' AS j,
       "say ""x""" AS k, 'Zoë — ∅' AS l, '\d \a \f \v \_' AS m, R"raw\n" AS n, 'a''''b' AS o,
       '\\''' AS p, "it's" AS q, '-- no comment /* nor this */' AS r, ';' AS s
FROM left_src
---
SELECT l.id AS left_id, r.id AS right_id
FROM left_src l JOIN right_src r
  ON r.paid >= l.booked - INTERVAL 3 DAYS AND r.paid <= l.booked + INTERVAL '5' DAY
WHERE l.booked BETWEEN DATE '2024-01-01' AND date '2024-12-31'
---
SELECT id, date_add(booked, 3) AS a, date_sub(booked, 3) AS b, add_months(booked, 1) AS c,
       last_day(booked) AS d, trunc(booked, 'MM') AS e, date_trunc('MONTH', booked) AS f,
       date_format(booked, 'yyyy-MM') AS g, year(booked) AS h, extract(MONTH FROM booked) AS i,
       datediff(booked, DATE '2024-01-01') AS j, date_diff(DAY, DATE '2024-01-01', booked) AS k,
       dateadd(MONTH, 1, booked) AS m, date_add(week, 2, booked) AS v,
       timestampdiff(HOUR, TIMESTAMP '2024-01-01 00:00:00', CAST(booked AS TIMESTAMP)) AS n,
       months_between(booked, DATE '2024-01-31') AS o, to_date('31.01.2024', 'dd.MM.yyyy') AS p,
       make_date(2024, 2, 29) AS q, weekday(booked) AS s,
       booked + INTERVAL '1-2' YEAR TO MONTH AS t, booked + INTERVAL 2 MONTHS AS u
FROM left_src
---
SELECT id, coalesce(memo, '') AS a, nullif(amount, 0) AS b, nvl(memo, invoice) AS c,
       if(amount > 0, 'debit', 'credit') AS d, greatest(amount, 0) AS e, least(amount, 0) AS f,
       round(amount, 1) AS g, bround(amount, 1) AS h, ceil(amount) AS i, floor(amount) AS j,
       sign(amount) AS k, pmod(-7, 3) AS l, try_divide(amount, 0) AS m
FROM left_src
---
SELECT id, substring(invoice, 1, 3) AS a, left(invoice, 2) AS b, right(invoice, 2) AS c,
       lpad(id, 10, '0') AS d, split(invoice, '-')[0] AS e, split_part(invoice, '-', 2) AS f,
       invoice || '/' || currency AS g, concat_ws('|', id, invoice) AS h, length(memo) AS i,
       replace(memo, 'x', 'y') AS j, regexp_extract(invoice, r'(\d+)', 1) AS k,
       initcap(memo) AS l, instr(invoice, '-') AS m, translate(invoice, 'abc', 'xyz') AS n,
       levenshtein(invoice, memo) AS o, sha2(memo, 256) AS p, substr(invoice, 2) AS q
FROM left_src
---
SELECT id FROM left_src
WHERE (memo LIKE '%paid%' OR memo NOT LIKE 'x\\_%' OR memo ILIKE 'PAID%'
       OR memo RLIKE '^[A-Z]{3}[0-9]+$' OR memo LIKE '50#%' ESCAPE '#' OR memo NOT RLIKE 'z')
  AND NOT (status IN ('void', 'draft') OR status IS NULL)
  AND amount NOT BETWEEN -1 AND 1 AND id NOT IN ('7', '8') AND currency IS NOT NULL
  AND !(amount = 0) AND (amount > 0) IS NOT FALSE AND memo IS DISTINCT FROM invoice
---
SELECT `l`.`id` AS `left id`, r.id AS `right``id`, l.currency AS user
FROM left_src AS l JOIN right_src AS `r` ON `l`.invoice = r.`reference`
---
SELECT id, CAST(amount AS FLOAT) AS a, TIMESTAMP_NTZ '2024-01-31 10:00:00' AS b, NULL AS c,
       memo IS NULL AND amount >= 0 AND amount <= 10 AS d, amount <> 0 AS e,
       round(amount * 1.19, 2) AS f, lag(memo) RESPECT NULLS OVER (ORDER BY id) AS g
FROM left_src
---
SELECT l.id AS left_id, r.id AS right_id
FROM left_src l JOIN right_src r
  ON l.memo LIKE concat('%', r.reference, '%') OR l.memo LIKE '%' || r.memo || '%'
WHERE replace(l.memo, '\u00a0', '') <> 'x'
---
SELECT id, round(amount, 2) AS a, round(amount, -2) AS b, bround(amount, 0) AS c,
       format_number(amount, 2) AS d, format_number(amount, '#,##0.00') AS e, floor(amount, 1) AS f,
       replace(replace(replace(replace(lower(memo), 'ä', 'ae'), 'ö', 'oe'), 'ü', 'ue'), 'ß', 'ss')
       AS g, replace(memo, chr(10), ' ') AS h, '$' || '{' AS i, upper('eur') AS j,
       to_timestamp('2024-01-30 10:00') AS k, date_format(booked, 'HH:mm') = '00:00' AS l
FROM left_src WHERE upper(currency) = upper('eur') OR memo LIKE concat('50', '%')
---
WITH l AS (SELECT id, concat(invoice, '-', currency) AS k FROM left_src),
     m AS (SELECT id, k || ':' || id AS k FROM l),
     n AS (SELECT id, md5(concat_ws('|', k, k, id)) AS k FROM m)
SELECT l.id, r.id, n.k FROM n JOIN left_src l ON n.id = l.id
JOIN right_src r ON l.memo LIKE '%' || r.memo || '%' OR r.memo ILIKE concat(l.memo, '%')
---
SELECT id, array_contains(split(memo, ' '), 'x') AS a, element_at(split(invoice, '-'), 1) AS b,
       try_element_at(split(memo, ','), 9) AS c, get_json_object(memo, '$.a') AS d,
       try_to_number(memo, '999.99') AS e, to_number('42', '99') AS f
FROM left_src
