# Deadlocks of tickets, among many others.

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

my $node = new_node('ticket_deadlocks', conf => "deadlock_timeout = 100ms\ndlock.max_tickets = 8000\n");
my $now = client($node, 'now');

# How many of the tickets are missed.
sub missed_sql
{
	return 'SELECT count(*) FROM unnest(ARRAY[' . join(', ', @_) . "]) t, dlock_ticket(t) WHERE state = 'missed'";
}

# A long line for a key, of tickets with owners of their own.
sub line_up
{
	my ($key, $n) = @_;

	is($now->ask_it("SELECT count(dlock_enqueue('$key', NULL, 'crowd' || i)) FROM generate_series(1, $n) i"), $n, "$n tickets for $key");
	until_granter_sleeps($node);
	return;
}

#
# A circle at the end of a long line
#

$now->ask_it("SELECT dlock_acquire('a', '1h', 'one'), dlock_acquire('b', '1h', 'two')");
line_up('a', 4000);
my @t = (enqueue($now, 'a', 'two'), enqueue($now, 'b', 'one'));
until_sql($node, missed_sql(@t), 1, 'a deadlock behind thousands: one ticket is missed');
is($now->ask_it("SELECT count(*) FROM dlock_waiters WHERE owner ~ '^crowd'"), 4000, 'and none of those that are in no circle');
is($now->ask_it('SELECT deadlocks FROM dlock_stats'), 1, 'it is counted');
$now->ask_it("SELECT count(dlock_dequeue(ticket)) FROM dlock_waiters");
$now->ask_it("SELECT dlock_release('a', owner => 'one'), dlock_release('b', owner => 'two')");

#
# Several circles at once
#

$now->ask_it("SELECT dlock_acquire(o || i, '1h', o || i) FROM generate_series(1, 12) i, unnest(ARRAY['x', 'y']) o");
@t = split /\n/, $now->ask_it("SELECT dlock_enqueue(k || i, NULL, o || i) FROM generate_series(1, 12) i, (VALUES ('x', 'y'), ('y', 'x')) v (k, o)");
is(@t, 24, 'tickets in twelve circles');
until_sql($node, missed_sql(@t), 12, 'one of each is missed');
is($now->ask_it('SELECT deadlocks FROM dlock_stats'), 13, 'they are counted');
$now->ask_it("SELECT count(dlock_dequeue(ticket)) FROM dlock_waiters");

#
# An owner that thousands wait for, and that waits for thousands
#

$now->ask_it("SELECT count(dlock_acquire('w' || i, '1h', 'hub')), count(dlock_acquire('v' || i, '1h', 'other')) FROM generate_series(1, 3000) i");
is($now->ask_it("SELECT count(dlock_enqueue('w' || i, NULL, 'spoke' || i)) + count(dlock_enqueue('v' || i, NULL, 'hub')) FROM generate_series(1, 3000) i"),
	6000, 'thousands wait for an owner that waits thousands of times');
until_granter_sleeps($node);
my $t = enqueue($now, 'w1', 'other');
until_sql($node, "SELECT deadlocks > 13 FROM dlock_stats", 't', 'a deadlock with that owner is found');

close_clients($now);
DlockWait::close_monitors();
$node->stop;
done_testing();
