# Many clients on few keys: one holder at a time, and rising versions.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;

my $clients = 12;
my $node = new_node('contention', conf => "max_connections = 40\n");

# One row for each key.  The holder of the key records that it is inside, and counts what
# must never happen: another client inside, or a version that is not above the last one.
$node->safe_psql(
	'postgres', q{
CREATE TABLE register (
	k int PRIMARY KEY,
	inside int NOT NULL DEFAULT 0,
	last bigint NOT NULL DEFAULT 0,
	grants int NOT NULL DEFAULT 0,
	twice int NOT NULL DEFAULT 0,
	inversions int NOT NULL DEFAULT 0
) WITH (fillfactor = 10);
INSERT INTO register SELECT n FROM generate_series(0, 99) n});

# The run ends with an error if a fence rejects a valid holder, if a release does not work,
# or on a serialization error.
my $cycle = q{
SELECT coalesce(dlock_acquire('key' || :k, '10min'), 0) AS v \gset
\if :v > 0
BEGIN;
SELECT dlock_fence('key' || :k, :v);
UPDATE register SET
	twice = twice + (inside <> 0)::int,
	inversions = inversions + (last >= :v)::int,
	inside = inside + 1,
	last = :v,
	grants = grants + 1
 WHERE k = :k;
COMMIT;
BEGIN;
SELECT dlock_fence('key' || :k, :v);
UPDATE register SET inside = inside - 1 WHERE k = :k;
SELECT 1 / (dlock_release('key' || :k, :v) = 'released')::int;
COMMIT;
\endif
};

# The same in a single transaction: the grant is visible only when it commits.
my $one_transaction = q{
BEGIN;
SELECT coalesce(dlock_acquire('key' || :k, '10min'), 0) AS v \gset
\if :v > 0
UPDATE register SET
	twice = twice + (inside <> 0)::int,
	inversions = inversions + (last >= :v)::int,
	last = :v,
	grants = grants + 1
 WHERE k = :k;
SELECT 1 / (dlock_release('key' || :k, :v) = 'released')::int;
\endif
COMMIT;
};

my %script = (
	hot => "\\set k 0\n$cycle",
	many => "\\set k random(0, 9)\n$cycle",
	one => "\\set k random(0, 1)\n$one_transaction",

	# all clients move to the same new key, a hundred times per second
	stampede =>
	  "SELECT (extract(epoch FROM clock_timestamp()) * 100)::bigint % 100 AS k \\gset\n$cycle");

