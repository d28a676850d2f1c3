# The wait for a synchronous standby, ended in every way: by the standby, a cancel, a
# termination, a crash.  Nothing is acknowledged that was not confirmed, and the result is
# consistent.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockClient;
use DlockTest;
use DlockWait;

client_build();

my $leap = 2**32;
my $a = new_node('a', streaming => 1);
my $b = new_standby($a, 'b');
make_synchronous($a, $b);

sub version_of
{
	my ($node, $key) = @_;

	return $node->safe_psql('postgres', "SELECT version FROM dlock_locks WHERE key = '$key'");
}

# The process that waits for the standby and is not in the list.
sub waiting_pid
{
	my (@known) = @_;
	my $others = join ',', 0, @known;
	my $pid = '';

	wait_until(
		'one more waits for the standby',
		sub {
			$pid = $a->safe_psql('postgres',
				"SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid NOT IN ($others)");
			return $pid =~ /^\d+$/;
		});
	return $pid;
}

my $held = $a->safe_psql('postgres', "SELECT dlock_acquire('held', '1h')");
my $owned = $a->safe_psql('postgres', "SELECT dlock_acquire('owned', '1h', owner => 'me')");
my $freed = $a->safe_psql('postgres', "SELECT dlock_acquire('freed', '1h')");

#
# The standby is lost, and require_sync is on
#

my $d = driver(conninfo($a));
my $of_driver = $d->ask('acquire', 'of_driver', ttl => 600000)->{version};

$a->safe_psql('postgres', 'ALTER SYSTEM SET dlock.require_sync = on');
$a->reload;
$a->poll_query_until('postgres', 'SHOW dlock.require_sync', 'on') or die 'not reloaded';
cut_off($b);
$a->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_replication') or die 'it is still connected';

fails_with(
	$a, "SELECT dlock_acquire('refused')", '55000',
	[ qr/no synchronous standby confirms commits/, qr/HINT:  Bring the standby back/ ],
	'no grant without the standby');
fails_with($a, "CALL dlock_lock('refused')", '55000', [qr/no synchronous standby confirms commits/], 'dlock_lock grants nothing either');
my $refused = $d->ask('acquire', 'refused');
is("$refused->{status} $refused->{sqlstate}", 'not_ready 55000', 'libdlock says so');
like($refused->{hint}, qr/^Bring the standby back/, 'and what to do');
is($a->safe_psql('postgres', "SELECT dlock_acquire('held', '1h')"), '', 'what is held is busy, not refused');
is($a->safe_psql('postgres', "SELECT dlock_check('held', $held)"), 'held', 'a check is answered');
is($a->safe_psql('postgres', "SELECT dlock_release('freed', $freed)"), 'released', 'a release is, too');

# a refresh, and an acquire repeated by the owner, wait
my $refreshes = client($a, 'refreshes')->start("SELECT dlock_refresh('held', $held) IS NOT NULL");
my $repeats = client($a, 'repeats')->start("SELECT dlock_acquire('owned', '1h', owner => 'me')");
$d->send('refresh', 'of_driver', timeout => 100000);
until_sync_waits($a, 3);

reconnect($b);
is($refreshes->answer, 't', 'with the standby the refresh is answered');
is($repeats->answer, $owned, 'the retry of the owner is, too');
is($d->answer->{status}, 'ok', 'and libdlock');
$a->poll_query_until('postgres', "SELECT dlock_acquire('granted', '1h') IS NOT NULL") or die 'not granted';
ok(1, 'and grants are made again');
is($d->ask('state', 'of_driver')->{version}, $of_driver, 'libdlock still has its lock');
$a->safe_psql('postgres', 'ALTER SYSTEM RESET dlock.require_sync');
$a->reload;
$a->poll_query_until('postgres', 'SHOW dlock.require_sync', 'off') or die 'not reloaded';
is($d->finish, '', 'nothing was printed');
close_clients($refreshes, $repeats);

#
# The primary crashes while a grant waits, and comes up again
#

