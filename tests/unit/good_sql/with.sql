WITH cleaned AS (
  SELECT id, regexp_replace(invoice, '[^0-9]', '') AS digits, amount FROM left_src
)
SELECT c.id AS left_id, r.id AS right_id
FROM cleaned c JOIN right_src r ON c.digits = regexp_replace(r.reference, '[^0-9]', '')
---
WITH l AS (SELECT * FROM left_src WHERE status <> 'void'),
     r AS (SELECT * FROM right_src WHERE amount > 0),
     pairs AS (
       SELECT l.id AS left_id, r.id AS right_id, abs(l.amount - r.amount) AS difference
       FROM l JOIN r ON l.currency = r.currency AND tolerance_match(l.amount, r.amount, 1)
     )
SELECT left_id, right_id FROM pairs WHERE difference < 0.5
---
WITH totals (reference, total) AS (
  SELECT reference, sum(amount) FROM right_src GROUP BY reference
)
SELECT l.id AS left_id, r.id AS right_id
FROM left_src l
JOIN totals t ON t.reference = l.invoice AND tolerance_match(t.total, l.amount, 0.01)
JOIN right_src r ON r.reference = t.reference
---
SELECT t.left_id, t.right_id
FROM (
  WITH big AS (SELECT id, invoice FROM left_src WHERE amount > 10)
  SELECT b.id AS left_id, r.id AS right_id FROM big b JOIN right_src r ON b.invoice = r.reference
) AS t
---
WITH both_sides AS (
  SELECT id, 'left' AS side, amount, booked AS day FROM left_src
  UNION ALL
  SELECT id, 'right', -amount, CAST(paid AS DATE) FROM right_src
)
SELECT day, sum(amount) AS balance
FROM both_sides GROUP BY day HAVING sum(amount) <> 0 ORDER BY day
