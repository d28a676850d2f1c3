# Everything at once, for ten seconds: there are no two holders, no wakeup is lost, and
# nothing is left behind.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use DlockTest;
use DlockWait;

my $SECONDS = $ENV{DLOCK_STRESS_SECONDS} // 10;
my $seed = $ENV{DLOCK_STRESS_SEED} // int(rand(2**31));
note "seed $seed (DLOCK_STRESS_SEED)";
srand($seed);

# There are no deadlock checks and no reaper, because either would make up for a lost wakeup.
my $node = new_node(
	'stress', conf => q{
max_connections = 150
deadlock_timeout = 10min
fsync = off
log_min_messages = fatal
});

# The register is what the locks protect.  A holder enters itself, works for a moment and
# removes itself, fenced each time; "inside" shows an overlap.
$node->safe_psql(
	'postgres', q{
CREATE TABLE register (key text PRIMARY KEY, inside bigint, last bigint NOT NULL, entries int NOT NULL);
INSERT INTO register SELECT 's' || i, NULL, 0, 0 FROM generate_series(1, 5) i;
CREATE TABLE broken (what text);
CREATE FUNCTION enter(k text, v bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE r register;
BEGIN
  BEGIN
    PERFORM dlock_fence(k, v);
  EXCEPTION WHEN SQLSTATE 'LK001' THEN
    RETURN;
  END;
  SELECT * INTO r FROM register WHERE key = k FOR UPDATE;
  -- the one before may have been killed or preempted, but is fenced off
  IF v < r.last THEN
    INSERT INTO broken VALUES (format('%s: version %s after %s', k, v, r.last));
  END IF;
  UPDATE register SET inside = v, last = v, entries = entries + 1 WHERE key = k;
END $$;
CREATE FUNCTION work(k text, v bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE r register;
BEGIN
  BEGIN
    PERFORM dlock_fence(k, v);
  EXCEPTION WHEN SQLSTATE 'LK001' THEN
    RETURN;
  END;
  SELECT * INTO r FROM register WHERE key = k FOR UPDATE;
  IF r.inside IS DISTINCT FROM v THEN
    INSERT INTO broken VALUES (format('%s: version %s meets %s', k, v, r.inside));
  END IF;
END $$;
CREATE FUNCTION demand(k text, pause interval, prio int, cleanup interval, force boolean) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RETURN dlock_acquire(k, '2s', wait => pause, priority => prio, cleanup => cleanup, force => force);
EXCEPTION WHEN lock_not_available THEN
  RETURN NULL;
END $$;
});

my %script = (
	# a short wait, and a fenced critical section
	'wait' => q{
SELECT coalesce(dlock_acquire('s' || :key, '2s', wait => :pause * interval '1ms', cleanup => :cleanup * interval '1ms'), 0) AS v \gset
\if :v
SELECT enter('s' || :key, :v);
SELECT work('s' || :key, :v);
SELECT dlock_release('s' || :key, :v);
\endif
},
	'try' => q{
SELECT coalesce(dlock_acquire('s' || :key, '2s'), 0) AS v \gset
\if :v
SELECT enter('s' || :key, :v);
SELECT work('s' || :key, :v);
SELECT dlock_release('s' || :key, :v);
\endif
},
	# all of it in one transaction, committed or rolled back
	'transaction' => q{
BEGIN;
SELECT coalesce(dlock_acquire('s' || :key, '2s', wait => :pause * interval '1ms'), 0) AS v \gset
\if :v
SELECT enter('s' || :key, :v);
SELECT work('s' || :key, :v);
SELECT dlock_release('s' || :key, :v);
\endif
\if :coin
COMMIT;
\else
ROLLBACK;
\endif
},
	'savepoint' => q{
BEGIN;
SAVEPOINT s;
SELECT coalesce(dlock_acquire('s' || :key, '2s', wait => :pause * interval '1ms'), 0) AS v \gset
ROLLBACK TO s;
SELECT coalesce(dlock_acquire('s' || :key, '2s', wait => :pause * interval '1ms', session => :coin = 1), 0) AS v \gset
COMMIT;
\if :v
SELECT dlock_release('s' || :key, :v);
\endif
},
	# out of order on purpose: they time out on each other
	'two' => q{
BEGIN;
SELECT coalesce(dlock_acquire('s' || :key, '2s', wait => :pause * interval '1ms'), 0) AS v \gset
SELECT coalesce(dlock_acquire('s' || :other, '2s', wait => :pause * interval '1ms'), 0) AS v \gset
ROLLBACK;
},
	# not on all keys, because a request that overtakes would wake a forgotten waiter
	'priority' => q{
\set key random(1, 2)
SELECT coalesce(demand('s' || :key, :pause * interval '1ms', :priority, :cleanup * interval '1ms', :coin = 1), 0) AS v \gset
\if :v
SELECT enter('s' || :key, :v);
SELECT work('s' || :key, :v);
SELECT dlock_release('s' || :key, :v);
\endif
},
	# left to expire, or to the end of its session
	'abandon' => q{
SELECT dlock_acquire('s' || :key, '20ms', wait => :pause * interval '1ms', session => :coin = 1);
},
	# long enough to notice a forgotten waiter
	'patient' => q{
SELECT coalesce(dlock_acquire('s' || :key, '2s', wait => '1min'), 0) AS v \gset
\if :v
SELECT enter('s' || :key, :v);
SELECT work('s' || :key, :v);
SELECT dlock_release('s' || :key, :v);
\endif
},
	'watch' => q{
SELECT dlock_watch('s' || :key, NULL, :pause * interval '1ms');
},
	'call' => q{
CALL dlock_lock('s' || :key, '30ms', wait => :pause * interval '1ms', owner => 'call');
});
my %weight = (
	wait => 8, try => 3, transaction => 6, savepoint => 3, two => 3,
	priority => 6, abandon => 2, watch => 2, call => 1, patient => 3);
my @files;
foreach my $name (sort keys %script)
{
	my $file = $node->basedir . "/$name.pgbench";

	append_to_file($file, q{
\set key random(1, 5)
\set other random(1, 5)
\set pause random(0, 100)
\set cleanup random(0, 1) * random(1, 20)
\set priority random(0, 3)
\set coin random(0, 1)
} . $script{$name});
	push @files, '-f', "$file\@$weight{$name}";
}

# A pgbench client ends when it is cancelled or terminated.  So there are many short runs, one
# after the other, until the time is up.
my $until = time() + $SECONDS;
my @runs;
my %ended = (ok => 0, failed => 0);
my $errors = '';

sub run_clients
{
	my ($clients) = @_;
	my %run = (out => '', err => '');
	local $ENV{PGAPPNAME} = 'stress';

	$run{handle} = IPC::Run::start(
		[
			'pgbench', '-n', '-c', $clients, '-j', 1, '-T', 1, '--max-tries=1',
			'--random-seed=' . int(rand(2**31)),
			'-h', $node->host, '-p', $node->port, @files, 'postgres'
		],
		'<', \undef, '>', \$run{out}, '2>', \$run{err});
	return \%run;
}

my $monitor = client($node, 'monitor');
my $sampler = client($node, 'sampler');
my $killer = client($node, 'killer');

# How long has a waiter been the first although the key is free?  Consecutive samples of the
# same wait show that.  An open transaction may have the key, but none is open for long.
$monitor->ask_it(q{
CREATE TABLE samples (n int, waiting int);
CREATE TABLE first_of_free (n int, key text, pid int, since timestamptz, at timestamptz);
});
$sampler->start("DO \$\$ BEGIN FOR i IN 1 .. $SECONDS * 20 LOOP
INSERT INTO samples SELECT i, count(*) FROM dlock_waiters;
INSERT INTO first_of_free SELECT i, key, pid, since, clock_timestamp() FROM dlock_waiters w
 WHERE position = 1 AND NOT EXISTS (SELECT FROM dlock_locks l WHERE l.key = w.key);
COMMIT; PERFORM pg_sleep(0.05); END LOOP; END \$\$");

# A victim from time to time.
$killer->ask_it('CREATE TEMP TABLE killed (how text)');
$killer->ask_it('SELECT setseed(' . rand() . ')');
$killer->start("DO \$\$ DECLARE victim int; BEGIN FOR i IN 1 .. $SECONDS * 20 LOOP
SELECT pid INTO victim FROM pg_stat_activity WHERE application_name = 'stress' AND state = 'active' ORDER BY random() LIMIT 1;
IF random() < 0.8 THEN
 INSERT INTO killed SELECT 'cancel' WHERE pg_cancel_backend(victim);
ELSE
 INSERT INTO killed SELECT 'terminate' WHERE pg_terminate_backend(victim);
END IF;
COMMIT; PERFORM pg_sleep(0.05); END LOOP; END \$\$");

push @runs, run_clients(3) foreach 1 .. 20;
while (@runs)
{
	my @going;

	foreach my $run (@runs)
	{
		eval { $run->{handle}->pump_nb; };
		if ($run->{handle}->pumpable) { push @going, $run; next }
		$ended{ eval { $run->{handle}->finish; } ? 'ok' : 'failed' }++;
		$errors .= $run->{err};
		push @going, run_clients(3) if time() < $until;
	}
	@runs = @going;
	usleep(20_000);
}
is($sampler->answer, '', 'the samples were taken');
is($killer->answer, '', 'the victims were chosen');

my $killed = $killer->ask_it(q{SELECT count(*) FILTER (WHERE how = 'cancel') || ' cancels, ' || count(*) FILTER (WHERE how = 'terminate') || ' terminations' FROM killed});
my ($samples, $most_waiting) = split /\|/, $monitor->ask_it('SELECT count(*), max(waiting) FROM samples');
my $worst = $monitor->ask_it(q{
SELECT coalesce(max(extract(epoch FROM lasted)), 0) FROM
 (SELECT max(at) - min(at) AS lasted FROM
   (SELECT *, n - row_number() OVER (PARTITION BY key, pid, since ORDER BY n) AS island FROM first_of_free) AS s
  GROUP BY key, pid, since, island) AS l});
note sprintf('runs: %d ended well, %d with errors; %s; %d samples, at most %d waiting, %.3f s the longest first in line of a free key; entries: %s',
	$ended{ok}, $ended{failed}, $killed, $samples, $most_waiting, $worst,
	$monitor->ask_it('SELECT sum(entries) FROM register'));
my %kinds;
$kinds{$1}++ while $errors =~ /(?:ERROR|FATAL):  ([^\n]*)/g;
note "$_: $kinds{$_}" foreach sort keys %kinds;

# The expected errors, and no others.
my @unexpected = grep {
	!/^canceling statement due to user request/
	  && !/^terminating connection due to administrator command/
} keys %kinds;
is("@unexpected", '', 'no error that is not meant to happen');

is($monitor->ask_it('SELECT count(*) FROM broken'), 0, 'no two holders at a time, and versions rise')
  or diag($monitor->ask_it('SELECT what FROM broken LIMIT 10'));
cmp_ok($monitor->ask_it('SELECT min(entries) FROM register'), '>', 10, 'every key was used');
cmp_ok($most_waiting, '>', 3, 'there was a queue');
cmp_ok($worst, '<', 1, 'nobody sleeps first in line of a free key');
is($monitor->ask_it('SELECT count(*) FROM dlock_waiters'), 0, 'the queue is empty');

# All clients are gone: no session lock is left, and the other locks expire.
is($monitor->ask_it('SELECT count(*) FROM dlock_locks WHERE pid IS NOT NULL'), 0, 'no session lock is left');
until_sql($node, 'SELECT count(*) FROM dlock_locks', 0, 'all leases end');
foreach my $i (1 .. 5)
{
	like($monitor->ask_it("SELECT dlock_acquire('s$i', '1h')"), qr/^\d+$/, "s$i can be had");
}
is($monitor->ask_it("SELECT count(*) = count(DISTINCT key) FROM dlock.locks"), 't', 'one row a key');

close_clients($monitor, $sampler, $killer);
DlockWait::close_monitors();
$node->stop;
done_testing();
