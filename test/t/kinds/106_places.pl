# Places: an owner finds its own without a hint, and a semaphore is exact whatever the
# transactions before did and however they ended.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node('places', conf => "max_prepared_transactions = 1\n");
my ($one, $two) = map { client($node, $_) } qw(one two);

#
# After a restart there are no hints.  An owner gets its own place again, even if nobody else
# would get one.
#

my %version;

foreach my $owner (qw(a b))
{
	$version{"shared $owner"} = $one->ask_it("SELECT dlock_acquire('shared', '1h', '$owner', shared => true)");
	$version{"places $owner"} = $one->ask_it("SELECT dlock_acquire('places', '1h', '$owner', slots => 2)");
}
my $cools = $one->ask_it("SELECT dlock_acquire('cools', '1h', 'a', shared => true, at_least => '1h')");
$one->ask_it("SELECT dlock_release('cools', $cools)");
$version{'alone a'} = $one->ask_it("SELECT dlock_acquire('alone', '1h', 'a', shared => true)");
$_->leave foreach $one, $two;
$node->restart;
($one, $two) = map { client($node, $_) } qw(one two);

$two->start("SELECT dlock_acquire('shared', '1h', 'writer', wait => '1h')");
until_waiting($node, $two, 'shared');
is($one->ask_it("SELECT dlock_acquire('shared', '1h', 'c', shared => true)"), '', 'a reader stands behind the writer');
is($one->ask_it("SELECT dlock_acquire('shared', '1h', 'a', shared => true)"), $version{'shared a'}, 'but not one that has its place');
is($one->ask_it("SELECT dlock_acquire('places', '1h', 'c', slots => 2)"), '', 'no place is left');
is($one->ask_it("SELECT dlock_acquire('places', '1h', 'b', slots => 2)"), $version{'places b'}, 'but an owner has its own');
is($one->ask_it("SELECT dlock_acquire('alone', '1h', 'a', shared => true)"), $version{'alone a'}, 'a free key gives no second place');
is($node->safe_psql('postgres', q{SELECT key, count(*) FROM dlock.locks WHERE slot > 0 GROUP BY key ORDER BY key}),
	"alone|1\ncools|1\nplaces|2\nshared|2", 'an owner has one row');
$one->ask_it("SELECT dlock_release('shared', owner => '$_')") foreach qw(a b);
$two->answer;
$two->ask_it("SELECT dlock_release('shared', owner => 'writer')");

#
# A semaphore is exact, whatever the transactions before did and however they ended: a place is
# granted if and only if fewer are held.
#

srand(1);
my $slots = 5;
my ($granted, $refused, $wrong) = (0, 0, 0);
my @keys = map { "semaphore:$_" } 1 .. 3;

# one that somebody else may hold, or a new one
sub any_owner { return 'o' . int rand 9; }

sub some_step
{
	my ($key) = @_;
	my $dice = rand;

	return $dice < 0.45 ? "SELECT dlock_acquire('$key', '1h', '" . any_owner() . "', slots => $slots)" :
	  $dice < 0.85 ? "SELECT dlock_release('$key', owner => '" . any_owner() . "')" :
	  $dice < 0.95 ? "SELECT dlock_acquire('$key', '1h', shared => true)" :
	  "SELECT dlock_release('$key', version) FROM (SELECT version FROM dlock_locks WHERE key = '$key' AND owner IS NULL) AS v";
}

# A request whose own mark is gone looks for ever.
$_->ask_it("SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s'") foreach $one, $two;
foreach my $i (1 .. 150)
{
	my $key = $keys[ int rand @keys ];
	my @steps = map { some_step($key) } 1 .. 1 + int rand 6;

	if (rand() < 0.3)
	{
		splice @steps, int(rand @steps), 0, 'SAVEPOINT s';
		push @steps, 'ROLLBACK TO s', rand() < 0.5 ? some_step($key) : ();
	}
	$one->ask_it(join '; ', 'BEGIN', @steps, rand() < 0.3 ? 'ROLLBACK' : 'COMMIT');

	my $held = $two->ask_it("SELECT count(*) FROM dlock_locks WHERE key = '$key'");
	my $version = $two->ask_it("SELECT dlock_acquire('$key', '1h', 'probe', slots => $slots)");
	my $is_granted = $version ne '';

	die "$key: $version" if $version =~ /ERROR/;
	$is_granted ? $granted++ : $refused++;
	$wrong++ if $is_granted != ($held < $slots);
	$two->ask_it("SELECT dlock_release('$key', $version)") if $is_granted;
}
is($wrong, 0, 'places are granted if and only if there are some');
cmp_ok($granted, '>', 10, 'some were');
cmp_ok($refused, '>', 10, 'some were not');

#
# Places that a transaction has deleted come back if it rolls back.
#

