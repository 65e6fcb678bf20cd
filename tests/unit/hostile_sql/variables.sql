SELECT '${env:KALLA_SECRET_BANK}' FROM left_src
---
SELECT "${system:user.home}" FROM left_src
---
SELECT r'${env:HOME}' FROM left_src
---
SELECT '$${env:HOME}' FROM left_src
---
SELECT '${spark.app.name}' FROM left_src
---
SELECT '${x}' FROM left_src
---
SELECT '${' FROM left_src
---
SELECT '${env:' || 'HOME}' FROM left_src
---
SELECT '${${x}}' FROM left_src
---
SELECT '$${x}{env:HOME}' FROM left_src
---
SELECT '${hiveconf:x}', '${hivevar:x}', '${sparkconf:spark.master}' FROM left_src
---
SELECT '\u0024{env:HOME}' FROM left_src
---
SELECT '\U00000024{env:HOME}' FROM left_src
---
SELECT '\044{env:HOME}' FROM left_src
---
SELECT '$\{env:HOME}' FROM left_src
---
SELECT '$\u007benv:HOME}' FROM left_src
---
SELECT '\${env:HOME}' FROM left_src
---
SELECT id AS `${env:HOME}` FROM left_src
---
SELECT id AS "${env:HOME}" FROM left_src
---
SELECT t.`${x}` FROM (SELECT id AS `${x}` FROM left_src) t
---
SELECT id FROM left_src AS `${env:HOME}`
---
SELECT id FROM (SELECT id FROM left_src) AS t(`${x}`)
---
WITH `${x}` AS (SELECT id FROM left_src) SELECT id FROM `${x}`
---
SELECT id FROM left_src WINDOW `${x}` AS (ORDER BY id)
---
SELECT id /* ${env:HOME} */ FROM left_src
---
SELECT id -- ${env:HOME}
FROM left_src
---
SELECT `a${x`['}x` FROM text.`/etc/hostname`) --'] FROM (SELECT id AS `a${x` FROM left_src) t
---
SELECT `a${x`['}x` AS left_id, reflect("java.lang.System","getProperty","user.dir") AS right_id FROM (SELECT value AS ax FROM text.`/etc/hostname`)) --'] AS left_id, 1 AS right_id FROM (SELECT id AS `a${x` FROM left_src) t
---
SELECT 'a${x', '} || reflect(\'java.lang.System\', \'exit\', 0)' FROM left_src
---
SELECT id FROM left_src WHERE memo LIKE '${env:HOME}%'
---
SELECT id FROM left_src WHERE memo RLIKE '^${x}$'
---
SELECT date_format(booked, '${x}') FROM left_src
---
SELECT ${x} FROM left_src
---
SELECT * FROM ${x}
---
SELECT id FROM left_src WHERE id = ${env:HOME}