sub contend
{
	my ($name, $seconds, $options, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	local $ENV{PGOPTIONS} = $options;
	my $file = $node->basedir . "/$name.sql";

	append_to_file($file, $script{$name}) unless -e $file;
	$node->safe_psql('postgres', 'UPDATE register SET grants = 0');
	$node->command_ok(
		[
			'pgbench', '-n', '-h', $node->host, '-p', $node->port,
			'-c', $clients, '-j', 2, '-T', $seconds, '-f', $file, 'postgres'
		],
		"$what: no error");
	my ($grants, $inside, $twice, $inversions) = split /\|/,
	  $node->safe_psql('postgres',
		'SELECT sum(grants), sum(inside), sum(twice), sum(inversions) FROM register');
	note "$what: $grants grants";
	cmp_ok($grants, '>', $clients, "$what: there were grants");
	is("$inside $twice $inversions", '0 0 0',
		"$what: nobody inside, no overlap, no version out of order");
	return;
}

my %level = (
	'read committed' => '-c default_transaction_isolation=read\ committed',
	'repeatable read' => '-c default_transaction_isolation=repeatable\ read',
	'serializable' => '-c default_transaction_isolation=serializable');

contend('hot', 5, $level{'read committed'}, 'one key');
contend('hot', 2, $level{'repeatable read'}, 'one key, repeatable read');
contend('hot', 2, $level{'serializable'}, 'one key, serializable');
contend('one', 2, $level{'read committed'}, 'one transaction a grant');
contend('many', 2, "$level{'read committed'} -c synchronous_commit=off", 'ten keys');

# While a session holds an old snapshot, no dead row version can be removed.
my $old = session($node);
ask($old, 'BEGIN ISOLATION LEVEL REPEATABLE READ');
ask($old, 'SELECT count(*) FROM register');
contend('hot', 3, $level{'read committed'}, 'one key, under an old snapshot');
contend('many', 2, $level{'repeatable read'}, 'ten keys, under an old snapshot');

# The holder renews, under the old snapshot hardly ever in place.  A process that looks
# meanwhile finds the row, even without a hint.
my $kept = $node->safe_psql('postgres', "SELECT dlock_acquire('kept', '1h')");
my %look = (
	refresh => "SELECT 1 / (dlock_refresh('kept', $kept) IS NOT NULL)::int;",
	check => "SELECT poison('kept', 100), 1 / (dlock_check('kept', $kept) = 'held')::int;",
	fence => "SELECT poison('kept', 100), dlock_fence('kept', $kept);");
$node->safe_psql('postgres',
	"CREATE FUNCTION poison(text, int) RETURNS void LANGUAGE C AS 'dlock_test', 'dlock_test_poison_hints'");
append_to_file($node->basedir . "/$_.sql", $look{$_}) foreach keys %look;
$node->command_ok(
	[
		'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', 6, '-j', 2, '-T', 4,
		(map { ('-f', $node->basedir . "/$_.sql") } sort keys %look), 'postgres'
	],
	'a lookup finds a row that is being renewed');
$node->safe_psql('postgres', "SELECT dlock_release('kept', $kept)");
ask($old, 'COMMIT');

# A failed try has no transaction id, and so has locked nothing, even if the key is taken by
# a transaction that commits while the try looks whether that has ended.
append_to_file($node->basedir . '/hot.sql', q{
DO $$
DECLARE
	granted bigint;
	until timestamptz := clock_timestamp() + interval '4 s';
BEGIN
	WHILE clock_timestamp() < until LOOP
		granted := dlock_acquire('hot', '10min');
		IF granted IS NULL AND pg_current_xact_id_if_assigned() IS NOT NULL THEN
			RAISE 'a failed try has a transaction id';
		END IF;
		COMMIT;
		PERFORM dlock_release('hot', granted) WHERE granted IS NOT NULL;
		COMMIT;
	END LOOP;
END $$;
});
$node->command_ok(
	[
		'env', 'PGOPTIONS=-c synchronous_commit=off -c dlock.durable_grants=off',
		'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', 4, '-j', 2, '-t', 1, '-f', $node->basedir . '/hot.sql', 'postgres'
	],
	'a failed try locks nothing');

# The reaper removes free rows all the time, so that keys have no row again.
$node->append_conf('postgresql.conf', "dlock.reap_interval = '5ms'");
$node->reload;
my $inserted = "SELECT pg_stat_get_tuples_inserted('dlock.locks'::regclass)";
my $before = $node->safe_psql('postgres', $inserted);
contend('stampede', 4, $level{'read committed'}, 'new keys');
contend('stampede', 2, $level{'repeatable read'}, 'new keys, repeatable read');
ask($old, 'BEGIN ISOLATION LEVEL REPEATABLE READ');
ask($old, 'SELECT count(*) FROM register');
contend('stampede', 2, $level{'read committed'}, 'new keys, under an old snapshot');
end_session($old);
ok($node->poll_query_until('postgres', "SELECT ($inserted) > $before + 200"),
	'keys were new hundreds of times');

is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_locks'), 0, 'nothing is held');
is($node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT key FROM dlock.locks GROUP BY key HAVING count(*) > 1) d'),
	0, 'no key has two rows');
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM dlock.locks')
  or die 'the rows are not removed';
$node->stop;
done_testing();
