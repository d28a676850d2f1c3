# A waiter is woken, or looks by itself in time: no wakeup is lost.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

# There are no deadlock checks and no reaper.  Other timers make a waiter look, too, such as
# PostgreSQL's timer that fires ten seconds after a session became idle.  So it proves nothing
# that a waiter gets the lock in the end; the test checks what it sleeps for and what wakes it.
my $node = new_node(
	'wakeup', conf => q{
deadlock_timeout = 1h
max_prepared_transactions = 1
});
my ($first, $holder, $reader, $monitor) = map { client($node, $_) } qw(first holder reader monitor);
my $version;

#
# A key becomes free between a waiter's first look and its entry into the queue: the waiter
# looks again before it sleeps.
#
# To make this happen, a third process is stopped while it reads the queue and so has the lock
# that the waiter needs to enter it.  What the waiter waits for shows whether that worked; if
# not, it is tried again.
#

$first->ask_it('BEGIN; SAVEPOINT s');
$version = $holder->ask_it("SELECT dlock_acquire('key', '1h')");
$reader->start('DO $$ BEGIN LOOP PERFORM count(*) FROM dlock_waiters; END LOOP; END $$');

my $stopped = stop_with_lwlock(
	$node, $reader->pid, $first->pid,
	start => sub { $first->start("SELECT dlock_acquire('key', '1h', wait => '1h')") },
	else => qr/^Extension/,
	undo => sub {
		$monitor->ask_it('SELECT pg_cancel_backend(' . $first->pid . ')');
		$first->answer;
		$first->ask_it('ROLLBACK TO s');
	});
ok($stopped, 'the waiter has looked, and is not in the queue');
is($holder->ask_it("SELECT dlock_release('key', $version)"), 'released', 'the key becomes free');
kill 'CONT', $reader->pid;
my $event;
do { $event = waits_for($node, $first->pid) } until ($event =~ /^Client|^Extension/);
like($event, qr/^Client/, 'the waiter does not sleep');
$monitor->ask_it('SELECT pg_cancel_backend(' . $first->pid . ')') unless $event =~ /^Client/;
is($first->answer, $version + 1, 'it has looked again and got the lock');
$first->leave;
$monitor->ask_it('SELECT pg_cancel_backend(' . $reader->pid . ')');
$reader->answer;

#
# The waiter that has the turn is woken, however the transaction in its way ends.  It is stopped
# in its sleep; the pending signal shows whether it is woken.
#

# Let a statement wait for the key, and check that the sub wakes it.  Returns its answer, or
# nothing if it does not wait.
sub wakes
{
	my ($what, $key, $statement, $end) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $waiter = client($node, 'waiter');

	start_and_see($node, $waiter->pid, sub { $waiter->start($statement) });
	if (!stop_asleep($node, $waiter, $key))
	{
		note "$what: nobody waits: " . $waiter->answer;
		$waiter->leave;
		return;
	}
	$end->();
	my $woken = was_woken($waiter);
	ok($woken, "$what wakes the waiter");
	kill 'CONT', $waiter->pid;
	$monitor->ask_it('SELECT pg_cancel_backend(' . $waiter->pid . ')') unless $woken;
	my $answer = $waiter->answer;
	$waiter->leave;
	return $answer;
}

sub last_version { return $monitor->ask_it('SELECT last_value FROM dlock.versions') }

sub until_left
{
	my ($client) = @_;

	until_gone($node, $client->pid, 'the backend is gone');
	$client->lost unless $client->{gone};
	return;
}

# A statement that has reached the point where it waits for this advisory lock.
sub until_stuck
{
	my ($client, $lock) = @_;

	until_sql(
		$node,
		"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $lock AND NOT granted AND pid = "
		  . $client->pid,
		1,
		"the statement has come to $lock");
	return;
}

sub end_quit { my ($other) = @_; $other->leave; until_left($other); return }

sub end_vanish { my ($other) = @_; $other->vanish; until_left($other); return }

sub end_terminate
{
	my ($other) = @_;

	$monitor->ask_it('SELECT pg_terminate_backend(' . $other->pid . ')');
	until_left($other);
	return;
}

sub end_force
{
	my ($other, $key) = @_;

	$monitor->ask_it("SELECT dlock_force_release('$key', 'test')");
	return;
}

# In the middle of its statement, between two advisory locks.
sub end_go_on
{
	my ($other) = @_;

	$monitor->ask_it('SELECT pg_advisory_unlock(1)');
	until_stuck($other, 2);
	return;
}

$monitor->ask_it(
	'CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO once VALUES (1)');

