# Priority: a holder is asked to yield, and what follows.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node('preempt', conf => "deadlock_timeout = 60s\n");
$node->safe_psql('postgres', 'CREATE ROLE boss; CREATE ROLE nosy; CREATE TABLE work (i int)');
my $now = client($node, 'now');
my $ear = client($node, 'ear');
my ($a, $b, $c) = map { client($node, $_) } qw(a b c);

$ear->ask_it('LISTEN dlock');

my $key = 'k00';
sub fresh { $key++; return; }

# A holder, by default with a cleanup of one hour.
sub hold
{
	my (%params) = @_;
	my $priority = $params{priority} // 0;
	my $cleanup = $params{cleanup} // '1h';
	my $version;

	fresh();
	$version = $now->ask_it(
		"SELECT dlock_acquire('$key', '2h', priority => $priority, cleanup => '$cleanup')");
	like($version, qr/^\d+$/, 'held');
	return $version;
}

sub acquire { my ($args) = @_; return acquire_sql($key, $args); }
sub asks { my ($client, $args) = @_; return asks_for($node, $client, $key, $args); }

sub state
{
	my ($version) = @_;

	return $now->ask_it("SELECT dlock_check('$key', $version)");
}

sub requestor
{
	return $now->ask_it(
		"SELECT state, requestor_owner, requestor_priority, requestor_since IS NOT NULL, requestor_deadline IS NOT NULL"
		  . " FROM dlock_locks WHERE key = '$key'");
}

# Wait until the listener has received the event, and return it.
sub hear
{
	my ($event) = @_;
	my $payload;

	wait_until(
		"there is an event $event of $key",
		sub {
			$ear->{heard} .= $ear->ask_it('SELECT 1') . "\n";
			($payload) = $ear->{heard} =~
			  /with payload "(\{"event": "$event", "key": "$key".*?\})" received/;
			return defined $payload;
		});
	return $payload;
}

sub heard_nothing
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$ear->{heard} .= $ear->ask_it('SELECT 1') . "\n";
	unlike($ear->{heard}, qr/"key": "$key"/, $what);
	return;
}

#
# A holder without cleanup loses the lock at once
#

my $version = hold(priority => 3, cleanup => '0');
is($a->ask_it(acquire('priority => 2')), '', 'a lower priority is busy');
is($a->ask_it(acquire('priority => 3')), '', 'an equal priority is busy');
is($a->ask_it(acquire('priority => 3, force => true')), '', 'force does not help it');
is($a->ask_it(acquire("priority => 3, force => true, wait => '10ms'")), '', 'waiting does not either');
is(state($version), 'held', 'the holder is not bothered');
heard_nothing('and nobody is notified');
my $taken = $a->ask_it(acquire('priority => 4'));
cmp_ok($taken, '>', $version, 'a higher priority takes it at once, without wait and force');
is(state($version), 'held_by_other', 'it is lost');
is($now->ask_it("SELECT dlock_refresh('$key', $version)"), '', 'and cannot be refreshed');
is($now->ask_it("SELECT dlock_release('$key', $version)"), 'held_by_other', 'and not released');
is($now->ask_it("BEGIN; SELECT dlock_fence('$key', $version)"), 'ERROR LK001', 'the old version is fenced off');
$now->ask_it('ROLLBACK');
my $event = hear('forced');
is( $now->ask_it("SELECT j->>'version', j->>'by' FROM (SELECT '$event'::json) AS e(j)"),
	"$version|" . $now->ask_it('SELECT current_user'),
	'the event names the version that was lost and the role that took it');

# A takeover in an open transaction counts when that commits.
$version = hold(cleanup => '0');
$a->ask_it('BEGIN');
$taken = $a->ask_it(acquire('priority => 1'));
cmp_ok($taken, '>', $version, 'taken in a transaction');
is(state($version), 'held', 'not yet for the holder');
heard_nothing('and not announced');
$a->ask_it('ROLLBACK');
is(state($version), 'held', 'rolled back: nothing happened');
isnt($now->ask_it("SELECT dlock_refresh('$key', $version)"), '', 'the holder still has it');
heard_nothing('and nothing was announced');

