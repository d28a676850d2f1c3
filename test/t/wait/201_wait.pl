# Waiting for a lock: the order of the queue, which waiter is woken, and how to leave.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

# Only the test frees anything: the reaper is off.
my $node = new_node(
	'wait', conf => q{
max_connections = 80
deadlock_timeout = 60s
client_connection_check_interval = 0
});

my $now = client($node, 'now');
my ($a, $b, $c, $d, $e) = map { client($node, $_) } qw(a b c d e);

# A new key for each part.
my $key = 'k0';
sub fresh { return $key++ && $key; }
sub take { return $now->ask_it("SELECT dlock_acquire('$key', '1h')"); }
sub give { return $now->ask_it("SELECT dlock_release('$key', $_[0])"); }

# Start a client's wait and check that it sleeps.
sub waits
{
	my ($client, $args) = @_;

	$client->start("SELECT dlock_acquire('$key', '1h'" . ($args ? ", $args" : '') . ')');
	until_waiting($node, $client, $key);
	return;
}

# The client has got the lock, with a version above the last one; it releases it.
sub got
{
	my ($client, $before, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $version = $client->answer;

	cmp_ok($version, '>', $before, "$what: $client->{name} has it");
	return $version;
}

#
# Order
#

fresh();
my $version = take();
waits($_, "wait => '1h'") foreach $a, $b, $c;
until_queue($node, $key, 'a b c');
is($d->ask_it("SELECT dlock_acquire('$key')"), '', 'a try does not wait');
is(give($version), 'released', 'released');
$version = got($a, $version, 'first come, first served');
until_queue($node, $key, 'b c');
is($a->ask_it("SELECT dlock_release('$key', $version)"), 'released', 'a releases');
$version = got($b, $version, 'first come, first served');
is($b->ask_it("SELECT dlock_release('$key', $version)"), 'released', 'b releases');
$version = got($c, $version, 'first come, first served');
is($c->ask_it("SELECT dlock_release('$key', $version)"), 'released', 'c releases');
is(queue_of($node, $key), '', 'nobody is left');

# These cannot preempt the holder, which has the highest priority.
fresh();
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h', priority => 100)");
waits($a, "wait => '1h'");
waits($b, "wait => '1h', priority => 5");
waits($c, "wait => '1h', priority => 5");
waits($d, "wait => NULL, priority => 7");
until_queue($node, $key, 'd b c a', 'higher priority first, then by arrival');
is( $now->ask_it(
		"SELECT string_agg(format('%s %s %s', position, priority, until IS NULL), ', ' ORDER BY position)"
		  . " FROM dlock_waiters WHERE key = '$key'"),
	'1 7 t, 2 5 f, 3 5 f, 4 0 f',
	'dlock_waiters shows place, priority and whether there is a limit');
is( $now->ask_it(
		"SELECT bool_and(since BETWEEN now() - interval '1 min' AND clock_timestamp())"
		  . " AND bool_and(until - since BETWEEN '59 min' AND '61 min') FROM dlock_waiters WHERE key = '$key'"),
	't',
	'dlock_waiters shows since and until');
is( $now->ask_it("SELECT DISTINCT wait_event_type || '/' || (wait_event IN ('Extension', 'DlockAcquire'))"
		  . " FROM pg_stat_activity WHERE pid IN (SELECT pid FROM dlock_waiters)"),
	'Extension/true',
	'pg_stat_activity shows the wait');
give($version);
foreach my $client ($d, $b, $c, $a)
{
	$version = got($client, $version, 'by priority');
	$client->ask_it("SELECT dlock_release('$key', $version)");
}

#
# No overtaking
#

# a has been woken for the free key but is kept from taking it.  It is still the first.
fresh();
$version = take();
waits($a, "wait => '1h'");
$now->ask_it('BEGIN');
give($version);
is($now->ask_it("SELECT dlock_acquire('$key', '1h')"),
	'', 'a client that releases does not get the lock again before the queue');
is($b->ask_it("SELECT dlock_acquire('$key', '1h')"),
	'', 'busy while the release is not committed');
$now->ask_it('COMMIT');
$version = got($a, $version, 'the release was committed');
$a->ask_it("SELECT dlock_release('$key', $version)");

# A stopped waiter keeps its place.
fresh();
$version = take();
waits($a, "wait => '1h'");
waits($b, "wait => '1h'");
kill 'STOP', $a->pid;
give($version);
is($c->ask_it("SELECT dlock_acquire('$key', '1h')"),
	'', 'a try does not overtake a waiter that is slow to wake');
is($now->ask_it("SELECT dlock_acquire('$key', '1h')"),
	'', 'the client that released does not either');
$c->start("SELECT dlock_acquire('$key', '1h', wait => '1h')");
until_sql($node, "SELECT position FROM dlock_waiters WHERE pid = $c->{pid}",
	3, 'a newcomer stands behind');
is($d->ask_it("SELECT dlock_acquire('$key', '1h', wait => '10ms')"),
	'', 'and a short wait ends without it');
is($now->ask_it("SELECT count(*) FROM dlock_locks WHERE key = '$key' AND state <> 'pending'"),
	0, 'free, and nobody took it');
is( $e->ask_it("SELECT dlock_acquire('$key', '1h', priority => 1) > $version"),
	't',
	'but a higher priority goes first');
$version = $e->ask_it("SELECT version FROM dlock_locks WHERE key = '$key'");
kill 'CONT', $a->pid;
until_queue($node, $key, 'a b c', 'all wait again');
$e->ask_it("SELECT dlock_release('$key', $version)");
foreach my $client ($a, $b, $c)
{
	$version = got($client, $version, 'in order');
	$client->ask_it("SELECT dlock_release('$key', $version)");
}

# A retry by the same owner does not queue.
fresh();
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h', owner => 'me')");
waits($a, "wait => '1h'");
is($b->ask_it("SELECT dlock_acquire('$key', '1h', owner => 'me')"),
	$version, 'a retry of the holder is not blocked by the queue');
is($b->ask_it("SELECT dlock_acquire('$key', '1h', owner => 'me', wait => '1h')"),
	$version, 'an acquire with a wait does not either');
until_queue($node, $key, 'a', 'the waiter has kept its place');
give($version);
$version = got($a, $version, 'after the retry');
$a->ask_it("SELECT dlock_release('$key', $version)");

# A retry while the transaction of the first request is still open.
fresh();
$now->ask_it('BEGIN');
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h', owner => 'me')");
waits($a, "wait => '1h'");
waits($b, "wait => '1h', owner => 'me'");
until_queue($node, $key, 'a b');
$now->ask_it('COMMIT');
$now->ask_it("SELECT dlock_release('$key', $version)");
$version = got($a, $version, 'a came first');
$a->ask_it("SELECT dlock_release('$key', $version)");
$version = got($b, $version, 'then b');
$b->ask_it("SELECT dlock_release('$key', $version)");

#
# What wakes a waiter
#

foreach my $end ('ROLLBACK', 'ROLLBACK TO s', 'error', 'terminate')
{
	fresh();
	my $holder = client($node, 'holder');

	$holder->ask_it('BEGIN; SAVEPOINT s');
	$version = $holder->ask_it("SELECT dlock_acquire('$key', '1h')");
	waits($a, "wait => '1h'");
	waits($b, "wait => '1h'");
	if ($end eq 'error') { $holder->ask_it('SELECT 1/0; ROLLBACK') }
	elsif ($end eq 'terminate')
	{
		$now->ask_it("SELECT pg_terminate_backend($holder->{pid})");
	}
	else { $holder->ask_it($end) }
	$version = got($a, $version, "rollback of the grant by $end");
	until_queue($node, $key, 'b');
	$a->ask_it("SELECT dlock_release('$key', $version)");
	$version = got($b, $version, "after that");
	$b->ask_it("SELECT dlock_release('$key', $version)");
	$end eq 'terminate' ? $holder->lost : $holder->leave;
}

# A release that is rolled back frees nothing, and the queue continues to work.
fresh();
$version = take();
$now->ask_it('BEGIN');
give($version);
waits($a, "wait => '1h'");
$now->ask_it('ROLLBACK');
until_queue($node, $key, 'a', 'a release that was rolled back');
is($now->ask_it("SELECT dlock_check('$key', $version)"), 'held', 'is not one');
give($version);
$version = got($a, $version, 'the second release');
$a->ask_it("SELECT dlock_release('$key', $version)");

# Expiry, while no other process does anything.
fresh();
$version = $now->ask_it("SELECT dlock_acquire('$key', '500ms')");
$a->start("SELECT dlock_acquire('$key', '1h', wait => '1h')");
$version = got($a, $version, 'expiry');
$a->ask_it("SELECT dlock_release('$key', $version)");

# A lease that is shortened while others wait for it.
fresh();
$version = take();
waits($a, "wait => '1h'");
waits($b, "wait => '1h'");
isnt($now->ask_it("SELECT dlock_refresh('$key', $version, '300ms')"), '', 'shortened');
$version = got($a, $version, 'a TTL made shorter');

# a now holds it for an hour, and b knows that: it is woken when the lease is shortened.
until_queue($node, $key, 'b');
isnt($a->ask_it("SELECT dlock_refresh('$key', $version, '300ms')"), '', 'shortened');
$version = got($b, $version, 'the next one too');
$b->ask_it("SELECT dlock_release('$key', $version)");

# An open refresh beyond the expiry.
fresh();
$version = take();
$now->ask_it("BEGIN; SELECT dlock_refresh('$key', $version, '100ms')");
waits($a, "wait => '1h'");
$now->ask_it("SELECT pg_sleep(0.2); COMMIT");
$version = got($a, $version, 'a refresh that was too short');
$a->ask_it("SELECT dlock_release('$key', $version)");

# Force.
fresh();
$version = take();
waits($a, "wait => '1h'");
is($b->ask_it("SELECT dlock_force_release('$key', 'test')"), $version, 'taken away');
$version = got($a, $version, 'a forced release');
$a->ask_it("SELECT dlock_release('$key', $version)");

# A fence keeps the lock beyond its TTL; when it ends, the next waiter gets the lock.
foreach my $end ('COMMIT', 'ROLLBACK')
{
	fresh();
	$version = take();
	is($now->ask_it("BEGIN; SELECT dlock_fence('$key', $version)"), '', 'fenced');
	waits($a, "wait => '1h'");
	isnt($b->ask_it("SELECT dlock_refresh('$key', $version, '1ms')"), '', 'shortened');
	until_sql($node, "SELECT count(*) FROM dlock_locks WHERE key = '$key' AND state <> 'pending'",
		0, 'the time is up');
	until_queue($node, $key, 'a', 'still waiting for the fence');
	is($b->ask_it("SELECT dlock_acquire('$key')"), '', 'busy for a try');
	$now->ask_it($end);
	$version = got($a, $version, "$end of a fence past the expiry");
	$a->ask_it("SELECT dlock_release('$key', $version)");
}

# Two fences at once: the waiter sleeps until both have ended.
fresh();
$version = take();
$now->ask_it("BEGIN; SELECT dlock_fence('$key', $version)");
is($b->ask_it("BEGIN; SELECT dlock_fence('$key', $version)"), '', 'fenced twice');
waits($a, "wait => '1h'");
isnt($c->ask_it("SELECT dlock_refresh('$key', $version, '1ms')"), '', 'shortened');
until_sql($node, "SELECT count(*) FROM dlock_locks WHERE key = '$key' AND state <> 'pending'",
	0, 'the time is up');
until_queue($node, $key, 'a', 'it sleeps behind two fences');
$now->ask_it('COMMIT');
until_queue($node, $key, 'a', 'one fence is left');
$b->ask_it('COMMIT');
$version = got($a, $version, 'the end of two fences');
$a->ask_it("SELECT dlock_release('$key', $version)");

#
# Ways to leave
#

fresh();
$version = take();
is($a->ask_it("SELECT dlock_acquire('$key', wait => '50ms') IS NULL"),
	't', 'time is up: NULL');
is($a->ask_it("SELECT dlock_acquire('$key', wait => '0.4ms') IS NULL"),
	't', 'a wait of less than a millisecond');
is(queue_of($node, $key), '', 'and left');

$a->ask_it("SET statement_timeout = '100ms'");
is($a->ask_it("SELECT dlock_acquire('$key', wait => '1h')"),
	'ERROR 57014', 'statement_timeout');
like($a->said, qr/statement timeout/, 'says so');
$a->ask_it("RESET statement_timeout; SET lock_timeout = '100ms'");
is($a->ask_it("SELECT dlock_acquire('$key', wait => '1h')"),
	'ERROR 55P03', 'lock_timeout');
like($a->said, qr/lock timeout/, 'says so');
is($a->ask_it("SELECT dlock_acquire('$key', wait => '10ms') IS NULL"),
	't', 'lock_timeout that is not reached');
is($a->ask_it("SELECT pg_sleep(0.2)"), '', 'does not strike later');
is( $a->ask_it("BEGIN; SAVEPOINT s; SELECT dlock_acquire('$key', wait => '1h')"),
	'ERROR 55P03', 'lock_timeout in a savepoint');
is($a->ask_it("ROLLBACK TO s; SELECT dlock_acquire('$key', wait => '1h')"),
	'ERROR 55P03', 'and again');
$a->ask_it("ROLLBACK; RESET lock_timeout");
fails_with(
	$node, "BEGIN; SELECT dlock_acquire('own', '1h'); SET LOCAL lock_timeout = '1s'; SELECT dlock_acquire('own', '1h', wait => NULL)",
	'55P03', [qr/^CONTEXT:  while waiting for lock "own", which this session holds itself$/m], 'a wait for oneself');
$node->safe_psql('postgres', "SELECT dlock_acquire('others', '1h')");
fails_with(
	$node, "SET lock_timeout = '10ms'; SELECT dlock_acquire('others', '1h', wait => NULL)",
	'55P03', [qr/^CONTEXT:  while waiting for lock "others"$/m], 'a wait for another session');
$node->safe_psql('postgres', "SELECT dlock_force_release('others', 'done')");
is($now->ask_it("SELECT count(*) FROM dlock_waiters"), 0, 'queue is clean');
give($version);

# Each way to leave wakes the next waiter.  A client that vanishes at the very moment of its
# grant has the lock until its TTL ends, so that is not tested.
my %leave = (
	cancel => sub { $now->ask_it("SELECT pg_cancel_backend($_[0]->{pid})") },
	terminate => sub { $now->ask_it("SELECT pg_terminate_backend($_[0]->{pid})") },
	vanish => sub { $_[0]->vanish });
foreach my $how (sort keys %leave)
{
	my $first = client($node, 'first');
	my $pid = $first->pid;

	fresh();
	$version = take();
	waits($first, "wait => '1h'");
	waits($b, "wait => '1h'");
	until_queue($node, $key, 'first b');

	# woken for the free key, and gone before it looks
	kill 'STOP', $pid unless $how eq 'vanish';
	give($version) unless $how eq 'vanish';
	$leave{$how}->($first);
	kill 'CONT', $pid;
	if ($how eq 'cancel')
	{
		is($first->answer, 'ERROR 57014', "$how: cancelled");
		$first->leave;
	}
	else
	{
		until_gone($node, $pid, "$how: the backend is gone");
		$first->lost if $how eq 'terminate';
	}
	if ($how eq 'vanish')
	{
		until_queue($node, $key, 'b', 'vanish: the next one is first');
		give($version);
	}
	$version = got($b, $version, "$how of the first one passes the turn on");
	$b->ask_it("SELECT dlock_release('$key', $version)");

	# while the key is held
	my $other = client($node, 'other');
	$pid = $other->pid;
	fresh();
	$version = take();
	waits($a, "wait => '1h'");
	waits($other, "wait => '1h'");
	waits($b, "wait => '1h'");
	until_queue($node, $key, 'a other b');
	$leave{$how}->($other);
	until_queue($node, $key, 'a b', "$how of one in the middle");
	until_gone($node, $pid, "$how: the backend is gone") unless $how eq 'cancel';
	if ($how eq 'cancel') { $other->answer; $other->leave }
	elsif ($how eq 'terminate') { $other->lost }
	give($version);
	foreach my $client ($a, $b)
	{
		$version = got($client, $version, 'the others');
		$client->ask_it("SELECT dlock_release('$key', $version)");
	}
}

#
# Where a client can wait
#

foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	fresh();
	$version = take();
	$a->ask_it("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM pg_class");
	waits($a, "wait => '1h'");
	give($version);
	$version = got($a, $version, "waiting in $level");
	is($a->ask_it('COMMIT'), '', 'commits');
	is($now->ask_it("SELECT version FROM dlock_locks WHERE key = '$key'"),
		$version, 'holds it');
	$a->ask_it("SELECT dlock_release('$key', $version)");
}

