# Many clients on keys that several hold: never more than a request allowed, nobody beside a writer,
# with limits that change, over a crash and a promotion, under an old snapshot; and sets of keys.
#
# What is checked does not come from dlock.  While a client has a grant it has a row in a table of
# its own, written behind a fence.  When it writes that row, it counts the others with a lower
# version: these were granted before it and are still there, so they must have fitted.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;

my $node = new_node('primary', streaming => 1, conf => q{
max_connections = 100
deadlock_timeout = 20ms
dlock.reap_interval = 20ms
autovacuum = on
autovacuum_naptime = 1s
});
my $dir = $node->basedir;

$node->safe_psql('postgres', q{
CREATE TABLE inside (key text, version bigint, slots int, client int, PRIMARY KEY (key, version));
CREATE TABLE violation (what text, key text, version bigint, slots int, beside text, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE tally (client int, what text, n int, PRIMARY KEY (client, what));

-- A grant begins to be used.  The fence shows that it is live, and keeps it so until we commit.
-- Each client commits this before it continues, so a snapshot shows who is inside.
CREATE FUNCTION enter(k text, v bigint, s int, c int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	before text[];
BEGIN
	PERFORM dlock_fence(k, v);
	INSERT INTO inside VALUES (k, v, s, c);
	-- a lower version that is still inside was there when we were granted
	SELECT array_agg(format('%s(%s)', i.version, i.slots)) INTO before FROM inside i WHERE i.key = k AND i.version < v;
	IF cardinality(before) >= s THEN
		INSERT INTO violation VALUES ('too many', k, v, s, before::text);
	END IF;
	IF EXISTS (SELECT FROM inside i WHERE i.key = k AND i.version < v AND i.slots = 1) THEN
		INSERT INTO violation VALUES ('beside a writer', k, v, s, before::text);
	END IF;
	INSERT INTO tally VALUES (c, CASE s WHEN 1 THEN 'x' WHEN 1000000 THEN 'r' ELSE 's' END, 1)
	    ON CONFLICT (client, what) DO UPDATE SET n = tally.n + 1;
END $$;
CREATE FUNCTION leave(k text, v bigint) RETURNS void LANGUAGE sql AS $$
	DELETE FROM inside WHERE key = k AND version = v;
$$;
});

# A grant of the given kind, used, left and given back.  What slots are is an expression of pgbench.
sub script
{
	my ($name, %params) = @_;
	my $file = "$dir/$name.pgbench";
	my $wait = $params{wait} // "'10s'";
	my $asks = $params{slots} eq 'any' ? 'shared => true' : 'slots => :s';
	my $counts = $params{slots} eq 'any' ? '1000000' : ':s';
	my $set = $params{slots} eq 'any' ? '' : "\\set s $params{slots}\n";
	my $key = $params{key} // "'k'";

	# a key may be chosen anew each time
	append_to_file($file, $set . ($params{before} // '') . qq{
SELECT coalesce(dlock_acquire($key, '1h', $asks, wait => $wait), 0) AS v \\gset
\\if :v > 0
SELECT enter($key, :v, $counts, :client_id);
} . ($params{stay} ? "\\sleep $params{stay} ms\n" : '') . qq{SELECT leave($key, :v);
SELECT dlock_release($key, :v);
\\endif
});
	return $file;
}

# pgbench with these scripts; its error output must be free of errors unless the server is stopped.
sub load
{
	my ($at, $seconds, $clients, @scripts) = @_;
	my ($out, $err) = ('', '');
	my $run = IPC::Run::start(
		[
			'pgbench', '-n', '-c', $clients, '-j', 2, '-T', $seconds, '-h', $at->host, '-p', $at->port,
			(map { ('-f', $_) } @scripts), 'postgres'
		],
		'>', \$out, '2>', \$err);

	return { run => $run, out => \$out, err => \$err };
}

sub finished
{
	my ($load, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $ok = $load->{run}->finish;

	ok($ok, "$what: pgbench") or diag(${ $load->{err} });
	unlike(${ $load->{err} }, qr/ERROR/, "$what: no client failed");
	my ($n) = ${ $load->{out} } =~ /transactions actually processed: (\d+)/;
	cmp_ok($n // 0, '>', 0, "$what: something was done");
	note "$what: $n";
	return;
}

sub no_violation
{
	my ($at, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is($at->safe_psql('postgres', "SELECT what || ' ' || key || ' ' || version || ' (' || slots || ') beside ' || beside FROM violation ORDER BY at LIMIT 3"),
		'', "$what: nobody was where he must not be");
	is($at->safe_psql('postgres', 'SELECT count(*) FROM inside i WHERE NOT EXISTS (SELECT FROM dlock_locks l WHERE l.key = i.key AND l.version = i.version)'),
		0, "$what: whoever is inside has a grant");
	return;
}

sub nobody_left
{
	my ($at, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is($at->safe_psql('postgres', 'SELECT (SELECT count(*) FROM inside), (SELECT count(*) FROM dlock_locks), (SELECT count(*) FROM dlock_waiters)'),
		'0|0|0', "$what: nothing is left");
	return;
}

# What clients that are gone have left behind is taken away, together with their rows.
sub tidy
{
	my ($at) = @_;

	$at->safe_psql('postgres', q{
BEGIN;
DELETE FROM inside;
SELECT dlock_force_release(key, 'tidy') FROM (SELECT DISTINCT key FROM dlock_locks) AS k;
COMMIT;
});
	return;
}

#
# Kinds and numbers that change
#

my $s3 = script('s3', slots => 3);
my $s2 = script('s2', slots => 2);
my $any = script('any', slots => 'random(2, 6)');
my $try = script('try', slots => 'random(2, 4)', wait => "'0'");
my $reader = script('reader', slots => 'any');
my $writer = script('writer', slots => 1);
my $far = script('far', slots => 'random(1, 3)', key => "'k' || :n", before => "\\set n random(1, 20)\n");

finished(load($node, 4, 12, $s3), 'a semaphore');
no_violation($node, 'a semaphore');
nobody_left($node, 'a semaphore');

# the limit changes while it is used
my @both = map { load($node, 5, 6, $_) } $s3, $s2;
finished($_, 'two limits') foreach @both;
no_violation($node, 'two limits');
finished(load($node, 5, 12, $any, $try), 'all limits, waiting and not');
no_violation($node, 'all limits');
nobody_left($node, 'all limits');

finished(load($node, 6, 16, $any, $try, $reader, $writer, $far), 'all kinds');
no_violation($node, 'all kinds');
nobody_left($node, 'all kinds');
is($node->safe_psql('postgres', "SELECT string_agg(DISTINCT what, ' ' ORDER BY what) FROM tally"), 'r s x', 'all kinds: of each something was done');
note $node->safe_psql('postgres', 'SELECT what, sum(n) FROM tally GROUP BY what');

# an old snapshot, which keeps every dead row of these keys
my $old = session($node);
ask($old, 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM inside');
finished(load($node, 6, 8, $any, $reader, $writer), 'under an old snapshot');
ask($old, 'COMMIT');
end_session($old);
no_violation($node, 'under an old snapshot');
nobody_left($node, 'under an old snapshot');

#
# Crashes in the middle
#

# these stay inside for a while, so that a crash finds some
my @slow = (
	script('slow_any', slots => 'random(2, 6)', stay => 20),
	script('slow_reader', slots => 'any', stay => 20),
	script('slow_far', slots => 'random(2, 3)', key => "'k' || :n", before => "\\set n random(1, 5)\n", stay => 20));
foreach my $how ('immediate stop', 'killed backend')
{
	my $load = load($node, 60, 12, @slow);

	$node->poll_query_until('postgres', "SELECT count(*) >= 3 AND count(*) FILTER (WHERE key = 'k') >= 2 FROM inside") or die 'nobody is inside';
	if ($how eq 'immediate stop')
	{
		$node->stop('immediate');
		$load->{run}->finish;
		$node->start;
	}
	else
	{
		my $pid = $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE query ~ 'dlock_acquire|enter|leave' AND pid <> pg_backend_pid() LIMIT 1");

		kill 'KILL', $pid;
		$load->{run}->finish;
		wait_until('the crash is over', sub { return ($node->psql('postgres', 'SELECT 1'))[0] == 0 });
	}
	no_violation($node, $how);

	# what is left counts: a limit is exact beside it
	my $left = $node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key = 'k'");
	note "$left grants are left";
	is($node->safe_psql('postgres', "SELECT dlock_acquire('k') IS NULL"), $left > 0 ? 't' : 'f', "$how: what is left keeps a writer out");
	finished(load($node, 3, 8, script("beside_$left", slots => "$left + random(2, 3)")), "$how: beside what is left") if $left > 0;
	no_violation($node, "$how, beside what is left");
	tidy($node);
	finished(load($node, 3, 12, $any, $reader, $writer, $far), "$how: after it");
	no_violation($node, "$how, after it");
	nobody_left($node, $how);
}

#
# Sets of keys
#

# 16 clients on random subsets in random order.  What a client has is in a table; two clients
# never have the same key.
$node->safe_psql('postgres', q{
CREATE TABLE owned (key text, client int, version bigint);
CREATE FUNCTION take_set(c int, n int, patience interval) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	keys text[];
	versions bigint[];
BEGIN
	SELECT array_agg('set' || i ORDER BY random()) INTO keys FROM (SELECT i FROM generate_series(1, 12) i ORDER BY random() LIMIT n) x;
	versions := dlock_acquire_all(keys, '1h', wait => patience);
	IF versions IS NULL THEN
		RETURN false;
	END IF;
	INSERT INTO owned SELECT k, c, v FROM unnest(keys, versions) AS x(k, v);
	RETURN true;
END $$;
CREATE FUNCTION use_set(c int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dlock_fence(key, version) FROM owned WHERE client = c;
	INSERT INTO violation SELECT 'two owners', key, version, 1, (SELECT string_agg(o.client::text, ' ') FROM owned o WHERE o.key = owned.key)
	  FROM owned WHERE client = c AND EXISTS (SELECT FROM owned o WHERE o.key = owned.key AND o.client <> c);
	-- and all their TTLs are the same
	INSERT INTO violation SELECT 'apart', min(l.key), min(l.version), 1, (max(l.expires_at) - min(l.expires_at))::text
	  FROM owned JOIN dlock_locks l USING (key, version) WHERE client = c HAVING max(l.expires_at) - min(l.expires_at) > '1 ms';
	INSERT INTO tally VALUES (c, 'set', 1) ON CONFLICT (client, what) DO UPDATE SET n = tally.n + 1;
END $$;
CREATE FUNCTION give_set(c int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	o owned;
BEGIN
	FOR o IN DELETE FROM owned WHERE client = c RETURNING * LOOP
		IF dlock_release(o.key, o.version) <> 'released' THEN
			RAISE EXCEPTION 'lost %', o;
		END IF;
	END LOOP;
END $$;
});
my $sets = "$dir/sets.pgbench";
append_to_file($sets, q{
\set n random(1, 5)
SELECT take_set(:client_id, :n, '1min')::int AS taken \gset
\if :taken
SELECT use_set(:client_id);
SELECT give_set(:client_id);
\endif
});
my $try_sets = "$dir/try_sets.pgbench";
append_to_file($try_sets, q{
SELECT take_set(:client_id, 3, '0')::int AS taken \gset
\if :taken
SELECT use_set(:client_id);
SELECT give_set(:client_id);
\endif
});
my $log = -s $node->logfile;
finished(load($node, 8, 16, $sets), 'sets of keys');
no_violation($node, 'sets of keys');
finished(load($node, 4, 16, $sets, $try_sets), 'sets of keys, waiting and not');
no_violation($node, 'sets of keys, waiting and not');
unlike(slurp_file($node->logfile, $log), qr/deadlock detected/, 'sets of keys: no deadlock');
is($node->safe_psql('postgres', "SELECT count(*), min(n) > 0 FROM tally WHERE what = 'set'"), '16|t', 'sets of keys: nobody starves');
note $node->safe_psql('postgres', "SELECT min(n), max(n), sum(n) FROM tally WHERE what = 'set'");
nobody_left($node, 'sets of keys');

#
# A standby takes over in the middle
#

my $standby = new_standby($node, 'standby');
make_synchronous($node, $standby);
my $load = load($node, 60, 8, @slow);
$node->poll_query_until('postgres', "SELECT count(*) >= 3 AND count(*) FILTER (WHERE key = 'k') >= 2 FROM inside") or die 'nobody is inside';
$node->stop('immediate');
$load->{run}->finish;
promote($standby);
no_violation($standby, 'promoted');
my $left = $standby->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key = 'k'");
note "$left grants are left";
finished(load($standby, 3, 8, script('after_promotion', slots => "$left + random(2, 3)")), 'promoted: beside what is left');
no_violation($standby, 'promoted, beside what is left');
tidy($standby);
finished(load($standby, 3, 8, $any, $reader, $writer, $far), 'promoted: after it');
no_violation($standby, 'promoted, after it');
nobody_left($standby, 'promoted');
$standby->stop;

done_testing();