# No priority takes a lock from an open transaction.
$version = hold(cleanup => '0');
$now->ask_it("BEGIN; SELECT dlock_fence('$key', $version)");
is($a->ask_it(acquire('priority => 2147483647, force => true')), '', 'an open fence keeps it: busy');
is($a->ask_it(acquire("priority => 2147483647, force => true, wait => '50ms'")),
	'', 'and after a wait: no success is reported');
is($now->ask_it("INSERT INTO work VALUES (1); COMMIT"), '', 'the fenced work is done');
is(state($version), 'held', 'and it is held');
is($now->ask_it("BEGIN; SELECT dlock_fence('$key', $version)"), '', 'fenced again');
asks($a, "priority => 1, wait => '1h'");
$now->ask_it('COMMIT');
cmp_ok($a->answer, '>', $version, 'the end of the fence lets the higher one in');

#
# A holder with cleanup is asked
#

$version = hold();
is($a->ask_it(acquire('priority => 1')), 'ERROR 55P03', 'no time to wait: refused');
like($a->said, qr/did not yield.*$version/s, 'says that it is still held');
is(state($version), 'held', 'the holder keeps it');
cmp_ok($a->ask_it(acquire('priority => 1, force => true')),
	'>', $version, 'no time to wait, with force: taken');
is(state($version), 'held_by_other', 'lost');

$version = hold();
asks($a, "priority => 1, wait => '30min', owner => 'me'");
is(state($version), 'preempting', 'the holder is asked');
is(requestor(), 'preempting|me|1|t|t', 'the view shows the requestor');
is( $now->ask_it(
		"SELECT requestor_deadline - requestor_since BETWEEN '29min' AND '31min',"
		  . " requestor_since BETWEEN now() - interval '1min' AND clock_timestamp()"
		  . " FROM dlock_locks WHERE key = '$key'"),
	't|t',
	'the shorter of wait and cleanup counts: wait');
$event = hear('preempt');
is( $now->ask_it(
		"SELECT j->>'key', j->>'version', j->>'by', j->>'priority',"
		  . " (j->>'deadline')::timestamptz = requestor_deadline"
		  . " FROM (SELECT '$event'::json) AS e(j), dlock_locks WHERE dlock_locks.key = '$key'"),
	"$key|$version|" . $now->ask_it('SELECT current_user') . '|1|t',
	'and the notification does, too');
is($b->ask_it("SET ROLE nosy; SELECT requestor_owner, requestor_priority FROM dlock_locks WHERE key = '$key'"),
	'|1', 'the owner is not for all eyes');
$b->ask_it('RESET ROLE');
isnt($now->ask_it("SELECT dlock_refresh('$key', $version)"), '', 'it may still refresh');
is(state($version), 'preempting', 'and is still asked');
is($now->ask_it("BEGIN; SELECT dlock_fence('$key', $version); INSERT INTO work VALUES (1); COMMIT"),
	'', 'and work');
is($now->ask_it("SELECT dlock_release('$key', $version)"), 'released', 'it yields');
cmp_ok($taken = $a->answer, '>', $version, 'the requester has it');
is(requestor(), 'held|||f|f', 'and nobody is asking');

# The cleanup is shorter.
$version = hold(cleanup => '30min');
asks($a, "priority => 1, wait => '1h'");
is($now->ask_it("SELECT requestor_deadline - requestor_since = '30min' FROM dlock_locks WHERE key = '$key'"),
	't', 'the shorter of wait and cleanup counts: cleanup');
$now->ask_it("SELECT pg_cancel_backend($a->{pid})");
is($a->answer, 'ERROR 57014', 'the requester gives up');
is(state($version), 'held', 'the holder is no longer asked');
is(requestor(), 'held|||f|f', 'and the view does not show it');

