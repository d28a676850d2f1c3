# A handover between others: nobody in the queue comes between, the next owner need not wait its
# turn, a fence holds it up, a request to yield stays, and it survives a crash.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockTicket;
use DlockWait;

my $node = new_node('handover', conf => "deadlock_timeout = 60s\nmax_connections = 40\n");
my $now = client($node, 'now');
my ($a, $b, $c) = map { client($node, $_) } qw(a b c);

my $key = 'k00';
sub fresh { return ++$key; }
sub take { return $now->ask_it("SELECT dlock_acquire('$key', '1h', $_[0])"); }
sub hand { my ($version, $owner) = @_; return $now->ask_it("SELECT dlock_handover('$key', $version, '$owner')"); }
sub give { return $now->ask_it("SELECT dlock_release('$key', owner => '$_[0]')"); }
sub check { return $now->ask_it("SELECT dlock_check('$key', owner => '$_[0]')"); }
sub asks { my ($client, $args) = @_; return asks_for($node, $client, $key, "$args, wait => '1h'"); }

# The client still waits, after every change that might have woken it has been made.
sub still_waits
{
	my ($client, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	until_waiting($node, $client, $key);
	ok(!$client->came_back, $what);
	return;
}

#
# The queue
#

foreach my $case ([ 'a writer', "slots => 1" ], [ 'a semaphore', 'slots => 2' ])
{
	my ($what, $slots) = @$case;
	my $version;

	fresh();
	take("'other', $slots") if $slots =~ /2/;
	$version = take("'blue', $slots");
	asks($a, "'a', $slots, priority => 0");
	cmp_ok(my $next = hand($version, 'green'), '>', $version, "$what: handed over while others wait");
	still_waits($a, "$what: nobody comes between");
	is(give('green'), 'released', "$what: the next owner releases it");
	cmp_ok($a->answer, '>', $next, "$what: and then the first in the queue has it");
}

# green waits behind another, and looks only now and then: the handover wakes it
fresh();
my $version = take(q{'blue'});
asks($a, q{'a'});
asks($b, q{'green'});
ok(stop_asleep($node, $b, $key), 'the next owner sleeps, and not at the head of the queue');
my $next = hand($version, 'green');
ok(was_woken($b), 'the handover wakes it');
kill 'CONT', $b->pid;
is($b->answer, $next, 'it has what was handed over');
still_waits($a, 'the first in the queue waits on');
is(give('green'), 'released', 'it is released');
cmp_ok($a->answer, '>', $next, 'then the first in the queue has it');

# the same with a ticket
fresh();
$version = take(q{'blue'});
asks($a, q{'a'});
my $ticket = enqueue($now, $key, 'green', "ttl => '1h'");
until_state($node, $ticket, 'waiting 2', 'a ticket waits behind another');
$next = hand($version, 'green');
until_state($node, $ticket, 'granted', 'a ticket of the next owner is granted');
is(version_of($now, $ticket), $next, 'with what was handed over');
still_waits($a, 'the first in the queue waits on');
give('green');
$a->answer;

# an owner that waits for an upgrade, and gives its place away
fresh();
$version = take(q{'up', slots => 5});
take(q{'other', slots => 5});
asks($a, q{'up'});
$next = hand($version, 'green');
cmp_ok($next, '>', $version, 'a place whose owner waits for an upgrade');
until_sql($node, "SELECT position FROM dlock_waiters WHERE key = '$key'", 1, 'the upgrade waits on as any request');
is(check('green'), 'held', 'the place is the next owner\'s');
give($_) foreach qw(green other);
cmp_ok($a->answer, '>', $next, 'it has the key when everybody is gone');

#
# A fence of the holder, and open transactions of the next owner
#

fresh();
$version = take(q{'blue'});
is($a->ask_it("BEGIN; SELECT dlock_fence('$key', $version)"), '', 'the holder writes');
$b->start("SELECT dlock_handover('$key', $version, 'green')");
until_sql($node, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $b->pid, 'Lock', 'a handover waits for it');
is($a->ask_it("SELECT dlock_fence('$key', $version); COMMIT"), '', 'the holder can still write');
cmp_ok($b->answer, '>', $version, 'then it is handed over');
is($a->ask_it("SELECT dlock_fence('$key', $version)"), 'ERROR LK001', 'and the old version is fenced off');

# two handovers of one grant
fresh();
$version = take(q{'blue'});
$next = $a->ask_it("BEGIN; SELECT dlock_handover('$key', $version, 'green')");
$b->start("SELECT coalesce(dlock_handover('$key', $version, 'red'), 0)");
until_sql($node, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $b->pid, 'Lock', 'a second handover waits for the first');
$a->ask_it('COMMIT');
is($b->answer, 0, 'and is too late');
is(check('green'), 'held', 'the first one counts');

fresh();
$version = take(q{'blue', slots => 5});
$a->ask_it("BEGIN; SELECT dlock_acquire('$key', '1h', 'green', slots => 5)");
is(hand($version, 'green'), 'ERROR 55006', 'an owner that is just taking a place cannot have another one');
$a->ask_it('ROLLBACK');
cmp_ok(hand($version, 'green'), '>', $version, 'unless that is rolled back');

#
# A request to yield
#

fresh();
$version = take(q{'blue', cleanup => '1h'});
asks($a, q{'boss', priority => 9});
until_sql($node, "SELECT dlock_check('$key', $version)", 'preempting', 'the holder is asked to yield');
hand($version, 'green');
is(check('green'), 'preempting', 'so is the next owner, at once');
is($now->ask_it("SELECT requestor_since < refreshed_at FROM dlock_get('$key')"), 't', 'and its time began when the first holder was asked');
give('green');
cmp_ok($a->answer, '>', $version, 'it yields');

fresh();
take(q{'other', slots => 2, priority => 9});
$version = take(q{'blue', slots => 2, cleanup => '1h'});
asks($a, q{'boss', slots => 2, priority => 9});
until_sql($node, "SELECT dlock_check('$key', $version)", 'preempting', 'a holder of a place is asked to yield');
hand($version, 'green');
until_sql($node, "SELECT dlock_check('$key', owner => 'green')", 'preempting', 'so is the next owner, when the request looks again');
give('green');
cmp_ok($a->answer, '>', $version, 'it yields');

#
# A crash
#

fresh();
$version = take(q{'blue'});
$next = hand($version, 'green');
my $place = $now->ask_it("SELECT dlock_acquire('places', '1h', 'blue', slots => 2)");
my $next_place = $now->ask_it("SELECT dlock_handover('places', $place, 'green')");
my $open = $a->ask_it("BEGIN; SELECT dlock_handover('$key', $next, 'red')");
cmp_ok($open, '>', $next, 'one more is not committed');
close_clients($a, $b, $c, $now);
DlockWait::close_monitors();
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', "SELECT dlock_check('$key', $next, 'green'), dlock_check('places', $next_place, 'green')"),
	'held|held', 'what was handed over is the next owner\'s after a crash');
is($node->safe_psql('postgres', "SELECT count(*), count(DISTINCT key) FROM dlock_locks WHERE key IN ('$key', 'places')"),
	'2|2', 'and nobody else\'s');
$node->stop;
done_testing();
