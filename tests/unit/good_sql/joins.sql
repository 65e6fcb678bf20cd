SELECT l.id AS left_id, r.id AS right_id
FROM left_src l
JOIN right_src r ON l.invoice = r.reference
---
SELECT l.id AS left_id, r.id AS right_id
FROM left_src AS l
INNER JOIN right_src AS r
  ON l.invoice = r.reference
 AND l.currency = r.currency
 AND tolerance_match(l.amount, r.amount, 0.01)
---
-- the usual one: by reference, else nothing
SELECT l.id AS left_id, r.id AS right_id, l.amount - r.amount AS difference
FROM left_src l LEFT OUTER JOIN right_src r ON upper(trim(l.invoice)) = upper(trim(r.reference))
WHERE r.id IS NOT NULL;
---
select l.id left_id, r.id right_id
from left_src l
full outer join right_src r on l.invoice <=> r.reference
---
SELECT l.id AS left_id, r.id AS right_id
FROM left_src l RIGHT JOIN right_src r ON l.invoice = r.reference AND l.amount == r.amount
---
SELECT l.id AS left_id, r.id AS right_id
FROM left_src l CROSS JOIN right_src r
WHERE tolerance_match(l.amount, r.amount, 0.05) AND datediff(r.paid, l.booked) BETWEEN 0 AND 3
---
SELECT l.id AS left_id, r.id AS right_id
FROM left_src l, right_src r
WHERE l.invoice = r.reference AND abs(l.amount - r.amount) <= 0.01
---
SELECT l.id AS left_id, r.id AS right_id
FROM left_src l JOIN right_src r USING (currency, amount)
---
SELECT l.id AS left_id FROM left_src l LEFT SEMI JOIN right_src r ON l.invoice = r.reference
---
SELECT l.id AS left_id FROM left_src l LEFT ANTI JOIN right_src r ON l.invoice = r.reference
---
SELECT a.id AS left_id, b.id AS other_id, r.id AS right_id
FROM left_src a
JOIN left_src b ON a.invoice = b.invoice AND a.id < b.id
JOIN right_src r ON r.reference = a.invoice AND r.amount = a.amount + b.amount
---
SELECT l.id AS left_id, r.id AS right_id
FROM left_src l
JOIN (SELECT id, reference, amount FROM right_src WHERE amount <> 0) r ON l.invoice = r.reference
---
SELECT l.*, r.most
FROM left_src l
NATURAL JOIN (SELECT currency, max(amount) AS most FROM right_src GROUP BY currency) r
---
SELECT l.id AS left_id, right_src.id AS right_id
FROM left_src AS l (id, invoice, sum, c, d, m, s)
JOIN right_src ON l.invoice = right_src.reference AND l.sum = right_src.amount