# The time is up.
foreach my $case ([ '200ms', '1h' ], [ '1h', '200ms' ])
{
	my ($cleanup, $wait) = @$case;

	$version = hold(cleanup => $cleanup);
	is($a->ask_it(acquire("priority => 1, wait => '$wait'")),
		'ERROR 55P03', "cleanup $cleanup, wait $wait: refused");
	is(state($version), 'held', 'the holder keeps it, and is no longer asked');
	is($now->ask_it("SELECT count(*) FROM dlock_waiters"), 0, 'queue is clean');
	my $got = $a->ask_it(acquire("priority => 1, wait => '$wait', force => true"));
	cmp_ok($got, '>', $version, "cleanup $cleanup, wait $wait: taken by force");
	is($now->ask_it("BEGIN; SELECT dlock_fence('$key', $version)"), 'ERROR LK001', 'the old version is fenced off');
	$now->ask_it('ROLLBACK');
	hear('forced');
}

# wait => NULL: only the cleanup counts.
$version = hold(cleanup => '200ms');
is($a->ask_it(acquire('priority => 1, wait => NULL')), 'ERROR 55P03', 'no limit of its own');
cmp_ok($a->ask_it(acquire('priority => 1, wait => NULL, force => true')), '>', $version, 'with force');

# The lease expires after the holder was asked.
fresh();
$version = $now->ask_it("SELECT dlock_acquire('$key', '500ms', cleanup => '1h')");
$a->start(acquire("priority => 1, wait => '1h'"));
cmp_ok($a->answer, '>', $version, 'a lease that expires while its holder is asked');

# The holder raises its own priority: it no longer has to yield.
fresh();
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h', owner => 'o', cleanup => '1h')");
asks($a, "priority => 1, wait => '1h'");
is(state($version), 'preempting', 'asked');
is($now->ask_it("SELECT dlock_acquire('$key', '1h', owner => 'o', cleanup => '1h', priority => 1)"),
	$version, 'raises its priority');
until_sql($node, "SELECT dlock_check('$key', $version)", 'held', 'no longer asked');
until_queue($node, $key, 'a', 'the other one waits on');
is($now->ask_it("SELECT dlock_acquire('$key', '1h', owner => 'o', cleanup => '1h')"), $version, 'lowers it');
until_sql($node, "SELECT dlock_check('$key', $version)", 'preempting', 'asked again');
$now->ask_it("SELECT dlock_release('$key', $version)");
cmp_ok($a->answer, '>', $version, 'the requester has it');

#
# Several requests
#

# Above the holder but not above the waiter that has asked: it queues.
$version = hold();
asks($a, "priority => 5, wait => '1h', owner => 'a'");
is(requestor(), 'preempting|a|5|t|t', 'a has asked');
is($b->ask_it(acquire('priority => 5')), '', 'an equal one: busy');
is($b->ask_it(acquire('priority => 4, force => true')), '', 'a lower one, force or not: busy');
is($b->ask_it(acquire("priority => 4, force => true, wait => '50ms'")), '', 'also after its time');
is(requestor(), 'preempting|a|5|t|t', 'a is still the one');
asks($b, "priority => 5, wait => '1h', owner => 'b'");
asks($c, "priority => 4, wait => '1h', owner => 'c', force => true");
until_queue($node, $key, 'a b c', 'they queue');
is(requestor(), 'preempting|a|5|t|t', 'behind the one that has asked');
$now->ask_it("SELECT dlock_release('$key', $version)");
cmp_ok($taken = $a->answer, '>', $version, 'a release hands over to the one that has asked');
is(requestor(), 'held|||f|f', 'nobody asks it to yield: the others are not higher');
$a->ask_it("SELECT dlock_release('$key', $taken)");
cmp_ok($taken = $b->answer, '>', $version, 'then to the next');
$b->ask_it("SELECT dlock_release('$key', $taken)");
cmp_ok($c->answer, '>', $version, 'then to the last: nobody is lost');