# Description; what the other session does first, and a third one meanwhile; what ends it, as
# SQL or as a sub.  KEY stands for the key, STUCK for the point where a statement is held.
my $take = "SELECT dlock_acquire('KEY', '1h')";
my $take_session = "SELECT dlock_acquire('KEY', '1h', session => true)";
my $version_of = "(SELECT version FROM dlock_locks WHERE key = 'KEY')";
my $free = "SELECT dlock_release('KEY', $version_of)";
my $fence = "SELECT dlock_fence('KEY', $version_of)";
my $shorten = "SELECT dlock_refresh('KEY', $version_of, '1ms')";
my $stuck = 'PERFORM pg_advisory_lock_shared(1)';
my $stuck_again = 'PERFORM pg_advisory_lock_shared(2)';
my @ends = (
	[ 'a release', [$take], $free ],
	[ 'COMMIT', [ $take, 'BEGIN', $free ], 'COMMIT' ],
	[ 'COMMIT AND CHAIN', [ $take, 'BEGIN', $free ], 'COMMIT AND CHAIN' ],
	[ 'COMMIT of a subtransaction', [ $take, 'BEGIN', 'SAVEPOINT s', $free, 'RELEASE s' ], 'COMMIT' ],
	[ 'ROLLBACK', [ 'BEGIN', $take ], 'ROLLBACK' ],
	[ 'ROLLBACK AND CHAIN', [ 'BEGIN', $take ], 'ROLLBACK AND CHAIN' ],
	[ 'ROLLBACK TO SAVEPOINT', [ 'BEGIN', 'SAVEPOINT s', $take ], 'ROLLBACK TO s' ],
	[ 'ROLLBACK TO an outer SAVEPOINT', [ 'BEGIN', 'SAVEPOINT s', 'SAVEPOINT t', $take, 'RELEASE t' ], 'ROLLBACK TO s' ],
	[ 'an error', [ 'BEGIN', $take ], 'SELECT 1/0' ],
	[ 'an error after a SAVEPOINT', [ 'BEGIN', 'SAVEPOINT s', $take ], 'SELECT 1/0' ],
	[ 'a COMMIT that fails', [ 'BEGIN', $take, 'INSERT INTO once VALUES (1)' ], 'COMMIT' ],
	[ 'a PREPARE TRANSACTION that is refused', [ 'BEGIN', $take ], "PREPARE TRANSACTION 'p'" ],
	[ 'COMMIT in a DO block', [ $take, "DO \$\$ BEGIN PERFORM ($free); $stuck; COMMIT; $stuck_again; END \$\$" ], \&end_go_on ],
	[ 'ROLLBACK in a DO block', ["DO \$\$ BEGIN PERFORM ($take); $stuck; ROLLBACK; $stuck_again; END \$\$"], \&end_go_on ],
	[
		'an exception that is caught',
		["DO \$\$ BEGIN BEGIN PERFORM ($take); $stuck; RAISE 'no'; EXCEPTION WHEN raise_exception THEN END; $stuck_again; END \$\$"],
		\&end_go_on
	],
	[ 'a client that leaves a transaction open', [ 'BEGIN', $take ], \&end_quit ],
	[ 'a client that vanishes', [ 'BEGIN', $take ], \&end_vanish ],
	[ 'pg_terminate_backend()', [ 'BEGIN', $take ], \&end_terminate ],
	[ 'the end of a session that holds it', [$take_session], \&end_quit ],
	[ 'the end of one whose client vanishes', [$take_session], \&end_vanish ],
	[ 'the end of one that is terminated', [$take_session], \&end_terminate ],
	[ 'DISCARD ALL', [$take_session], 'DISCARD ALL' ],
	[ 'dlock_release_session()', [$take_session], 'SELECT dlock_release_session()' ],
	[ 'dlock_force_release()', [$take], \&end_force ],
	[ 'a refresh to a shorter TTL', [$take], $shorten ],

	# the lease has ended, and only the fence blocks
	[ 'COMMIT of a fence', [ $take, 'BEGIN', $fence ], 'COMMIT', $shorten ],
	[ 'ROLLBACK of a fence', [ $take, 'BEGIN', $fence ], 'ROLLBACK', $shorten ],
	[ 'ROLLBACK TO SAVEPOINT of a fence', [ $take, 'BEGIN', 'SAVEPOINT s', $fence ], 'ROLLBACK TO s', $shorten ],
	[ 'an error after a fence', [ $take, 'BEGIN', $fence ], 'SELECT 1/0', $shorten ],
	[ 'pg_terminate_backend() after a fence', [ $take, 'BEGIN', $fence ], \&end_terminate, $shorten ]);

