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
SELECT dlock_enqueue('ticket', 'me', '1 h', 'my value') AS t \gset
SELECT pg_temp.state_of(:t);
SELECT key, state, position, version IS NOT NULL AS has_version FROM dlock_ticket(:t);
SELECT key, owner, value, ttl, state FROM dlock_get('ticket');
SELECT dlock_acquire('ticket', '1 h', 'me') = (SELECT version FROM dlock_ticket(:t)) AS same;
SELECT dlock_enqueue('ticket', 'me') = :t AS same_ticket;
SELECT dlock_dequeue(:t);

-- a key that is held
SELECT dlock_enqueue('ticket', 'you') AS t2 \gset
SELECT key, state, position, version FROM dlock_ticket(:t2);
SELECT key, pid, ticket = :t2 AS ours, owner, priority, slots, position, until FROM dlock_waiters;
SELECT dlock_acquire('ticket');
SELECT dlock_enqueue('ticket', 'they', wait => '1 ms') AS t3 \gset
SELECT pg_temp.state_of(:t3);
SELECT dlock_dequeue(:t2), dlock_dequeue(:t2), dlock_dequeue(:t3);
SELECT count(*) FROM dlock_ticket(:t2);
SELECT dlock_release('ticket', owner => 'me');

-- what is asked for is what is granted
SELECT dlock_enqueue('place', 'me', '1 h', priority => 7, cleanup => '5 s', slots => 3, at_least => '1 s', delay => '2 s') AS t \gset
SELECT pg_temp.state_of(:t);
SELECT owner, state, priority, slots FROM dlock_get('place');
SELECT cleanup, at_least, delay, lazy FROM dlock.locks WHERE key = 'place' AND held;
SELECT dlock_enqueue('lazy', 'me', lazy => true) AS t \gset
SELECT pg_temp.state_of(:t);
SELECT lazy, slots FROM dlock.locks WHERE key = 'lazy';

-- bad arguments
\set VERBOSITY sqlstate
SELECT dlock_enqueue(NULL, 'me');
SELECT dlock_enqueue('', 'me');
SELECT dlock_enqueue(repeat('k', 1025), 'me');
SELECT dlock_enqueue('k', NULL);
SELECT dlock_enqueue('k', '');
SELECT dlock_enqueue('k', repeat('o', 1025));
SELECT dlock_enqueue('k', 'me', '0');
SELECT dlock_enqueue('k', 'me', '1 month');
SELECT dlock_enqueue('k', 'me', '2 days');
SELECT dlock_enqueue('k', 'me', value => repeat('v', 1025));
SELECT dlock_enqueue('k', 'me', wait => '-1 s');
SELECT dlock_enqueue('k', 'me', priority => -1);
SELECT dlock_enqueue('k', 'me', cleanup => NULL);
SELECT dlock_enqueue('k', 'me', force => NULL);
SELECT dlock_enqueue('k', 'me', slots => 0);
SELECT dlock_enqueue('k', 'me', '1 s', at_least => '2 s');
SELECT dlock_enqueue('k', 'me', lazy => true, delay => '1 s');
SELECT dlock_dequeue(NULL);
\set VERBOSITY default
SELECT dlock_enqueue('k', NULL);
SELECT dlock_enqueue('k', 'me', value => repeat('v', 1025));
SELECT count(*) FROM dlock_ticket(NULL);
SELECT count(*) FROM dlock_ticket(-1);
SELECT dlock_dequeue(0);
BEGIN READ ONLY;
SELECT dlock_enqueue('k', 'me');
ROLLBACK;
BEGIN READ ONLY;
SELECT dlock_dequeue(1);
ROLLBACK;
SELECT count(*) FROM dlock_waiters;
SELECT dlock_release(key, owner => 'me') FROM dlock_locks WHERE owner = 'me' AND key IN ('place', 'lazy') ORDER BY key;
