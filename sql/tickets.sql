-- Tickets: arguments, and what the functions return.  test/t/tickets/301_tickets.pl has the rest.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
\pset format unaligned
\pset null NULL

-- The state of a ticket once its granter has looked at it.
CREATE FUNCTION pg_temp.state_of(t bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	LOOP
		SELECT s.state INTO result FROM dlock_ticket(t) s;
		EXIT WHEN result IS DISTINCT FROM 'waiting';
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN result;
END $$;

-- a free key
SELECT dlock_enqueue('ticket', '1 h', 'me', 'my value') AS t \gset
SELECT pg_temp.state_of(:t);
SELECT key, state, position, version IS NOT NULL AS has_version FROM dlock_ticket(:t);
SELECT key, owner, value, ttl, state FROM dlock_get('ticket');
SELECT dlock_acquire('ticket', '1 h', 'me') = (SELECT version FROM dlock_ticket(:t)) AS same;
SELECT dlock_enqueue('ticket', NULL, 'me') = :t AS same_ticket;
SELECT dlock_dequeue(:t);

-- a key that is held
SELECT dlock_enqueue('ticket', NULL, 'you') AS t2 \gset
SELECT key, state, position, version FROM dlock_ticket(:t2);
SELECT key, pid, ticket = :t2 AS ours, owner, priority, slots, position, until FROM dlock_waiters;
SELECT dlock_acquire('ticket');
SELECT dlock_enqueue('ticket', NULL, 'they', wait => '1 ms') AS t3 \gset
SELECT pg_temp.state_of(:t3);
SELECT dlock_dequeue(:t2), dlock_dequeue(:t2), dlock_dequeue(:t3);
SELECT count(*) FROM dlock_ticket(:t2);
SELECT dlock_release('ticket', owner => 'me');

-- again => false: a ticket of its own, which waits for the grant of its own owner
SELECT dlock_enqueue('anew', '1 h', 'me', again => false) AS t \gset
SELECT pg_temp.state_of(:t);
SELECT dlock_enqueue('anew', '1 h', 'me', again => false) AS t2, dlock_enqueue('anew', '1 h', 'me', again => false) AS t3 \gset
SELECT :t < :t2 AND :t2 < :t3 AS three_tickets;
SELECT dlock_enqueue('anew', '1 h', 'me') AS t4 \gset
SELECT pg_temp.state_of(:t4);
SELECT (SELECT version FROM dlock_ticket(:t4)) = (SELECT version FROM dlock_ticket(:t)) AS what_is_held;
SELECT (SELECT state || position FROM dlock_ticket(:t2)) AS second, (SELECT state || position FROM dlock_ticket(:t3)) AS third;
SELECT dlock_release('anew', owner => 'me');
SELECT pg_temp.state_of(:t2);
SELECT (SELECT version FROM dlock_ticket(:t2)) > (SELECT version FROM dlock_ticket(:t)) AS newer, (SELECT state || position FROM dlock_ticket(:t3)) AS third;
SELECT dlock_dequeue(:t3), dlock_release('anew', owner => 'me');

-- what is asked for is what is granted
SELECT dlock_enqueue('place', '1 h', 'me', priority => 7, cleanup => '5 s', slots => 3, at_least => '1 s', delay => '2 s') AS t \gset
SELECT pg_temp.state_of(:t);
SELECT owner, state, priority, slots FROM dlock_get('place');
SELECT cleanup, at_least, delay, lazy FROM dlock.locks WHERE key = 'place' AND held;
SELECT dlock_enqueue('lazy', NULL, 'me', lazy => true) AS t \gset
SELECT pg_temp.state_of(:t);
SELECT lazy, slots FROM dlock.locks WHERE key = 'lazy';

-- bad arguments
\set VERBOSITY sqlstate
SELECT dlock_enqueue(NULL, NULL, 'me');
SELECT dlock_enqueue('', NULL, 'me');
SELECT dlock_enqueue(repeat('k', 1025), NULL, 'me');
SELECT dlock_enqueue('k', NULL, NULL);
SELECT dlock_enqueue('k', NULL, '');
SELECT dlock_enqueue('k', NULL, repeat('o', 1025));
SELECT dlock_enqueue('k', '0', 'me');
SELECT dlock_enqueue('k', '1 month', 'me');
SELECT dlock_enqueue('k', '2 days', 'me');
SELECT dlock_enqueue('k', NULL, 'me', value => repeat('v', 1025));
SELECT dlock_enqueue('k', NULL, 'me', wait => '-1 s');
SELECT dlock_enqueue('k', NULL, 'me', priority => -1);
SELECT dlock_enqueue('k', NULL, 'me', cleanup => NULL);
SELECT dlock_enqueue('k', NULL, 'me', force => NULL);
SELECT dlock_enqueue('k', NULL, 'me', slots => 0);
SELECT dlock_enqueue('k', NULL, 'me', slots => NULL);
SELECT dlock_enqueue('k', NULL, 'me', again => NULL);
-- two arguments are not an owner
SELECT dlock_enqueue('k', '30s');
SELECT dlock_enqueue('k', '1 s', 'me', at_least => '2 s');
SELECT dlock_enqueue('k', NULL, 'me', lazy => true, delay => '1 s');
SELECT dlock_dequeue(NULL);
\set VERBOSITY default
SELECT dlock_enqueue('k', NULL, NULL);
SELECT dlock_enqueue('k', NULL, 'me', value => repeat('v', 1025));
SELECT count(*) FROM dlock_ticket(NULL);
SELECT count(*) FROM dlock_ticket(-1);
SELECT dlock_dequeue(0);
BEGIN READ ONLY;
SELECT dlock_enqueue('k', NULL, 'me');
ROLLBACK;
BEGIN READ ONLY;
SELECT dlock_dequeue(1);
ROLLBACK;
SELECT count(*) FROM dlock_waiters;
SELECT dlock_release(key, owner => 'me') FROM dlock_locks WHERE owner = 'me' AND key IN ('place', 'lazy') ORDER BY key;