# A still higher one replaces it, and it returns to the queue.
$version = hold();
asks($a, "priority => 1, wait => '1h', owner => 'a'");
asks($b, "priority => 2, wait => '1h', owner => 'b'");
until_queue($node, $key, 'b a');
is(requestor(), 'preempting|b|2|t|t', 'replaced by a higher one');
hear('preempt');
$now->ask_it("SELECT dlock_release('$key', $version)");
cmp_ok($taken = $b->answer, '>', $version, 'the higher one gets it');
until_queue($node, $key, 'a', 'the other one is in the queue');
is(requestor(), 'held|||f|f', 'and does not ask a higher one');
$b->ask_it("SELECT dlock_release('$key', $taken)");
cmp_ok($a->answer, '>', $taken, 'its turn comes');

# The wait of the replaced one ends in the queue.
$version = hold();
$a->start(acquire("priority => 1, wait => '3s', owner => 'a'"));
until_waiting($node, $a, $key);
asks($b, "priority => 2, wait => '1h', owner => 'b'");
is($a->answer, '', 'replaced, and out of time: NULL, as for any waiter');
is(requestor(), 'preempting|b|2|t|t', 'the other one continues to ask');

# The higher one gives up: the replaced one asks again, with a full cleanup.
$a->start(acquire("priority => 1, wait => '2h', owner => 'a'"));
until_waiting($node, $a, $key);
$now->ask_it("SELECT pg_cancel_backend($b->{pid})");
is($b->answer, 'ERROR 57014', 'the higher one gives up');
until_sql($node, "SELECT requestor_owner FROM dlock_locks WHERE key = '$key'", 'a', 'the other one asks now');
is($now->ask_it("SELECT requestor_deadline - requestor_since = '1h' FROM dlock_locks WHERE key = '$key'"),
	't', 'from now on');
$now->ask_it("SELECT pg_terminate_backend($a->{pid})");
until_gone($node, $a->pid, 'and it is terminated');
$a->lost;
$a = client($node, 'a');
is(state($version), 'held', 'nobody asks any more');

# The higher one is refused: the same.
$version = hold(cleanup => '1h');
asks($a, "priority => 1, wait => '2h', owner => 'a'");
is($b->ask_it(acquire("priority => 2, wait => '100ms', owner => 'b'")), 'ERROR 55P03', 'refused');
until_sql($node, "SELECT requestor_owner FROM dlock_locks WHERE key = '$key'", 'a', 'the other one asks now');

# Force by a higher one: the waiter in the queue stays there.
cmp_ok($taken = $b->ask_it(acquire("priority => 2, wait => '10ms', force => true")), '>', $version, 'forced');
until_queue($node, $key, 'a', 'the other one is in the queue');
is(requestor(), 'held|||f|f', 'and asks nobody');
$b->ask_it("SELECT dlock_release('$key', $taken)");
cmp_ok($a->answer, '>', $taken, 'until it is its turn');

# The next holder has a lower priority: it is asked, too.
$version = hold(priority => 9);
asks($a, "priority => 5, wait => '1h', owner => 'a'");
is(requestor(), 'held|||f|f', 'a lower one asks nobody');
$b->start(acquire("priority => 10, wait => '1h', owner => 'b'"));
until_sql($node, "SELECT requestor_owner FROM dlock_locks WHERE key = '$key'", 'b', 'a higher one does');
$now->ask_it("SELECT dlock_release('$key', $version)");
cmp_ok($taken = $b->answer, '>', $version, 'it gets it');
is( $b->ask_it("SELECT dlock_acquire('$key', '1h', owner => 'b', priority => 1, cleanup => '1h')"),
	$taken, 'and becomes lower');
until_sql($node, "SELECT requestor_owner FROM dlock_locks WHERE key = '$key'", 'a', 'the waiter asks it at once');
$b->ask_it("SELECT dlock_release('$key', $taken)");
cmp_ok($a->answer, '>', $taken, 'and gets it');

#
# Force while a transaction of the holder is open
#

