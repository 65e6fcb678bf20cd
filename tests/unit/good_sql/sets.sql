SELECT l.id AS left_id, r.id AS right_id FROM left_src l JOIN right_src r ON l.invoice = r.reference
UNION ALL
SELECT l.id, r.id FROM left_src l JOIN right_src r ON l.memo = r.memo
UNION
SELECT l.id, r.id FROM left_src l JOIN right_src r ON l.amount = r.amount AND l.currency = r.currency
---
SELECT currency FROM left_src INTERSECT SELECT currency FROM right_src
---
SELECT invoice FROM left_src EXCEPT SELECT reference FROM right_src
---
SELECT id FROM left_src UNION SELECT reference FROM right_src INTERSECT SELECT invoice FROM left_src
---
(SELECT id FROM left_src ORDER BY amount DESC, id LIMIT 2)
UNION ALL
(SELECT id FROM right_src ORDER BY amount, id LIMIT 1)
---
SELECT DISTINCT l.currency, count(DISTINCT l.id) AS rows_left, sum(l.amount) AS total,
       avg(l.amount) AS mean, count_if(l.amount < 0) AS negative
FROM left_src l
GROUP BY l.currency HAVING count(*) > 0
ORDER BY l.currency ASC NULLS FIRST LIMIT 100 OFFSET 0
---
SELECT * EXCEPT (memo) FROM left_src ORDER BY id
---
SELECT currency, status, sum(amount) AS total FROM left_src GROUP BY ALL
