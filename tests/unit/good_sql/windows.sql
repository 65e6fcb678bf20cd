SELECT left_id, right_id FROM (
  SELECT l.id AS left_id, r.id AS right_id,
         row_number() OVER (PARTITION BY l.id ORDER BY abs(l.amount - r.amount), r.id) AS place
  FROM left_src l JOIN right_src r ON l.currency = r.currency
) ranked
WHERE place = 1
---
SELECT l.id AS left_id,
       sum(l.amount) OVER (PARTITION BY l.currency ORDER BY l.booked, l.id
                           ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS running
FROM left_src l
---
SELECT id, rank() OVER w AS place, dense_rank() OVER w AS dense,
       lag(amount, 1) OVER w AS before, lead(amount, 1, 0) OVER w AS after
FROM left_src
WINDOW w AS (PARTITION BY currency ORDER BY booked DESC NULLS LAST, id)
---
SELECT id, count(*) OVER (PARTITION BY reference) AS times,
       sum(amount) FILTER (WHERE amount > 0) OVER (PARTITION BY reference) AS credits
FROM right_src
---
SELECT id,
       last_value(memo) IGNORE NULLS OVER (PARTITION BY currency ORDER BY created, id
                                           ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING) AS earlier,
       first_value(memo) OVER (PARTITION BY currency ORDER BY created, id) AS first_memo,
       ntile(4) OVER (ORDER BY amount, id) AS quarter
FROM right_src
