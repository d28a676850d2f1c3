# Everything at once, for ten seconds: no two holders, no lost wakeup, and
# nothing is left behind.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";

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

my $node = new_node(
	'stress', conf => q{
max_connections = 150
deadlock_timeout = 100ms
dlock.reap_interval = 100ms
fsync = off
log_min_messages = fatal
});

# The register is what the locks protect.  Whoever has the lock says so, works
# for a moment, and says goodbye, fenced each time; "inside" tells an overlap.
$node->safe_psql(
	'postgres', q{
CREATE TABLE register (key text PRIMARY KEY, inside bigint, last bigint NOT NULL, entries int NOT NULL);
INSERT INTO register SELECT 's' || i, NULL, 0, 0 FROM generate_series(1, 5) i;
CREATE TABLE broken (what text);
CREATE FUNCTION enter(k text, v bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE r register;
BEGIN
  IF v IS NULL THEN RETURN; END IF;
  PERFORM dlock_fence(k, v);
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
  IF v IS NULL THEN RETURN; END IF;
  PERFORM dlock_fence(k, v);
  SELECT * INTO r FROM register WHERE key = k FOR UPDATE;
  IF r.inside IS DISTINCT FROM v THEN
    INSERT INTO broken VALUES (format('%s: version %s meets %s', k, v, r.inside));
  END IF;
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
	# the whole of it in a transaction, committed or not
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
	# out of order on purpose: deadlocks
	'two' => q{
BEGIN;
SELECT coalesce(dlock_acquire('s' || :key, '2s', wait => :pause * interval '1ms'), 0) AS v \gset
SELECT coalesce(dlock_acquire('s' || :other, '2s', wait => :pause * interval '1ms'), 0) AS v \gset
ROLLBACK;
},
	'priority' => q{
SELECT coalesce(dlock_acquire('s' || :key, '2s', wait => :pause * interval '1ms', priority => :priority, cleanup => :cleanup * interval '1ms', force => :coin = 1), 0) AS v \gset
\if :v
SELECT enter('s' || :key, :v);
SELECT work('s' || :key, :v);
SELECT dlock_release('s' || :key, :v);
\endif
},
	# left to expire, or to its session's end
	'abandon' => q{
SELECT dlock_acquire('s' || :key, '20ms', wait => :pause * interval '1ms', session => :coin = 1);
},
	'watch' => q{
SELECT dlock_watch('s' || :key, NULL, :pause * interval '1ms');
},
	'call' => q{
CALL dlock_lock('s' || :key, '30ms', wait => :pause * interval '1ms', owner => 'call');
});
my %weight = (
	wait => 8, try => 3, transaction => 6, savepoint => 3, two => 3,
	priority => 6, abandon => 2, watch => 2, call => 1);
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

# A client of pgbench ends with its first error that is not a deadlock, and
# all do when they are killed: so there are many small runs, one after the
# other, until the time is up.
my $until = time() + $SECONDS;
my @runs;
my %ended = (ok => 0, failed => 0);
my $errors = '';

sub run_clients
{
	my ($clients) = @_;
	my %run = (out => '', err => '');

	$run{handle} = IPC::Run::start(
		[
			'pgbench', '-n', '-c', $clients, '-j', 1, '-T', 3, '--max-tries=1',
			'--random-seed=' . int(rand(2**31)),
			'-h', $node->host, '-p', $node->port, @files, 'postgres'
		],
		'<', \undef, '>', \$run{out}, '2>', \$run{err});
	return \%run;
}

my $monitor = client($node, 'monitor');
my $killer = client($node, 'killer');
my %free_since;
my $worst = 0;
my $samples = 0;
my $most_waiting = 0;
my %done = (cancel => 0, terminate => 0);

# First in line although the key is free: how long?  One and the same waiter
# must not stay so while nobody has the key; an open transaction has it too.
sub sample
{
	my $now = time();
	my %free;

	foreach my $line (
		split /\n/,
		$monitor->ask_it(q{
SELECT w.key || ' ' || w.pid || ' ' || extract(epoch FROM w.since)
  FROM dlock_waiters w JOIN pg_stat_activity a USING (pid)
 WHERE position = 1 AND wait_event_type = 'Extension'
   AND NOT EXISTS (SELECT FROM dlock_locks l WHERE l.key = w.key)
   AND NOT EXISTS (SELECT FROM pg_stat_activity o WHERE o.backend_xid IS NOT NULL)}))
	{
		$free{$line} = 1;
		$free_since{$line} //= $now;
		$worst = $now - $free_since{$line} if $now - $free_since{$line} > $worst;
	}
	delete $free_since{$_} foreach grep { !$free{$_} } keys %free_since;
	my $waiting = $monitor->ask_it('SELECT count(*) FROM dlock_waiters');
	$most_waiting = $waiting if $waiting > $most_waiting;
	$samples++;
	return;
}

push @runs, run_clients(4) foreach 1 .. 15;
while (@runs)
{
	my @going;

	foreach my $run (@runs)
	{
		eval { $run->{handle}->pump_nb; };
		if ($run->{handle}->pumpable) { push @going, $run; next }
		eval { $run->{handle}->finish; };
		$ended{ $run->{handle}->result == 0 ? 'ok' : 'failed' }++;
		$errors .= $run->{err};
		push @going, run_clients(4) if time() < $until;
	}
	@runs = @going;
	sample();

	# one victim in a while, cancelled or terminated
	my $how = rand() < 0.8 ? 'cancel' : 'terminate';
	$done{$how}++
	  if time() < $until
	  && $killer->ask_it(
		"SELECT pg_${how}_backend(pid) FROM pg_stat_activity"
		  . " WHERE application_name = 'pgbench' AND state = 'active' ORDER BY random() LIMIT 1") eq 't';
	usleep(10_000);
}

note sprintf('runs: %d ended well, %d with errors; %d cancels, %d terminations; %d samples, at most %d waiting, %.3f s the longest first in line of a free key',
	$ended{ok}, $ended{failed}, $done{cancel}, $done{terminate}, $samples, $most_waiting, $worst);
my %kinds;
$kinds{$1}++ while $errors =~ /(?:ERROR|FATAL):  ([^\n]*)/g;
note "$_: $kinds{$_}" foreach sort keys %kinds;

# Errors that are meant to happen, and no others.
my @unexpected = grep {
	!/^canceling statement due to user request/
	  && !/^terminating connection due to administrator command/
	  && !/^deadlock detected/
	  && !/did not yield in time/
	  && !/is not held with version/
} keys %kinds;
is("@unexpected", '', 'no error that is not meant to happen');

is($monitor->ask_it('SELECT count(*) FROM broken'), 0, 'no two holders at a time, and versions rise')
  or diag($monitor->ask_it('SELECT what FROM broken LIMIT 10'));
cmp_ok($monitor->ask_it('SELECT min(entries) FROM register'), '>', 10, 'every key was used');
cmp_ok($most_waiting, '>', 3, 'there was a queue');
cmp_ok($worst, '<', 1, 'nobody sleeps first in line of a free key');
is($monitor->ask_it('SELECT count(*) FROM dlock_waiters'), 0, 'the queue is empty');

# All clients are gone: no session lock is left, and what was left to expire
# goes.
is($monitor->ask_it('SELECT count(*) FROM dlock_locks WHERE pid IS NOT NULL'), 0, 'no session lock is left');
until_sql($node, 'SELECT count(*) FROM dlock_locks', 0, 'all leases end');
foreach my $i (1 .. 5)
{
	like($monitor->ask_it("SELECT dlock_acquire('s$i', '1h')"), qr/^\d+$/, "s$i can be had");
}
is($monitor->ask_it("SELECT count(*) = count(DISTINCT key) FROM dlock.locks"), 't', 'one row a key');

close_clients($monitor, $killer);
DlockWait::close_monitors();
$node->stop;
done_testing();