cut_off($b);
my $crashed = client($a, 'crashed')->start("SELECT dlock_acquire('crashed', '1h', owner => 'me')");
waiting_pid();
DlockWait::close_monitors();
$a->stop('immediate');
$crashed->lost;
$a->start;
my $version = version_of($a, 'crashed');
cmp_ok($version, '>', $held, 'its WAL was written: the grant exists although it was not acknowledged');
is($a->safe_psql('postgres', "SELECT dlock_acquire('crashed')"), '', 'and is nobody else\'s');
my $again = client($a, 'again')->start("SELECT dlock_acquire('crashed', '1h', owner => 'me')");
waiting_pid();
reconnect($b);
is($again->answer, $version, 'a retry of its owner is acknowledged when the standby has it');
$a->wait_for_catchup($b);
is(version_of($b, 'crashed'), $version, 'which it has');
close_clients($again);

#
# The wait is cancelled and terminated
#

cut_off($b);
my $cancelled = client($a, 'cancelled')->start("SELECT dlock_acquire('cancelled', '1h')");
my $pid = waiting_pid();
is($a->safe_psql('postgres', "SELECT pg_cancel_backend($pid)"), 't', 'cancelled');
my $local = $cancelled->answer;
cmp_ok($local, '>', $version, 'the grant is answered');
like($cancelled->said, qr/WARNING:  01000: canceling wait for synchronous replication due to user request/,
	'with a warning');
is($a->safe_psql('postgres', "SELECT dlock_check('cancelled', $local)"), 'held', 'it is held here');

# to be sure, refresh, because that waits for the standby
my $confirms = client($a, 'confirms')->start("SELECT dlock_refresh('cancelled', $local)");
my $confirming = waiting_pid();

my ($out, $err) = ('', '');
my $terminated = IPC::Run::start(
	[ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $a->connstr('postgres'), '-c', "SELECT dlock_acquire('terminated', '1h')" ],
	'<', \undef, '>', \$out, '2>', \$err);
$pid = waiting_pid($confirming);
is($a->safe_psql('postgres', "SELECT pg_terminate_backend($pid)"), 't', 'terminated');
$terminated->finish;
like($err, qr/WARNING:  57P01: canceling the wait for synchronous replication and terminating connection/, 'the client is told');
is($out, '', 'and gets no version');
my $unheard = version_of($a, 'terminated');
cmp_ok($unheard, '>', $local, 'the grant is held here');

# libdlock takes neither as an answer
my $both = conninfo($a, host => $a->host . ',' . $b->host, port => $a->port . ',' . $b->port);
$d = driver($both);
$d->send('acquire', 'doubtful', ttl => 600000, timeout => 150000);
my $first = waiting_pid($confirming);
$a->safe_psql('postgres', "SELECT pg_cancel_backend($first)");
my $second = waiting_pid($confirming, $first);
isnt($second, $first, 'libdlock: cancelled, it asks again');
$a->safe_psql('postgres', "SELECT pg_terminate_backend($second)");
my $third = waiting_pid($confirming, $first, $second);
isnt($third, $second, 'libdlock: terminated, it asks again');
my $doubtful = version_of($a, 'doubtful');
is($d->events, '', 'nothing has come back');

#
# The primary crashes during all that, and the standby is promoted
#

my $highest = $a->safe_psql('postgres', 'SELECT last_value FROM dlock.versions');
DlockWait::close_monitors();
$a->kill9;
promote($b);
$confirms->lost;
my $found = $d->answer;
is($found->{status}, 'ok', 'libdlock gets its answer from the new primary');
is($found->{version}, version_of($b, 'doubtful'), 'the grant that is there');
cmp_ok($found->{version}, '>', $doubtful + $leap / 2, 'and not the one that was never confirmed');
is($b->safe_psql('postgres', "SELECT dlock_check('held', $held), dlock_check('crashed', $version)"),
	'held|held', 'what was confirmed is held');
foreach my $key ('cancelled', 'terminated')
{
	my $new = $b->safe_psql('postgres', "SELECT dlock_acquire('$key', '1h')");

	cmp_ok($new, '>', $highest + $leap / 2, "$key: free, and no version is repeated");
}
fails_with($b, "SELECT dlock_fence('cancelled', $local)", 'LK001', [], 'the grant that was local only is fenced off');
is($b->safe_psql('postgres', "SELECT dlock_refresh('terminated', $unheard) IS NULL"), 't', 'and has no refresh');
is($d->finish, '', 'nothing was printed');
close_clients($cancelled);

$b->stop;
done_testing();
