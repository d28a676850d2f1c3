# What the owner of a database, or a session in it, sets and locks must not keep
# a backend from exiting, or the reaper from the other databases.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node('hostile_database', conf => "dlock.reap_interval = 10ms\n");
my $now = client($node, 'now');
my $blocker = client($node, 'blocker');

# a transaction that keeps others from getting a safe snapshot
my $safe = 'BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT txid_current(); SELECT count(*) FROM pg_class';
my @deferrable = ('isolation = serializable', 'read_only = on', 'deferrable = on');

#
# A session that exits waits for nothing.
#

foreach my $case (
	[ 'for a safe snapshot', $safe, join '; ', map { "SET default_transaction_$_" } @deferrable ],
	[ 'for a lock on the table', 'BEGIN; LOCK TABLE dlock.locks IN SHARE MODE', 'SELECT 1' ],
	[ 'for a lock on the index', q{BEGIN; ALTER INDEX dlock.locks_pkey SET TABLESPACE elsewhere}, 'SELECT 1' ])
{
	my ($what, $block, $set) = @$case;
	my $holder = client($node, 'holder');
	my $version;

	$node->safe_psql('postgres', "SET allow_in_place_tablespaces = on; CREATE TABLESPACE elsewhere LOCATION ''")
	  if $what =~ /index/;
	$version = $holder->ask_it("SELECT dlock_acquire('held', '1h', session => true)");
	$holder->ask_it($set);
	$blocker->ask_it($block);
	$holder->leave;
	until_sql($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $holder->{pid}", 0, "an exit does not wait $what");
	$blocker->ask_it('ROLLBACK');
	is($now->ask_it("SELECT dlock_check('held', $version)"), 'not_held', "the lock ends with its session: $what");
	cmp_ok($now->ask_it("SELECT dlock_acquire('held', '1h')"), '>', $version, 'the next one gets it');
	$now->ask_it("SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'held'");
}

#
# The reaper continues in other databases.
#

$node->safe_psql('postgres', 'CREATE DATABASE d1');
add_extension_in($node, 'd1');
$node->safe_psql('postgres', "ALTER DATABASE d1 SET default_transaction_$_") foreach @deferrable;
my $in_d1 = client($node, 'in_d1', database => 'd1');
my $other = client($node, 'other', database => 'd1');
$in_d1->ask_it('SET default_transaction_deferrable = off');
$in_d1->ask_it('BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE; SELECT txid_current(); SELECT count(*) FROM pg_class');
$other->ask_it(q{BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT dlock_acquire('gone', '10ms'); COMMIT});
wait_until('the reaper works where transactions are deferrable by default',
	sub { return $other->ask_it('BEGIN ISOLATION LEVEL READ COMMITTED; SELECT count(*) FROM dlock.locks; COMMIT') eq '0' });
$in_d1->ask_it('ROLLBACK');
DlockWait::close_monitors();
close_clients($in_d1, $other);

# Nor does a timeout of the database end the reaper while it waits: its own one does.
SKIP:
{
	skip 'there is no transaction_timeout before PostgreSQL 17', 1 if $node->pg_version < 17;

	my $logged = -s $node->logfile;
	my $locker = client($node, 'locker', database => 'd1');

	$node->safe_psql('postgres', "ALTER DATABASE d1 SET transaction_timeout = '100ms'");
	$locker->ask_it(q{BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT dlock_acquire('gone', '5s'); COMMIT});
	$locker->ask_it('BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; LOCK TABLE dlock.locks IN ACCESS EXCLUSIVE MODE');
	$node->wait_for_log(qr/(?:lock|transaction) timeout/, $logged);
	unlike(slurp_file($node->logfile, $logged), qr/transaction timeout/, 'the reaper is not ended by the timeout of the database');
	$node->safe_psql('postgres', 'ALTER DATABASE d1 RESET transaction_timeout');
	close_clients($locker);
}

# A database that stays locked while the reaper connects to it: it is given up
# after 30 seconds.
$node->safe_psql('d1', q{BEGIN READ WRITE; SELECT dlock_acquire('late', '1s'); COMMIT});
$blocker->ask_it('BEGIN; ALTER DATABASE d1 RENAME TO d2');
until_sql($node, "SELECT count(*) FROM pg_locks WHERE NOT granted AND classid = 'pg_database'::regclass",
	1, 'the reaper waits for the database');
$now->ask_it(q{SELECT dlock_acquire('gone', '10ms')});
until_sql($node, "SELECT count(*) FROM dlock.locks WHERE key = 'gone'", 0, 'and then continues in the others');
$blocker->ask_it('ROLLBACK');

DlockWait::close_monitors();
close_clients($now, $blocker);
$node->stop;
done_testing();
