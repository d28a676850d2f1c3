# Patroni: the leader's Patroni is stopped, but its PostgreSQL continues.  The other node
# is promoted, so there are two primaries.  Then the stopped Patroni continues.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockHaTest;
use DlockPatroni;
use DlockTest;

my $missing = DlockPatroni::missing();
plan skip_all => $missing if $missing;

my $ha = DlockPatroni->new(dynamic => { %DlockPatroni::tuned, synchronous_mode_strict => JSON::PP::true });
my $waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%contested%'";
my $acquire = "SELECT inet_server_port(), dlock_acquire('contested', '30 min')";
my $before = $ha->ask('a', "SELECT dlock_acquire('before', '30 min')");

my @stopped = $ha->pause('a', $ha->member('a')->{pid});
$ha->until_says('b', 'SELECT NOT pg_is_in_recovery()');
is($ha->ask('a', 'SELECT pg_is_in_recovery()'), 'f', 'there are two primaries');
is($ha->answer($ha->all_conninfo, 'SELECT inet_server_port()'),
	$ha->member('a')->{port}, 'read-write finds the stale one');

my $stale = start_answer($ha->all_conninfo, $acquire);
$ha->until_says('a', $waits, 1);
ok(1, 'its grant waits for the standby that it has no more');
refused_without_standby($ha, 'a', 'could not grant a lock: no synchronous standby confirms commits');
my $new = start_answer($ha->conninfo('b'), $acquire);
$ha->until_says('b', $waits, 1);
ok(1, 'that of the new one does, too, until it has a standby');
is(join('', ($stale->('now'))[0], ($new->('now'))[0]), '', 'neither is acknowledged');

# Patroni before 3.0.3 with etcd3 may take the leader key back by force, and the new
# leader is demoted; later versions see that they have lost it.  If the old leader is at
# the same moment demoting itself, both servers are restarted.
my %offset = map { $_ => -s $ha->member($_)->{log} } $ha->names;
$ha->resume(@stopped);
my $leader;
wait_until(
	'one is primary and the other is not',
	sub {
		$leader = $ha->leader // return 0;
		return $ha->says($ha->other($leader), 'SELECT pg_is_in_recovery()')
		  && $ha->says($leader, 'SELECT NOT pg_is_in_recovery()');
	});
note("the leader key is with $leader");
if ($leader eq 'a')
{
	# it is on a later timeline than its leader, and pg_rewind does not help
	is(($stale->('now'))[0], '', 'the leader key was taken back, and still nothing is acknowledged');
	wait_until('b is made anew',
		sub { return ($ha->api('b', '/reinitialize', { force => JSON::PP::false }) // '') =~ /reinitialize started/ });

	# the key still names b as the leader whose standbys they are
	$ha->until_synchronous('a');
	$ha->forget_sync_key;
}

# The leader reports it, and that stays true, unless it was demoted in between.
$ha->until_ready($leader);
my %psql = (a => $stale, b => $new);
my ($answer, $interrupted) = $psql{$leader}->();
my ($nothing, $error) = $psql{ $ha->other($leader) }->();
my $port = $ha->member($leader)->{port};
my $ended = qr/57P0[12]|server closed the connection/;

if ($answer eq '')
{
	like(slurp_file($ha->member($leader)->{log}, $offset{$leader}),
		qr/Demoting self/, 'the one that leads in the end was demoted, too, before it acknowledged its grant');
	like($interrupted, $ended, 'its connection was ended');
}
else
{
	like($answer, qr/^$port\|\d+$/, 'one grant is acknowledged, by the one that leads in the end');
}
is($nothing, '', 'the other is not');
like($error, $ended, 'its connection was ended');

my $version = $answer =~ /\|(\d+)$/ ? $1 : $ha->ask($leader, "SELECT version FROM dlock_locks WHERE key = 'contested'");
foreach my $name ($ha->names)
{
	$ha->until_says($name, "SELECT version FROM dlock_locks WHERE key = 'contested'", $version);
	is($ha->ask($name, "SELECT version FROM dlock_locks WHERE key = 'before'"), $before, "$name has what was granted before");
}

$ha->stop;
done_testing();
