SELECT http_request(conn => 'x', method => 'GET', path => '/') FROM left_src
---
SELECT http_get('http://169.254.169.254/latest/meta-data') FROM left_src
---
SELECT ai_query('model', id) FROM left_src
---
SELECT secret('scope', 'key') FROM left_src
---
SELECT current_user() FROM left_src
---
SELECT current_user FROM left_src
---
SELECT `current_user` FROM left_src
---
SELECT session_user FROM left_src
---
SELECT user FROM left_src
---
SELECT user() FROM left_src
---
SELECT current_catalog() FROM left_src
---
SELECT current_database() FROM left_src
---
SELECT current_schema FROM left_src
---
SELECT version() FROM left_src
---
SELECT current_timezone() FROM left_src
---
SELECT java_version() FROM left_src
---
SELECT getvariable('x') FROM left_src
---
SELECT * FROM read_kafka(bootstrapServers => 'h:9092', subscribe => 't')
---
SELECT * FROM remote_query('pg', query => 'SELECT 1')
---
SELECT * FROM python_worker_logs()
---
SELECT * FROM system.session.python_worker_logs
---
SELECT from_avro(id, 'x', map('url', 'http://example.org')) FROM left_src
---
SELECT * FROM jdbc.`postgresql://db/x`
---
SELECT vector_search('index', id) FROM left_src
---
SELECT url_decode(id), parse_url(id, 'HOST') FROM left_src
---
SELECT `current_uſer` FROM left_src
---
SELECT `uſer` FROM left_src
---
SELECT t.* FROM (SELECT `ſeſſıon_uſer` FROM left_src) t