fresh();
$version = take();
$a->ask_it('BEGIN; SAVEPOINT s');
waits($a, "wait => '1h'");
waits($b, "wait => '1h'");
give($version);
$version = got($a, $version, 'waiting in a savepoint');
until_queue($node, $key, 'b', 'the next one waits for the open transaction');
$a->ask_it('ROLLBACK TO s');
$version = got($b, $version, 'which rolled its savepoint back');
is($a->ask_it("SELECT dlock_check('$key', $version - 1)"), 'held_by_other', 'it was lost');
$a->ask_it('COMMIT');
$b->ask_it("SELECT dlock_release('$key', $version)");

# Another database.
$node->safe_psql('postgres', 'CREATE DATABASE other');
add_extension_in($node, 'other');
fresh();
my $elsewhere = client($node, 'elsewhere', database => 'other');
my $there = $elsewhere->ask_it("SELECT dlock_acquire('$key', '1h')");
isnt($there, '', 'the same key in another database');
my $waiter = client($node, 'waiter', database => 'other');
$waiter->start("SELECT dlock_acquire('$key', '1h', wait => '1h')");
until_waiting($node, $waiter, $key, database => 'other');
is($now->ask_it("SELECT count(*) FROM dlock_waiters"), 0, 'is not seen here');
$version = take();
isnt($version, '', 'and does not block');
waits($a, "wait => '1h'");
give($version);
$version = got($a, $version, 'this one');
until_queue($node, $key, 'waiter', 'the other one waits on', database => 'other');
$elsewhere->ask_it("SELECT dlock_release('$key', $there)");
cmp_ok($waiter->answer, '>', $there, 'and gets its own');
$a->ask_it("SELECT dlock_release('$key', $version)");
close_clients($elsewhere, $waiter);