# A fence at the end of the cleanup delays the takeover but gives no more time.
$version = hold(cleanup => '300ms');
$now->ask_it("BEGIN; SELECT dlock_fence('$key', $version)");
$a->start(acquire("priority => 1, wait => '1h', force => true"));
until_sql($node,
	"SELECT requestor_deadline < clock_timestamp() FROM dlock_locks WHERE key = '$key'",
	't', 'the time is up');
until_queue($node, $key, 'a', 'and the fence keeps it');
is($b->ask_it("SELECT state FROM dlock_locks WHERE key = '$key'"), 'preempting', 'still asked');
is($now->ask_it("INSERT INTO work VALUES (2)"), '', 'the fenced work continues');
is($now->ask_it('COMMIT'), '', 'and is committed');
cmp_ok($a->answer, '>', $version, 'then it is taken');

# The same with a refresh: it does not start the hour of cleanup again.
$version = hold(cleanup => '1h');
asks($a, "priority => 1, wait => '2h', owner => 'a'");
my $deadline = $now->ask_it("SELECT requestor_deadline FROM dlock_locks WHERE key = '$key'");
$now->ask_it("BEGIN; SELECT dlock_refresh('$key', $version, '3h')");

# another client comes and goes, so that it looks while the refresh is open
is($b->ask_it(acquire("priority => 2, wait => '1ms'")), '', 'busy for the other one');
until_queue($node, $key, 'a', 'the first one sleeps again');
$now->ask_it('COMMIT');
until_sql($node, "SELECT state FROM dlock_locks WHERE key = '$key'", 'preempting', 'still asked');
until_queue($node, $key, 'a', 'the first one sleeps again');
is($now->ask_it("SELECT requestor_deadline FROM dlock_locks WHERE key = '$key'"),
	$deadline, 'the deadline has not moved');
$now->ask_it("SELECT dlock_release('$key', $version)");
cmp_ok($a->answer, '>', $version, 'released');

#
# Emergency
#

$version = hold(priority => 2147483646);
asks($a, "priority => 2147483646, wait => '1h'");
asks($b, "priority => 2147483647, wait => '1h', owner => 'emergency'");
is(requestor(), 'preempting|emergency|2147483647|t|t', 'the emergency asks');
is($c->ask_it(acquire('priority => 2147483647, force => true')), '', 'two emergencies: first come, first served');
$now->ask_it("SELECT pg_cancel_backend($b->{pid})");
$b->answer;
cmp_ok($taken = $b->ask_it(acquire('priority => 2147483647, force => true')),
	'>', $version, 'or takes it, past the queue');
is($c->ask_it(acquire('priority => 2147483647, force => true')), '', 'and keeps it from its like');
$b->ask_it("SELECT dlock_release('$key', $taken)");
cmp_ok($a->answer, '>', $taken, 'the queue continues');

# Across roles; CALL does the same.
$version = hold();
$a->ask_it('SET ROLE boss');
$a->start("CALL dlock_lock('$key', priority => 1, wait => '1h')");
until_waiting($node, $a, $key);
is(state($version), 'preempting', 'CALL asks');
is($now->ask_it("SELECT '" . hear('preempt') . "'::json->>'by'"), 'boss', 'another role');
$now->ask_it("SELECT dlock_release('$key', $version)");
cmp_ok($a->answer, '>', $version, 'released');
$version = hold();
is($a->ask_it("CALL dlock_lock('$key', priority => 1, wait => '1ms')"), 'ERROR 55P03', 'CALL is refused');

# Session locks are taken like others.
fresh();
my $s = client($node, 's');
$version = $s->ask_it("SELECT dlock_acquire('$key', '1h', session => true)");
$taken = $b->ask_it(acquire('priority => 1'));
cmp_ok($taken, '>', $version, 'a session lock is taken');
$s->leave;
until_gone($node, $s->pid, 'its session ends');
is($now->ask_it("SELECT dlock_check('$key', $taken)"), 'held', 'and does not release what is not its own');

is($now->ask_it('SELECT count(*) FROM dlock_waiters'), 0, 'nobody is left');
close_clients($now, $ear, $a, $b, $c);
DlockWait::close_monitors();
$node->stop;
done_testing();
