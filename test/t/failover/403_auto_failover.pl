# pg_auto_failover: the primary's machine is lost, and comes back.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockAutoFailover;
use DlockClient;
use DlockHaTest;

my $missing = DlockAutoFailover::missing();
plan skip_all => $missing if $missing;

client_build();

my $ha = DlockAutoFailover->new(monitor => \%DlockAutoFailover::tuned);

is($ha->ask('a', 'SHOW synchronous_standby_names') =~ s/_\d+/_N/r,
	'ANY 1 (pgautofailover_standby_N)', 'grants wait for the standby');
my ($new, $old) = lose_primary($ha);
is("$old $new", 'a b', 'b has taken over');

#
# Alone: the monitor lets the new primary commit without a standby
#

$ha->until_states('a primary demoted, b wait_primary wait_primary');
is($ha->ask('b', 'SHOW synchronous_standby_names'), '', 'commits no longer wait for a standby');
isnt($ha->ask('b', "SELECT dlock_acquire('alone', '30 min')"), '', 'a grant that this machine alone knows');
refused_without_standby($ha, 'b', 'cannot grant a lock without a synchronous standby');

#
# The old primary comes back
#

$ha->revive('a');
$ha->until_ready('b');
is($ha->ask('a', 'SELECT pg_is_in_recovery()'), 't', 'the old primary is a standby');
is($ha->ask('a', "SELECT count(*) FROM dlock_locks WHERE key IN ('static', 'during', 'alone')"),
	3, 'and knows what the new one granted');
my $safe = $ha->ask('b', "SET dlock.require_sync = on;\nSELECT dlock_acquire('safe', '30 min')");
isnt($safe, '', 'with dlock.require_sync, grants again');

#
# A planned switchover: no server is lost, and the versions leap again
#

$ha->answer($ha->{monitor_conninfo}, "SELECT pgautofailover.perform_failover('default', 0)");
$ha->until_ready('a');
is($ha->ask('a', "SELECT dlock_check('safe', $safe)"), 'held', 'switched over: the lock is held');
cmp_ok($ha->ask('a', "SELECT dlock_acquire('new')"), '>', $safe + 2**31, 'and the versions have leapt');

$ha->stop;
done_testing();