# Which role sees what.
$node->safe_psql('postgres', 'CREATE ROLE alice; CREATE ROLE bob; CREATE ROLE carol; GRANT alice TO carol');
fresh();
$version = take();
my $alice = client($node, 'alice', role => 'alice');
waits($alice, "wait => '1h', owner => 'secret'");
my $seen = "SELECT owner, pid = $alice->{pid}, position FROM dlock_waiters WHERE key = '$key'";
is($now->ask_it($seen), 'secret|t|1', 'a superuser sees the owner');
foreach my $role (qw(bob carol))
{
	is( $now->ask_it("SET ROLE $role; $seen"),
		($role eq 'bob' ? '' : 'secret') . '|t|1',
		"$role sees what it may see");
	$now->ask_it('RESET ROLE');
}
give($version);
$version = got($alice, $version, 'a role without rights');
$alice->ask_it("SELECT dlock_release('$key', $version)");
$alice->leave;

# A waiter does not block a command that alters the table, behind which the holder's release
# would wait.
fresh();
$version = take();
waits($a, "wait => '1h'");
$b->start("SELECT dlock_watch('$key', $version)");
until_waiting($node, $b, $key);
is($c->ask_it("BEGIN; LOCK TABLE dlock.locks IN ACCESS EXCLUSIVE MODE NOWAIT; ROLLBACK"),
	'', 'no lock on the table while waiting');
