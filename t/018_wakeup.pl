# Whoever waits is woken, and looks by itself in time: no wakeup is lost.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

# Nothing makes up for a wakeup that was lost: nobody looks for deadlocks, no
# lease ends, and no reaper comes by.
my $node = new_node(
	'wakeup', conf => q{
deadlock_timeout = 1h
authentication_timeout = 10min
});
my ($holder, $reader, $monitor) = map { client($node, $_) } qw(holder reader monitor);
my $version;

#
# A key that becomes free between a waiter's first look and its place in the
# queue: the waiter looks again before it sleeps.
#
# To have it happen, a third process is stopped while it reads the queue, and so
# has the lock that the waiter needs to enter it.  Whether it was is seen from
# what the waiter then waits for; if not, it is tried again.
#
# Any timer of PostgreSQL's makes a waiter look too.  One rings ten seconds after
# a session was idle, so that it reports its statistics; therefore this one is in a
# transaction from the beginning.  One rings authentication_timeout after its start,
# though it is no longer needed.
#

my $first = session($node);
ask($first, 'BEGIN');
my $pid = ask($first, 'SELECT pg_backend_pid()');
ask($first, 'SAVEPOINT s');
$version = $holder->ask_it("SELECT dlock_acquire('key', '1h')");

$reader->start('DO $$ BEGIN LOOP PERFORM count(*) FROM dlock_waiters; END LOOP; END $$');

my $answer;
my $stopped = stop_with_lwlock(
	$node, $reader->pid, $pid,
	start => sub {
		$answer = background_answer($first, "SELECT dlock_acquire('key', '1h', wait => '1h');");
	},
	else => qr/^Extension/,
	undo => sub {
		$monitor->ask_it("SELECT pg_cancel_backend($pid)");
		$answer->();
		ask($first, 'ROLLBACK TO s');
	});
ok($stopped, 'the waiter has looked, and is not in the queue');
is($holder->ask_it("SELECT dlock_release('key', $version)"), 'released', 'the key becomes free');
kill 'CONT', $reader->pid;
is($answer->(), $version + 1, 'the waiter looks again and gets it');
end_session($first);
$monitor->ask_it('SELECT pg_cancel_backend(' . $reader->pid . ')');
$reader->answer;

#
# A transaction wakes however it ends.
#

foreach my $end ('COMMIT', 'ROLLBACK', 'ROLLBACK TO s', 'error', 'terminate')
{
	my $key = "ends with $end";
	my $other = client($node, 'other');
	my $waiter = client($node, 'waiter');

	$version = $other->ask_it("SELECT dlock_acquire('$key', '1h')") if $end eq 'COMMIT';
	$other->ask_it('BEGIN; SAVEPOINT s');
	if ($end eq 'COMMIT') { $other->ask_it("SELECT dlock_release('$key', $version)") }
	else { $version = $other->ask_it("SELECT dlock_acquire('$key', '1h')") }
	$waiter->start("SELECT dlock_acquire('$key', '1h', wait => '1h')");
	until_waiting($node, $waiter, $key);

	if ($end eq 'error') { $other->ask_it('SELECT 1/0; ROLLBACK') }
	elsif ($end eq 'terminate') { $monitor->ask_it('SELECT pg_terminate_backend(' . $other->pid . ')') }
	else { $other->ask_it($end) }
	is($waiter->answer, $version + 1, "$end wakes who waits");
	$waiter->leave;
	$end eq 'terminate' ? $other->lost : $other->leave;
}

#
# Who leaves the queue passes the turn on.  The next one looks by itself ten
# seconds after it came; if it has the lock much sooner, then because it was woken.
# Where the machine is so slow that this does not tell, it is tried again.
#

my $sooner = '';
for (my $try = 1; $try <= 5 && $sooner ne 't'; $try++)
{
	my $key = "turn $try";
	my ($first, $next) = map { client($node, $_) } qw(first next);
	my $pid = $first->pid;

	$version = $holder->ask_it("SELECT dlock_acquire('$key', '1h')");
	foreach my $client ($first, $next)
	{
		$client->start("SELECT dlock_acquire('$key', '1h', wait => '1h')");
		until_waiting($node, $client, $key);
	}
	my $since = $monitor->ask_it('SELECT since FROM dlock_waiters WHERE pid = ' . $next->pid);

	# told that the key is free, and gone before it looks
	kill 'STOP', $pid;
	$holder->ask_it("SELECT dlock_release('$key', $version)");
	$monitor->ask_it("SELECT pg_terminate_backend($pid)");
	kill 'CONT', $pid;
	$first->lost;

	is($next->answer, $version + 1, 'the next one gets the lock');
	$sooner = $monitor->ask_it(
		"SELECT acquired_at - '$since' < interval '5 s' FROM dlock_locks WHERE key = '$key'");
	$next->leave;
}
is($sooner, 't', 'the one who leaves passes the turn on');

DlockWait::close_monitors();
close_clients($holder, $reader, $monitor);
$node->stop;
done_testing();
