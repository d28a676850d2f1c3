# A lookup that must not miss a row excludes the addition of a row or index entry: the second
# one waits, and draws no version before.
#
# A process is stopped while it makes sure that a key has no row.  Then others renew many keys,
# under an old snapshot and so not in place, which adds index entries.  Some of these keys share
# the lock with the first one.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

use DlockTest;
use DlockWait;

my $node = new_node('miss');
my ($reader, $adder, $holder, $monitor) = map { client($node, $_) } qw(reader adder holder monitor);

$holder->ask_it(
	q{CREATE TABLE held AS SELECT 'k' || n AS key, dlock_acquire('k' || n, '1h') AS version FROM generate_series(1, 500) n});
my $old = session($node);
ask($old, 'BEGIN ISOLATION LEVEL REPEATABLE READ');
ask($old, 'SELECT count(*) FROM held');

# Refresh all of them, each round in one transaction, so that they can wait only for the lookup.
my $renew = q{DO $$ DECLARE h held; BEGIN
FOR i IN 1..60 LOOP FOR h IN SELECT * FROM held LOOP PERFORM dlock_refresh(h.key, h.version); END LOOP; COMMIT; END LOOP;
END $$};

my $event = '';
for (my $try = 1; $try <= 20 && $event ne 'LWLock dlock'; $try++)
{
	my $polls = 0;
	my $drawn;

	$adder->ask_it('BEGIN; SAVEPOINT s');
	$reader->start(q{DO $$ BEGIN LOOP PERFORM dlock_check('absent', 1); END LOOP; END $$});
	my $stopped = stop_with_lwlock(
		$node, $reader->pid, $adder->pid,
		start => sub {
			$drawn = $monitor->ask_it('SELECT last_value FROM dlock.versions');
			$adder->start(q{SELECT dlock_acquire('absent', '1h')});
		},
		else => qr/^Client/,
		undo => sub { $adder->answer; $adder->ask_it('ROLLBACK TO s') });
	ok($stopped, 'a lookup is under way, and a new row waits for it');
	is($monitor->ask_it('SELECT last_value FROM dlock.versions'),
		$drawn, 'it has drawn no version yet: its place is not its own');

	# it may have been stopped with a page of the index locked: then all wait for that, which
	# proves nothing (from PostgreSQL 19 on, a lock on a page is not an LWLock)
	start_and_see($node, $holder->pid, sub { $holder->start($renew) });
	do
	{
		usleep(1000);
		$event = waits_for($node, $holder->pid);
		$polls = $event =~ /^LWLock Buffer|^Buffer Buffer(?!Cleanup)/ ? $polls + 1 : 0;
	} until ($event =~ /^LWLock dlock$|^Client/ || $polls == 500);
	note "the holder waits for $event";

	kill 'CONT', $reader->pid;
	$monitor->ask_it('SELECT pg_cancel_backend(' . $reader->pid . ')');
	is($reader->answer, 'ERROR 57014', 'the lookup continues');
	cmp_ok($adder->answer, '>', 500, 'the row is added');
	is($holder->answer, '', 'and the others are renewed');
	$adder->ask_it('ROLLBACK');
	last if $event =~ /^Client/;
}
is($event, 'LWLock dlock', 'an index entry waits for a lookup that must not miss it');

end_session($old);
DlockWait::close_monitors();
close_clients($reader, $adder, $holder, $monitor);
$node->stop;
done_testing();