give($version);
$version = got($a, $version, 'after that');
$b->answer;
$a->ask_it("SELECT dlock_release('$key', $version)");

#
# Many
#

# Each release wakes one waiter.  All but those that we follow are stopped, so that they could
# not continue if they were woken.
fresh();
$version = take();
my @many = map { client($node, sprintf('m%02d', $_)) } 1 .. 40;
foreach my $client (@many)
{
	$client->start("SELECT dlock_acquire('$key', '1h', wait => '1h')");
	until_waiting($node, $client, $key);
}
until_queue($node, $key, join(' ', map { $_->{name} } @many));
my $switches = sub {
	my ($client) = @_;
	my ($n) = slurp_file("/proc/$client->{pid}/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
	return $n;
};
my $last = $many[-1];
my $slept = $switches->($last);
give($version);
foreach my $client (@many)
{
	is($switches->($last), $slept, 'the last one sleeps') if $client == $many[20];
	$version = got($client, $version, 'handed over');
	$client->ask_it("SELECT dlock_release('$key', $version)");
}
is($now->ask_it('SELECT count(*) FROM dlock_waiters'), 0, 'nobody is left');
close_clients(@many);

# A lease that expires wakes one waiter, too.
fresh();
@many = map { client($node, sprintf('n%02d', $_)) } 1 .. 4;
$version = $now->ask_it("SELECT dlock_acquire('$key', '5s')");
foreach my $client (@many)
{
	$client->start("SELECT dlock_acquire('$key', '1h', wait => '1h')");
	until_waiting($node, $client, $key);
}
$slept = $switches->($many[-1]);
$version = got($many[0], $version, 'expiry hands over');
$now->ask_it('SELECT pg_sleep(0.2)');
is($switches->($many[-1]), $slept, 'the last one was not woken by the expiry');
$many[0]->ask_it("SELECT dlock_release('$key', $version)");
foreach my $client (@many[1 .. $#many])
{
	$version = got($client, $version, 'handed over');
	$client->ask_it("SELECT dlock_release('$key', $version)");
}
close_clients(@many);

is($now->ask_it('SELECT count(*) FROM dlock_waiters'), 0, 'nobody is left');
is( $now->ask_it("SELECT string_agg(key || ' ' || version, ', ') FROM dlock_locks"),
	'', 'no lock is left');

close_clients($now, $a, $b, $c, $d, $e);
DlockWait::close_monitors();
$node->stop;
done_testing();
