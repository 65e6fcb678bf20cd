SELECT l.id AS left_id FROM left_src l
WHERE EXISTS (
  SELECT 1 FROM right_src r
  WHERE r.reference = l.invoice AND tolerance_match(l.amount, r.amount, 0.01)
)
---
SELECT l.id AS left_id FROM left_src l
WHERE NOT EXISTS (SELECT * FROM right_src r WHERE r.reference = l.invoice)
---
SELECT l.id AS left_id, r.id AS right_id
FROM left_src l JOIN right_src r ON l.invoice = r.reference
WHERE l.invoice IN (SELECT reference FROM right_src GROUP BY reference HAVING count(*) = 1)
---
SELECT l.id AS left_id,
       (SELECT max(r.amount) FROM right_src r WHERE r.reference = l.invoice) AS most
FROM left_src l
---
SELECT l.id AS left_id, r.id AS right_id
FROM left_src l JOIN right_src r ON l.invoice = r.reference
WHERE (l.currency, l.amount) IN (SELECT currency, amount FROM right_src)
