SELECT 1; SELECT 2
---
SELECT * FROM left_src; DROP TABLE left_src
---
SELECT * FROM left_src;;DROP TABLE left_src
---
SELECT * FROM left_src; -- and now
DROP TABLE left_src
---
SELECT * FROM left_src /* ; */ ; ADD JAR '/tmp/evil.jar'
---
; DROP TABLE left_src
---
SELECT 'a\'; DROP TABLE left_src; --' FROM left_src; SELECT 1
---
SELECT 1 -- \
; DROP TABLE left_src
---
SELECT id FROM left_src UNION ALL SELECT 1; SET x = 1
