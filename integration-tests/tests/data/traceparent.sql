-- An application hands its trace over: whoever decodes or replays the transaction goes on with it. The last message counts.
BEGIN;
SELECT pg_logical_emit_message(true, 'traceparent', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
INSERT INTO orders VALUES (1, 'first');
COMMIT;
-- With a tracestate on a line of its own.
BEGIN;
INSERT INTO orders VALUES (2, 'second');
SELECT pg_logical_emit_message(true, 'traceparent', E'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\nrojo=00f067aa0ba902b7');
COMMIT;
-- What is malformed is left alone, and so is what is not transactional.
BEGIN;
SELECT pg_logical_emit_message(true, 'traceparent', 'not a trace');
SELECT pg_logical_emit_message(false, 'traceparent', '00-11111111111111111111111111111111-2222222222222222-01');
INSERT INTO orders VALUES (3, 'third');
COMMIT;