$one->ask_it("SELECT dlock_acquire('back', '1h', 'o$_', slots => 3)") foreach 1 .. 3;
is($two->ask_it("SELECT dlock_acquire('back', '1h', 'p', slots => 3)"), '', 'all three are taken');
$one->ask_it("BEGIN; SELECT dlock_release('back', owner => 'o1')");
$one->ask_it("SELECT dlock_release('back', owner => 'o2')");
isnt($one->ask_it("SELECT dlock_acquire('back', '1h', 'o4', slots => 3)"), '', 'two of them are given back, one is taken');
is($two->ask_it("SELECT dlock_acquire('back', '1h', 'p', slots => 3)"), '', 'nobody else gets one meanwhile');
$one->ask_it('ROLLBACK');
is($two->ask_it("SELECT dlock_acquire('back', '1h', 'p', slots => 3)"), '', 'nor after a rollback');
$one->ask_it("SELECT dlock_release('back', owner => 'o3')");
isnt($two->ask_it("SELECT dlock_acquire('back', '1h', 'p', slots => 3)"), '', 'but after a release');

#
# An exclusive grant and a shared one exclude each other, in every order and by every way that a
# head comes and goes.
#

foreach my $i (1 .. 40)
{
	my $by = $i % 2 ? $one : $two;
	my $shared = $by->ask_it("SELECT dlock_acquire('head', '1h', 'r', " . ($i % 3 ? 'shared => true' : 'slots => 4') . ')');

	$wrong++ if $shared eq '' || $two->ask_it("SELECT dlock_acquire('head', '1h', 'w')") ne '';
	$by->ask_it("SELECT dlock_release('head', $shared)");
	my $alone = $two->ask_it("SELECT dlock_acquire('head', '1h', 'w')");
	$wrong++ if $alone eq '' || $one->ask_it("SELECT dlock_acquire('head', '1h', 'r', shared => true)") ne '';
	$two->ask_it("SELECT dlock_release('head', $alone)");
	$one->ask_it('BEGIN; SELECT ' . "dlock_acquire('head', '1h', 'w'); ROLLBACK") if $i % 4 == 0;
	$node->safe_psql('postgres', "DELETE FROM dlock.locks WHERE key = 'head'") if $i % 5 == 0;
}
is($wrong, 0, 'never both');

#
# A writer has found that nobody shares the key, and has not locked the head yet, when the first
# reader comes.  Only one of them gets it.  Both are held up where they are about to draw a
# version; the number of times that the index is read tells that the key is not marked.
#

my $scans = q{pg_stat_get_xact_numscans('dlock.locks_pkey'::regclass)};

$one->ask_it("SELECT dlock_release('mark', dlock_acquire('mark'))");
until_sql(
	$node,
	"SELECT after - before FROM (SELECT $scans AS before, dlock_acquire('mark') AS v, $scans AS after) AS s, dlock_release('mark', v)",
	0, 'the key is not marked');

is($one->ask_it("BEGIN; SELECT dlock_acquire('cools', '1h', 'a', shared => true)"), '', 'a place that was there before cools');
is($one->ask_it('SELECT pg_current_xact_id_if_assigned()'), '', 'and the failed try has written nothing');
$one->ask_it('COMMIT');

my $blocker = client($node, 'blocker');

$blocker->ask_it('BEGIN; ALTER SEQUENCE dlock.versions INCREMENT BY 1');
foreach my $case ([ $one, 'slots => 1' ], [ $two, 'shared => true' ])
{
	my ($client, $kind) = @$case;

	$client->start("SELECT dlock_acquire('mark', '1h', $kind)");
	wait_until('it is about to draw a version', sub { return waits_for($node, $client->pid) eq 'Lock relation' });
}
$blocker->ask_it('ROLLBACK');
my @got = grep { /./ } map { $_->answer } $one, $two;
is(scalar @got, 1, 'one of them has it');
$one->ask_it("SELECT dlock_release('mark', $_)") foreach @got;

#
# Rows that come from a dump count.
#

isnt($one->ask_it("SELECT dlock_acquire('dump', '1h', 'a', slots => 2)"), '', 'one of two places');
my $copy = $node->safe_psql('postgres', "COPY (SELECT * FROM dlock.locks WHERE key = 'dump') TO STDOUT");
$one->ask_it("SELECT dlock_release('dump', owner => 'a')");
isnt($one->ask_it("SELECT dlock_acquire('dump', '1h', 'b', slots => 2)"), '', 'another one');
$node->safe_psql('postgres', "COPY dlock.locks FROM STDIN;\n$copy\n\\.\n");
is($two->ask_it("SELECT dlock_acquire('dump', '1h', 'c', slots => 2)"), '', 'with the one from the dump these are two');

#
# A request that is cancelled while it ends many places, and whose savepoint is rolled back,
# leaves nothing behind that the next transaction could stumble over.
#

is($one->ask_it("SELECT count(dlock_acquire('crowd', '1h', 'o' || g, shared => true)) FROM generate_series(1, 9000) AS g"), 9000, 'many places');
isnt($one->ask_it("SELECT dlock_acquire('busy', '1h')"), '', 'another key');
foreach my $ms (8, 12, 16, 20, 24)
{
	$one->ask_it('BEGIN');
	$one->ask_it('SAVEPOINT before');
	$one->ask_it("SET LOCAL statement_timeout = '${ms}ms'");
	$one->ask_it("SELECT dlock_acquire('crowd', '1h', priority => 5)");
	$one->ask_it('ROLLBACK TO before');
	$one->ask_it("SELECT dlock_acquire('busy', '1h')");
	$one->ask_it('COMMIT');
	is($one->ask_it("SELECT count(dlock_acquire('more', '1h', 'm$ms' || g, shared => true)) FROM generate_series(1, 9000) AS g"), 9000, 'and the next');
}