foreach my $case (@ends)
{
	my ($what, $before, $end, $meanwhile) = @$case;
	my $key = "after $what";
	my $other = client($node, 'other');
	my $with_key = sub { return $_[0] =~ s/KEY/$key/gr };
	my $ends_inside = $before->[-1] =~ /^DO/;

	$monitor->ask_it('SELECT pg_advisory_lock(1), pg_advisory_lock(2)') if $ends_inside;
	foreach my $sql (map { $with_key->($_) } @$before)
	{
		if ($sql !~ /^DO/) { unlike($other->ask_it($sql), qr/^ERROR/, "$what: $sql") }
		else
		{
			$other->start($sql);
			until_stuck($other, 1);
		}
	}
	$monitor->ask_it($with_key->($meanwhile)) if $meanwhile;

	my $expected = last_version() + 1;
	my $answer = wakes($what, $key, "SELECT dlock_acquire('$key', '1h', wait => '1h')",
		sub { ref $end ? $end->($other, $key) : $other->ask_it($with_key->($end)) });
	is($answer, $expected, "$what: and it gets the lock");

	if ($ends_inside)
	{
		$monitor->ask_it('SELECT pg_advisory_unlock(2)');
		is($other->answer, '', 'the statement ends');
	}
	$other->leave;
}

#
# A new version, or the end of one, wakes a watcher.
#

my $seen = wakes('a grant', 'watched', "SELECT dlock_watch('watched', wait => '1h')",
	sub { $version = $holder->ask_it("SELECT dlock_acquire('watched', '1h')") });
is($seen, $version, 'a grant: the watcher sees it');
$seen = wakes('a release', 'watched', "SELECT dlock_watch('watched', $version, '1h')",
	sub { $holder->ask_it("SELECT dlock_release('watched', $version)") });
is($seen, '', 'a release: the watcher sees it');

#
# A waiter that leaves the queue wakes the next one, because it may have been woken for the free
# key and be gone before it looks.
#

foreach my $how ('cancel', 'terminate', 'vanish')
{
	my $key = "turn $how";
	my $first = client($node, 'first');
	my $pid = $first->pid;

	$version = $holder->ask_it("SELECT dlock_acquire('$key', '1h')");
	$first->ask_it('BEGIN');
	$first->start("SELECT dlock_acquire('$key', '1h', wait => '1h')");
	until_waiting($node, $first, $key);

	my $answer = wakes(
		"$how: the one that leaves",
		$key,
		"SELECT dlock_acquire('$key', '1h', wait => '1h')",
		sub {
			ok(stop_asleep($node, $first, $key), "$how: the first one sleeps");
			$holder->ask_it("SELECT dlock_release('$key', $version)");
			ok(was_woken($first), "$how: and is woken for the free key");
			if ($how eq 'vanish') { $first->vanish }
			else { $monitor->ask_it("SELECT pg_${how}_backend($pid)") }
			kill 'CONT', $pid;
			if ($how eq 'cancel') { is($first->answer, 'ERROR 57014', 'it is gone from the queue') }
			else { until_left($first) }
		});

	# the first one may have had the lock, and lost it with its transaction
	like($answer, qr/^\d+$/, "$how: the next one gets the lock");
	$first->leave;
}

#
# So does one that leaves with a place, before its transaction ends: there may be room for more.
#

foreach my $kind ('shared => true', 'slots => 2')
{
	my $key = "place of $kind" =~ s/\W+/ /gr;
	my $acquire = "SELECT dlock_acquire('$key', '1h', $kind, wait => '1h')";
	my $first = client($node, 'first');

	$version = $holder->ask_it("SELECT dlock_acquire('$key', '1h')");
	$first->ask_it('BEGIN');
	$first->start($acquire);
	until_waiting($node, $first, $key);

	my $answer = wakes(
		"$kind: the one that has got a place",
		$key, $acquire,
		sub {
			$holder->ask_it("SELECT dlock_release('$key', $version)");
			is($first->answer, $version + 1, "$kind: the first one has a place");
		});
	is($answer, $version + 2, "$kind: the next one has another, while the transaction is open");
	$first->ask_it('ROLLBACK');
	$first->leave;
}

#
# The reaper wakes waiters, too.  The waiter would look by itself when the lease ends, so it must
# be asleep and stopped before that; if that is too late, a longer lease is tried.
#

$node->append_conf('postgresql.conf', 'dlock.reap_interval = 10ms');
$node->reload;
my $answer;
for (my $ttl = 1; $ttl <= 64 && !defined $answer; $ttl *= 2)
{
	my $key = "reaped after $ttl s";

	$version = $holder->ask_it("SELECT dlock_acquire('$key', '$ttl s')");
	$answer = wakes(
		'the reaper',
		$key,
		"SELECT dlock_acquire('$key', '1h', wait => '1h')",
		sub {
			until_sql(
				$node,
				"SELECT (SELECT count(*) FROM dlock.locks WHERE key = '$key') + count(*)"
				  . " FROM pg_stat_activity WHERE backend_type = 'dlock reaper'",
				0,
				'the reaper has been here');
		});
}
is($answer, $version + 1, 'the reaper: and it gets the lock');

DlockWait::close_monitors();
close_clients($holder, $reader, $monitor);
$node->stop;
done_testing();
