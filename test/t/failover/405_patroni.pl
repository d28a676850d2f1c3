# Patroni: the leader's machine is lost, and comes back.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockClient;
use DlockHaTest;
use DlockPatroni;
use DlockTest;

my $missing = DlockPatroni::missing();
plan skip_all => $missing if $missing;

client_build();

my $ha = DlockPatroni->new(dynamic => { %DlockPatroni::tuned, synchronous_mode_strict => JSON::PP::true });

is($ha->ask('a', 'SHOW synchronous_standby_names'), 'b', 'grants wait for the standby');
is($ha->ask('a', 'SHOW dlock.reap_interval'), '0', 'settings of dlock arrive');
my ($new, $old) = lose_primary(
	$ha,
	sub {
		my ($to, $from) = @_;

		is($ha->ask($to, 'SHOW synchronous_standby_names'), '*', 'strict: the new leader needs a standby');
		refused_without_standby($ha, $to, 'could not grant a lock: no synchronous standby confirms commits');
		$ha->until_says($to,
			"SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%dlock_acquire%'");
		ok(1, 'without dlock.require_sync, a grant waits for one');
		$ha->revive($from);
	});
is("$old $new", 'a b', 'b has taken over');
is($ha->leader, 'b', 'and has the leader key');

#
# The old leader has come back
#

$ha->until_ready('b');
is($ha->ask('a', 'SELECT pg_is_in_recovery()'), 't', 'the old leader is a standby');
is($ha->ask('a', "SELECT count(*) FROM dlock_locks WHERE key IN ('static', 'during')"), 2, 'and knows what was granted');
my $safe = $ha->ask('b', "SET dlock.require_sync = on;\nSELECT dlock_acquire('safe', '30 min')");
isnt($safe, '', 'with dlock.require_sync, grants again');

#
# A planned switchover: no server is lost, and the versions leap again
#

$ha->api('b', '/switchover', { leader => 'b', candidate => 'a' });
$ha->until_ready('a');
is($ha->ask('a', "SELECT dlock_check('safe', $safe)"), 'held', 'switched over: the lock is held');
cmp_ok($ha->ask('a', "SELECT dlock_acquire('new')"), '>', $safe + 2**31, 'and the versions have leapt');

#
# Without synchronous_mode_strict, a leader that has lost its standby continues alone
#

$ha->api('a', '/config', { synchronous_mode_strict => JSON::PP::false });
wait_until('the leader knows', sub { return !$ha->api('a', '/config')->{synchronous_mode_strict} });
$ha->kill9('b');
$ha->until_says('a', 'SHOW synchronous_standby_names', '');
isnt($ha->ask('a', "SELECT dlock_acquire('alone', '30 min')"), '', 'not strict: a grant that this machine alone knows');
refused_without_standby($ha, 'a', 'cannot grant a lock without a synchronous standby');

$ha->stop;
done_testing();
