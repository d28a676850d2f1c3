# Nothing waits for a heavyweight lock under a partition lock, which is an LWLock: an
# acquire that has to wait for another session's lock can be cancelled, and no other
# session hangs behind it.
#
# A holds a lock on what an acquire of a new key needs, B waits for it, and C
# acquires new keys in every partition.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node('lock_order');
my ($in_the_way, $other) = map { client($node, $_) } qw(A C);
my $round = 0;

# 500 new keys: some in each of the 64 partitions
sub others_go_on
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$round++;
	is($other->ask_it("SELECT count(dlock_acquire('c:$round:' || n, '1h')) FROM generate_series(1, 500) n"),
		500, "$what: others get new locks");
	is($other->ask_it("SELECT count(*) FROM generate_series(1, 500) n WHERE dlock_check('absent:' || n, 1) = 'not_held'"),
		500, "$what: and make sure that there are none");
	return;
}

# Wait until it waits for a relation lock, as the lock manager shows it.
sub until_blocked
{
	my ($client, $relation, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	until_sql($node,
		"SELECT count(*) FROM pg_locks WHERE pid = $client->{pid} AND NOT granted AND relation = '$relation'::regclass",
		1, "$what: B waits for a lock on $relation");
	return;
}

# A blocks B with a transaction that stays open.
sub blocked
{
	my ($what, $relation, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $acquire = "SELECT dlock_acquire('b:' || gen_random_uuid(), '1h'$params{args})";
	my $others = $params{others} // \&others_go_on;

	$in_the_way->ask_it('BEGIN');
	$in_the_way->ask_it($params{holds});

	# a new backend, so that its caches are empty
	my $waiter = client($node, 'B');
	$waiter->start($acquire);
	until_blocked($waiter, $relation, $what);
	$others->($what);
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($waiter->{pid})");
	is($waiter->answer, 'ERROR 57014', "$what: B can be cancelled");

	$waiter->ask_it("SET statement_timeout = '50ms'");
	is($waiter->ask_it($acquire), 'ERROR 57014', "$what: statement_timeout ends it");
	$waiter->ask_it('RESET statement_timeout');

	$waiter->start($acquire);
	until_blocked($waiter, $relation, $what);
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($waiter->{pid})");
	until_sql($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $waiter->{pid}", 0, "$what: B can be terminated");
	$waiter->lost;

	$waiter = client($node, 'B');
	$waiter->start($acquire);
	until_blocked($waiter, $relation, $what);
	$in_the_way->ask_it('ROLLBACK');
	cmp_ok($waiter->answer, '>', 0, "$what: B has its lock when A is done");
	$waiter->leave;
	return;
}

my $toast = $node->safe_psql('postgres', "SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'dlock.locks'::regclass");
my $value = q{, value => (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1000) n)};

$other->ask_it("SELECT dlock_acquire('warm', '1h')");

blocked('toast table', $toast, holds => "REINDEX TABLE $toast", args => $value);
is( $node->safe_psql(
		'postgres', q{SELECT DISTINCT md5(value) = (SELECT md5(string_agg(md5(n::text), '')) FROM generate_series(1, 1000) n)
FROM dlock_locks WHERE value IS NOT NULL}),
	't', 'a value in the toast table is what it was');

# it then updates a row of its own that is not committed yet
is( $node->safe_psql(
		'postgres', qq{
BEGIN;
SELECT dlock_acquire('own', '1h' $value) > 0;
SAVEPOINT s;
SELECT dlock_acquire('undone', '1h' $value) > 0;
ROLLBACK TO s;
SELECT dlock_acquire('undone', '1h') > 0;
COMMIT;
SELECT key, length(value) FROM dlock_locks WHERE key IN ('own', 'undone') ORDER BY key}),
	"t\nt\nt\nown|32000\nundone|", 'also behind a savepoint that is rolled back');

blocked('sequence', 'dlock.versions',
	holds => 'ALTER SEQUENCE dlock.versions INCREMENT BY 1',
	args => '',
	others => sub {
		my ($what) = @_;
		is($other->ask_it("SELECT count(*) FROM generate_series(1, 500) n WHERE dlock_check('absent:' || n, 1) = 'not_held'"),
			500, "$what: others make sure that there are none");
	});

blocked('catalog of sequences', 'pg_sequence',
	holds => 'LOCK TABLE pg_sequence IN ACCESS EXCLUSIVE MODE', args => '');

# an index that a user has added: with a collation, and on a value that is toasted
$node->safe_psql('postgres', q{
CREATE COLLATION plain (locale = 'C');
CREATE INDEX by_owner ON dlock.locks (owner COLLATE plain);
});
$other->ask_it("SELECT dlock_acquire('warm:2', '1h', 'me')");
blocked('collation of an index', 'pg_collation',
	holds => 'LOCK TABLE pg_collation IN ACCESS EXCLUSIVE MODE', args => q{, owner => 'me'});
$node->safe_psql('postgres', 'DROP INDEX dlock.by_owner');

# The index itself: an acquire that needs it waits, and one of a known key does not.
my $version = $other->ask_it("SELECT dlock_acquire('known', '1h')");
$other->ask_it("SELECT dlock_refresh('known', $version)");
$node->safe_psql('postgres', "SET allow_in_place_tablespaces = on; CREATE TABLESPACE elsewhere LOCATION ''");
blocked('index', 'dlock.locks_pkey',
	holds => 'ALTER INDEX dlock.locks_pkey SET TABLESPACE elsewhere',
	args => '',
	others => sub {
		my ($what) = @_;
		is($other->ask_it("SELECT dlock_refresh('known', $version) IS NOT NULL"), 't', "$what: a known key is refreshed");
	});

# A renewal that adds an index entry, of a row whose value is toasted: an index on the
# value reads it from the toast table.
$node->safe_psql('postgres', q{SELECT count(dlock_release(key, version)) FROM dlock_locks WHERE value IS NOT NULL});
$node->safe_psql('postgres', 'CREATE INDEX by_value ON dlock.locks (value)');
my $toasted = $other->ask_it(q{SELECT dlock_acquire('toasted', '1h', value => repeat('x', 60000) || md5('1'))});
my $old = session($node);
ask($old, 'BEGIN ISOLATION LEVEL REPEATABLE READ');
ask($old, 'SELECT 1');
$other->ask_it("SELECT count(dlock_refresh('toasted', $toasted)) FROM generate_series(1, 300)");
$in_the_way->ask_it('BEGIN');
$in_the_way->ask_it("REINDEX TABLE $toast");
my $renewer = client($node, 'B');
$renewer->start("SELECT count(dlock_refresh('toasted', $toasted)) FROM generate_series(1, 300)");
until_sql($node,
	"SELECT (SELECT count(*) FROM pg_locks WHERE pid = $renewer->{pid} AND NOT granted) > 0"
	  . " OR (SELECT state <> 'active' FROM pg_stat_activity WHERE pid = $renewer->{pid})",
	't', 'a renewal waits for the toast table, or is done');
others_go_on('renewal');
$in_the_way->ask_it('ROLLBACK');
is($renewer->answer, 300, 'it is renewed');

end_session($old);
DlockWait::close_monitors();
close_clients($in_the_way, $other, $renewer);
$node->stop;
done_testing();
