# No copy of a database draws a version that the original may have drawn.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;

my $leap = 2**32;

my $node = new_node('original', streaming => 1, archiving => 1);
# a restore is no direct write
my $other = new_node('other', bare => 1, conf => "dlock.allow_direct_writes = off\n");

$node->safe_psql('postgres', 'CREATE ROLE app LOGIN; CREATE ROLE backup LOGIN IN ROLE pg_read_all_data');
$node->safe_psql('postgres', 'CREATE DATABASE shop');
add_extension_in($node, 'shop');

my $held = $node->safe_psql('shop',
	"SET ROLE app; SELECT dlock_acquire('held', '1h', owner => 'o', value => 'v')");
$node->safe_psql('shop', "SELECT dlock_acquire('k' || n, '1h') FROM generate_series(1, 10) n");

my $dump = $node->basedir . '/shop.dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('shop') ], 'pg_dump');
my $inserts = $node->basedir . '/inserts.sql';
$node->command_ok([ 'pg_dump', '--inserts', '-f', $inserts, '-d', $node->connstr('shop') ], 'pg_dump --inserts');

# what the original draws after the dump
my $highest = $node->safe_psql('shop', "SELECT dlock_acquire('later', '1h')");

sub restored
{
	my ($in, $database, $above, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $first = $in->safe_psql($database, "SELECT dlock_acquire('first', '1h')");
	my $second = $in->safe_psql($database, "SELECT dlock_acquire('second', '1h')");

	cmp_ok($first, '>', $above + $leap / 2, "$what: versions have leapt");
	cmp_ok($second, '>', $first, "$what: and rise");
	cmp_ok($second, '<', $first + 10, "$what: without another leap");
	is($in->safe_psql($database, "SELECT version || ' ' || owner || ' ' || value || ' ' || role FROM dlock.locks WHERE key = 'held'"),
		"$held o v app", "$what: the rows are there");
	fails_with($in, "SELECT dlock_fence('later', $highest)", 'LK001', [],
		"$what: a grant that is not in the dump", database => $database);
	return $second;
}

#
# Another database of the same cluster, in the same run of the server
#

$node->safe_psql('postgres', 'CREATE DATABASE copy');
$node->command_ok([ 'pg_restore', '-e', '-d', $node->connstr('copy'), $dump ], 'pg_restore');
restored($node, 'copy', $highest, 'another database');
is($node->safe_psql('copy', "SET ROLE app; SELECT dlock_check('held', owner => 'o')"),
	'held', 'another database: a lease continues');

#
# A dump of INSERT commands, which form rows in another way
#

$node->safe_psql('postgres', 'CREATE DATABASE inserted');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('inserted'), '-f', $inserts ], 'it is restored');
restored($node, 'inserted', $highest, 'inserted');
is($node->safe_psql('inserted', "SET ROLE app; SELECT dlock_check('held', owner => 'o')"), 'held', 'inserted: a lease continues');
is($node->safe_psql('inserted', "SELECT dlock_acquire('k1')"), '', 'inserted: a key is busy');
$node->safe_psql('postgres', 'DROP DATABASE inserted');

#
# The same database, dropped and restored
#

$node->safe_psql('postgres', 'DROP DATABASE shop');
$node->command_ok([ 'pg_restore', '-e', '-C', '-d', $node->connstr('postgres'), $dump ],
	'pg_restore -C');
$highest = restored($node, 'shop', $highest, 'the same name');

#
# Another cluster
#

$other->safe_psql('postgres', 'CREATE ROLE app; CREATE ROLE backup');
$other->safe_psql('postgres', 'CREATE DATABASE copy');
$other->command_ok([ 'pg_restore', '-e', '-d', $other->connstr('copy'), $dump ],
	'pg_restore in another cluster');
restored($other, 'copy', $held, 'another cluster');
$other->safe_psql('postgres', 'DROP DATABASE copy');
$other->safe_psql('postgres', 'DROP ROLE app, backup');

# Whole clusters, including roles.
my $all = $node->basedir . '/all.sql';
$node->command_ok([ 'pg_dumpall', '-f', $all, '-d', $node->connstr('postgres') ], 'pg_dumpall');
$other->command_ok([ 'psql', '-X', '-q', '-f', $all, '-d', $other->connstr('postgres') ],
	'restore of pg_dumpall');
cmp_ok($other->safe_psql('shop', "SELECT dlock_acquire('third', '1h')"),
	'>', $highest + $leap / 2, 'pg_dumpall: versions have leapt');
is($other->safe_psql('shop', "SELECT role FROM dlock.locks WHERE key = 'held'"),
	'app', 'pg_dumpall: a grant is still its role\'s');

# A role that can read everything can dump it.
$node->command_ok(
	[ 'pg_dump', '-f', $node->basedir . '/backup.sql', '-d', $node->connstr('shop') . ' user=backup' ],
	'pg_dump by a member of pg_read_all_data');

# A new installation does not leap.
$other->safe_psql('postgres', 'CREATE DATABASE fresh');
add_extension_in($other, 'fresh');
is($other->safe_psql('fresh', "SELECT dlock_acquire('first')"), 1, 'a fresh one begins with 1');

# A dump of an installation that was never used does not leap either.
$other->safe_psql('postgres', 'CREATE DATABASE unused');
add_extension_in($other, 'unused');
$other->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $other->connstr('unused') ], 'pg_dump');
$other->safe_psql('postgres', 'CREATE DATABASE unused_copy');
$other->command_ok([ 'pg_restore', '-e', '-d', $other->connstr('unused_copy'), $dump ], 'pg_restore');
is($other->safe_psql('unused_copy', "SELECT dlock_acquire('first')"),
	1, 'one that was never used begins with 1');
$other->stop;

#
# Point-in-time recovery
#

$node->backup('base');
my $before = $node->safe_psql('shop', "SELECT dlock_acquire('before', '1h')");
$node->safe_psql('postgres', "SELECT pg_create_restore_point('here')");
my $lost = $node->safe_psql('shop', "SELECT dlock_acquire('lost', '1h')");
my $walfile = $node->safe_psql('postgres', 'SELECT pg_walfile_name(pg_switch_wal())');
$node->poll_query_until('postgres',
	"SELECT last_archived_wal >= '$walfile' FROM pg_stat_archiver") or die 'WAL is not archived';

my $recovered = PostgreSQL::Test::Cluster->new('recovered');
$recovered->init_from_backup($node, 'base', has_restoring => 1, standby => 0);
$recovered->append_conf(
	'postgresql.conf', q{
recovery_target_name = 'here'
recovery_target_action = 'promote'
archive_mode = off
});
$recovered->start;
$recovered->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
  or die 'recovery does not end';
is($recovered->safe_psql('shop', "SELECT dlock_check('before', $before), dlock_acquire('before')"),
	'held|', 'recovery to a point: a grant before it is held');
cmp_ok($recovered->safe_psql('shop', "SELECT dlock_acquire('lost', '1h')"),
	'>', $lost + $leap / 2, 'recovery to a point: versions leap');
is($node->safe_psql('shop', "SELECT dlock_acquire('goes_on') - $lost"), 1,
	'the original continues without a leap');

$recovered->stop;
$node->stop;
done_testing();