#
# A key that is marked costs an exclusive request a look into the index.  The mark ends with
# the last place, however that ends.
#

sub index_reads
{
	$one->ask_it('SELECT pg_stat_force_next_flush()');
	return $one->ask_it(q{SELECT idx_blks_read + idx_blks_hit FROM pg_statio_all_indexes WHERE indexrelid = 'dlock.locks_pkey'::regclass});
}

# Do cycles of the key look into the index?
sub is_marked
{
	my $before = index_reads();

	$one->ask_it("SELECT dlock_release('marked', dlock_acquire('marked', '1h'))") foreach 1 .. 20;
	return index_reads() - $before >= 20;
}

$one->ask_it("SELECT dlock_release('marked', dlock_acquire('marked', '1h'))");
wait_until('it is known which keys have places', sub { return !is_marked() });
$one->ask_it("SELECT dlock_release('marked', dlock_acquire('marked', '1h', shared => true))");
is(is_marked(), '', 'a place that was released leaves no mark');
$one->ask_it("BEGIN; SELECT dlock_acquire('marked', '1h', slots => 2); ROLLBACK");
is(is_marked(), '', 'one that was rolled back');
$one->ask_it("BEGIN; SAVEPOINT s; SELECT dlock_acquire('marked', '1h', slots => 2); ROLLBACK TO s; COMMIT");
is(is_marked(), '', 'one that was rolled back to a savepoint');
my $exclusive = $one->ask_it("SELECT dlock_acquire('marked', '1h')");
is($two->ask_it("SELECT dlock_acquire('marked', shared => true)"), '', 'a request that is refused');
$one->ask_it("SELECT dlock_release('marked', $exclusive)");
is(is_marked(), '', 'leaves no mark');
my $place = $two->ask_it("SELECT dlock_acquire('marked', '1h', shared => true)");
$two->ask_it("BEGIN; SELECT dlock_release('marked', $place); ROLLBACK");
is($one->ask_it("SELECT dlock_acquire('marked')"), '', 'a place whose release was rolled back keeps a writer out');
is($two->ask_it("SELECT dlock_refresh('marked', $place) IS NOT NULL"), 't', 'it is refreshed');
is($one->ask_it("SELECT dlock_acquire('marked')"), '', 'and does still');
$two->ask_it("SELECT dlock_release('marked', $place)");
is(is_marked(), '', 'until it is released');
$place = $two->ask_it("SELECT dlock_acquire('marked', '1h', 'a', shared => true)");
$two->ask_it("BEGIN; SELECT dlock_handover('marked', $place, 'b'); ROLLBACK");
is($one->ask_it("SELECT dlock_acquire('marked')"), '', 'a place whose handover was rolled back keeps a writer out');
$place = $two->ask_it("SELECT dlock_handover('marked', $place, 'b')");
is($one->ask_it("SELECT dlock_acquire('marked')"), '', 'so does one that was handed over');
is($two->ask_it("SELECT dlock_refresh('marked', $place) IS NOT NULL"), 't', 'it is refreshed');
$two->ask_it("SELECT dlock_release('marked', $place)");
is(is_marked(), '', 'until it is released');

#
# A place that a prepared transaction has written by SQL counts after a restart, too: what was
# marked for it is gone with the run that marked it.
#

$one->ask_it("SELECT dlock_acquire('prepared', '1h', 'a', shared => true)");
$one->ask_it("CREATE TABLE kept AS SELECT * FROM dlock.locks WHERE key = 'prepared'");
$one->ask_it("SELECT dlock_release('prepared', owner => 'a')");
$one->ask_it("BEGIN; INSERT INTO dlock.locks SELECT * FROM kept; PREPARE TRANSACTION 'place'");
$_->leave foreach $one, $two, $blocker;
$node->restart;
($one, $two, $blocker) = map { client($node, $_) } qw(one two blocker);
$one->ask_it("SELECT dlock_release('marked', dlock_acquire('marked', '1h'))");
wait_until('it is known again which keys have places', sub { return !is_marked() });
$one->ask_it("COMMIT PREPARED 'place'");
is($one->ask_it("SELECT dlock_acquire('prepared', '1h')"), '', 'a place that was prepared before a restart keeps a writer out');

#
# After a start it is not known which keys have places.  Without a reaper it never is.
#

is($one->ask_it("SELECT dlock_acquire('left', '1h', shared => true) IS NOT NULL"), 't', 'a reader');
$_->leave foreach $one, $two, $blocker;
DlockWait::close_monitors();
$node->append_conf('postgresql.conf', "max_worker_processes = 1\nmax_logical_replication_workers = 0");
$node->restart;
is($node->safe_psql('postgres', "SELECT dlock_acquire('left')"), '', 'keeps a writer out at once after a restart');

$node->stop;
done_testing();
