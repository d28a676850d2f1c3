# The statistics: exact counts, what a rollback leaves of them, and where they go when a
# backend exits.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node('stats', conf => "deadlock_timeout = 60s\n");
my $now = client($node, 'now');
my ($a, $b) = map { client($node, $_) } qw(a b);

# The counters that are not zero, except for times: "busy 1 grants 2".
sub counted
{
	return $now->ask_it(
		q{SELECT coalesce(string_agg(key || ' ' || value, ' ' ORDER BY key), '')
		  FROM dlock_stats s, jsonb_each_text(to_jsonb(s) - '{wait_time,yield_time,yield_max,stats_reset}'::text[])
		  WHERE value <> '0'});
}

sub reset_stats
{
	$now->ask_it('SELECT dlock_stats_reset()');
	return;
}

sub counts
{
	my ($expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(counted(), $expected, $what);
	reset_stats();
	return;
}

is(counted(), '', 'all zero after a start');
is($now->ask_it("SELECT stats_reset BETWEEN pg_postmaster_start_time() - interval '1min' AND now() FROM dlock_stats"), 't', 'since the start');

# What a transaction did counts when it commits.
my $version = $a->ask_it("SELECT dlock_acquire('a', '1h', owner => 'x')");
counts('grants 1', 'a grant');
$a->ask_it("SELECT dlock_acquire('a', '1h', owner => 'x')");
$a->ask_it("SELECT dlock_refresh('a', $version)");
counts('renewals 2', 'the same owner again, and a refresh, are renewals');
$a->ask_it("SELECT dlock_refresh('a', 99); SELECT dlock_release('a', 99); SELECT dlock_check('a', $version)");
counts('', 'what changes nothing counts nothing');
$a->ask_it("SELECT dlock_release('a', $version)");
counts('releases 1', 'a release');

$a->ask_it('BEGIN');
$version = $a->ask_it("SELECT dlock_acquire('a', '1h')");
$a->ask_it("SELECT dlock_refresh('a', $version)");
$a->ask_it("SELECT dlock_release('a', $version)");
is(counted(), '', 'not before the commit');
$a->ask_it('ROLLBACK');
counts('', 'a rollback counts nothing');

$a->ask_it("BEGIN; SELECT dlock_acquire('a', '1h'); SAVEPOINT s; SELECT dlock_acquire('b', '1h'); SAVEPOINT t; SELECT dlock_acquire('c', '1h')");
$a->ask_it("ROLLBACK TO s; SELECT dlock_acquire('d', '1h'); SAVEPOINT u; SELECT dlock_acquire('e', '1h'); RELEASE u; COMMIT");
counts('grants 3', 'nor does a rollback to a savepoint');
$a->ask_it("BEGIN; SELECT dlock_release(key, version) FROM dlock_locks; SAVEPOINT s; SELECT dlock_acquire('a', '1h'); ROLLBACK TO s; COMMIT");
counts('releases 3', 'releases, and a grant that was rolled back');
$a->ask_it("DO \$\$ BEGIN PERFORM dlock_acquire('a', '1h'); RAISE 'no'; EXCEPTION WHEN raise_exception THEN NULL; END \$\$");
counts('', 'a block with an exception handler');
$a->ask_it("SELECT dlock_acquire('n' || i, '1h') FROM generate_series(1, 1000) i");
counts('grants 1000', 'many in one statement');
$version = $a->ask_it("SELECT dlock_acquire('r', '1h')");
$a->ask_it("SELECT dlock_refresh('r', $version) FROM generate_series(1, 1000) i");
counts('grants 1 renewals 1000', 'the same key many times');
$a->ask_it("SELECT dlock_fence('r', $version) FROM generate_series(1, 1000) i");
counts('', 'a fence that holds counts nothing');

# What failed counts at once.
$b->ask_it("BEGIN; SELECT dlock_acquire('r'); SELECT dlock_acquire('r')");
is(counted(), 'busy 2', 'busy');
$b->ask_it('ROLLBACK');
counts('busy 2', 'busy, whatever becomes of the transaction');
is($b->ask_it("SELECT dlock_acquire('r', priority => 1)"), $version + 1, 'a holder without cleanup loses it at once');
counts('grants 1 preempted 1', 'preempted');
$now->ask_it("SELECT dlock_force_release('r', 'test')");
counts('forced 1', 'forced');
$b->ask_it("BEGIN; SELECT dlock_acquire('r', '1h', cleanup => '1h'); COMMIT");
is($a->ask_it("SELECT dlock_acquire('r', priority => 1)"), 'ERROR 55P03', 'without waiting, the holder is not asked');
counts('busy 1 grants 1', 'that is busy');
is($a->ask_it("SELECT dlock_fence('r', 1)"), 'ERROR LK001', 'a fence rejects');
$a->ask_it(
	q{CREATE TABLE t (id int, token bigint); INSERT INTO t VALUES (1);
	  CREATE TRIGGER f BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('t:{id}')});
is($a->ask_it('UPDATE t SET id = 1'), 'ERROR LK001', 'the trigger rejects a writer without a token');
is($a->ask_it("BEGIN; SET LOCAL dlock.token = '1'; UPDATE t SET id = 1"), 'ERROR LK001', 'or with an old one');
$a->ask_it('ROLLBACK');
counts('fence_rejected 3', 'rejected by a fence');

# Waits.
sub wait_times
{
	return $now->ask_it("SELECT coalesce(string_agg(coalesce(upper::text, 'more') || ' ' || count, ' ' ORDER BY upper), '')"
		  . " FROM dlock_wait_times WHERE count > 0");
}
is($b->ask_it("SELECT dlock_acquire('r', '1h', wait => '30ms')"), '', 'a wait that times out');
is(counted(), 'timeouts 1 waits 1', 'counts as such');
like(wait_times(), qr/^00:00:\d\d\.\d+ 1$/, 'and in the histogram');
is($now->ask_it(
	"SELECT sum(count) = (SELECT waits FROM dlock_stats) AND (SELECT wait_time FROM dlock_stats) BETWEEN '30ms' AND max(upper)
	   FROM dlock_wait_times WHERE count > 0"),
	't', 'with its time');
is($now->ask_it("SELECT count(*), count(upper), bool_and(upper > '0') FROM dlock_wait_times"), '18|17|t', '18 buckets');
reset_stats();
is(wait_times(), '', 'a reset clears the histogram');
is($b->ask_it("SET lock_timeout = '20ms'; SELECT dlock_acquire('r', '1h', wait => NULL)"), 'ERROR 55P03', 'lock_timeout');
counts('timeouts 1 waits 1', 'is a timeout, too');
is($b->ask_it("RESET lock_timeout; SET statement_timeout = '50ms'; SELECT dlock_acquire('r', '1h', wait => NULL)"), 'ERROR 57014', 'a cancelled wait');
$b->ask_it('RESET statement_timeout');
counts('waits 1', 'is none');
$b->start("SELECT dlock_acquire('r', '1h', wait => NULL)");
until_waiting($node, $b, 'r');
is(counted(), 'waiting 1', 'waiting');
$now->ask_it("SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'r'");
like($b->answer, qr/^\d+$/, 'a wait that succeeds');
counts('grants 1 releases 1 waits 1', 'counts once');
$a->start("SELECT dlock_watch('r', version, NULL) FROM dlock_locks WHERE key = 'r'");
until_waiting($node, $a, 'r');
counts('', 'a watcher does not wait for a turn');
$now->ask_it("SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'r'");
$a->answer;
reset_stats();

# a backend that is terminated while it waits
$now->ask_it("SELECT dlock_acquire('r', '1h')");
reset_stats();
my $c = client($node, 'c');
$c->start("SELECT dlock_acquire('r', '1h', wait => NULL)");
until_waiting($node, $c, 'r');
$now->ask_it("SELECT pg_terminate_backend($c->{pid}, 60000)");
$c->lost;
counts('waits 1', 'a waiter that is terminated');

# Yielding.
$version = $a->ask_it("SELECT dlock_acquire('y', '1h', cleanup => '1h')");
$b->start("SELECT dlock_acquire('y', '1h', wait => '1h', priority => 1)");
until_sql($node, 'SELECT asked FROM dlock_stats', 1, 'a holder is asked to yield');
$a->ask_it("BEGIN; SELECT dlock_release('y', $version); ROLLBACK");
is(counted(), 'asked 1 grants 1 waiting 1', 'a release that is rolled back');
$a->ask_it("SELECT dlock_release('y', $version)");
$b->answer;
is(counted(), 'asked 1 grants 2 releases 1 waits 1 yielded 1', 'yielded');
is($now->ask_it("SELECT yield_time > '0' AND yield_time = yield_max AND yield_max < wait_time FROM dlock_stats"), 't', 'in that time');
reset_stats();
is($now->ask_it("SELECT yield_time, yield_max FROM dlock_stats"), '00:00:00|00:00:00', 'a reset');
$now->ask_it("SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'y'");
reset_stats();
$a->ask_it("SELECT dlock_acquire('z', '1h', cleanup => '20ms')");
like($b->ask_it("SELECT dlock_acquire('z', '1h', wait => '1h', priority => 1, force => true)"), qr/^\d+$/, 'a holder that does not yield');
counts('asked 1 grants 2 preempted 1 waits 1', 'is preempted');

# Deadlocks.
$a->ask_it("SET deadlock_timeout = '50ms'; BEGIN; SELECT dlock_acquire('d1', '1h')");
$b->ask_it("SET deadlock_timeout = '1h'; BEGIN; SELECT dlock_acquire('d2', '1h')");
$b->start("SELECT dlock_acquire('d1', '1h', wait => NULL)");
until_waiting($node, $b, 'd1');
is($a->ask_it("SELECT dlock_acquire('d2', '1h', wait => NULL)"), 'ERROR 40P01', 'a deadlock');
$a->ask_it('ROLLBACK');
$b->answer;
$b->ask_it('ROLLBACK');
counts('deadlocks 1 waits 2', 'counts once');

# Expiry: seen by the next grant, or by the reaper.
$a->ask_it("SELECT dlock_acquire('e1', '10ms'); SELECT dlock_acquire('e2', '10ms'); SELECT pg_sleep(0.02)");
counts('grants 2', 'nobody has seen that they expired');
$b->ask_it("BEGIN; SELECT dlock_acquire('e1', '1h'); ROLLBACK");
counts('', 'a rollback has not, either');
$b->ask_it("SELECT dlock_acquire('e1', '1h')");
counts('expired 1 grants 1', 'the next grant sees it');
$node->append_conf('postgresql.conf', "dlock.reap_interval = '10ms'\n");
$node->reload;
until_sql($node, 'SELECT expired FROM dlock_stats', 1, 'the reaper sees the other, and hands over its counts');
$node->append_conf('postgresql.conf', "dlock.reap_interval = 0\n");
$node->reload;
until_sql($node, "SELECT setting FROM pg_settings WHERE name = 'dlock.reap_interval'", 0, 'the reaper is off again');
until_sql($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'dlock reaper'", 0, 'and has left');
reset_stats();

# A backend that exits hands its counts over, the end of its session locks included.
$c = client($node, 'c');
$c->ask_it("SELECT dlock_acquire('s1', '1h', session => true); SELECT dlock_acquire('s2', '1h', session => true); SELECT dlock_acquire('s1')");
is(counted(), 'busy 1 grants 2', 'a session');
$c->leave;
until_sql($node, 'SELECT releases FROM dlock_stats', 2, 'its locks are released at its end');
counts('busy 1 grants 2 releases 2', 'and its counts stay');
$node->safe_psql('postgres', "SELECT dlock_acquire('s3', '1h')") foreach 1 .. 3;
counts('busy 2 grants 1', 'as do those of many short sessions');

# Databases are apart.
$node->safe_psql('postgres', 'CREATE DATABASE other');
add_extension_in($node, 'other');
$node->safe_psql('other', "SELECT dlock_acquire('o', '1h')") foreach 1 .. 2;
is(counted(), '', 'nothing of another database');
is($node->safe_psql('other', 'SELECT grants, busy FROM dlock_stats'), '1|1', 'which has its own counts');
is($node->safe_psql('other', 'SELECT * FROM dlock_contended'), 'o|1|0|00:00:00|0', 'and its own contended keys');

# Contended keys.
reset_stats();
$now->ask_it("SELECT dlock_acquire('hot' || i, '1h') FROM generate_series(1, 3) i");
$a->ask_it("SELECT dlock_acquire('hot' || i, '1h') FROM generate_series(1, 3) i, generate_series(1, i * 10)");
$b->ask_it("SELECT dlock_acquire('hot2', '1h') FROM generate_series(1, 5)");
$b->ask_it("SELECT dlock_acquire('hot3', '1h', wait => '10ms')");
is($now->ask_it("SELECT string_agg(concat_ws(' ', key, busy, waits, wait_time >= '10ms'), ', ') FROM dlock_contended"),
	'hot3 30 1 t, hot2 25 0 f, hot1 10 0 f', 'contended keys, with the counts of all backends');
$now->ask_it('SELECT dlock_stats_reset()');
is($now->ask_it('SELECT count(*) FROM dlock_contended'), 0, 'a reset forgets them');

# Losses, by key: what its holder did not end.
my $lost = "SELECT string_agg(concat_ws(' ', key, lost), ', ' ORDER BY key) FROM dlock_contended";
$a->ask_it("SELECT dlock_acquire('l' || i, '1h') FROM generate_series(1, 3) i");
$now->ask_it("BEGIN; SELECT dlock_force_release('l1', 'test'); ROLLBACK");
$now->ask_it("BEGIN; SAVEPOINT s; SELECT dlock_force_release('l1', 'test'); ROLLBACK TO s; COMMIT");
$a->ask_it("SELECT dlock_release('l1', version) FROM dlock_get('l1')");
is($now->ask_it($lost), '', 'a rollback loses nothing, nor does a release');
$now->ask_it("SELECT dlock_force_release('l2', 'test')");
$b->ask_it("SELECT dlock_acquire('l3', priority => 1)");
$a->ask_it("SELECT dlock_acquire('l2', '1ms', lazy => true); SELECT pg_sleep(0.01)");
$b->ask_it("SELECT dlock_acquire('l2', '1h')");
is($now->ask_it($lost), 'l2 2, l3 1', 'forced, preempted and lapsed ones are counted');
$a->ask_it("SELECT dlock_acquire('l4', '1ms')");
wait_until('it has expired', sub { $a->ask_it("SELECT dlock_acquire('l4', '1h')") ne '' });
is($now->ask_it($lost), 'l2 2, l3 1, l4 1', 'as is one that has expired');
$now->ask_it('SELECT dlock_stats_reset()');

# 20,000 keys that are busy once do not displace those that are busy often
$now->ask_it("SELECT dlock_acquire('cold' || i, '1h') FROM generate_series(1, 20000) i");
$a->ask_it("SELECT dlock_acquire('hot' || i, '1h') FROM generate_series(1, 3) i, generate_series(1, 300)");
$a->ask_it("SELECT dlock_acquire('cold' || i, '1h') FROM generate_series(1, 20000) i");
$b->ask_it("SELECT dlock_acquire('hot' || i, '1h') FROM generate_series(1, 3) i, generate_series(1, 300)");
is($now->ask_it("SELECT string_agg(key || ' ' || busy, ', ' ORDER BY key) FROM (SELECT * FROM dlock_contended LIMIT 3) t"),
	'hot1 600, hot2 600, hot3 600', 'the hot ones stay in front');
is($now->ask_it('SELECT count(*) FROM dlock_contended'), 100, 'at most 100 are shown');
cmp_ok($now->ask_it('SELECT sum(busy) FROM dlock_contended'), '<=', 21800, 'and no more than there was');

# Several holders of a key.
reset_stats();
$now->ask_it("SELECT dlock_force_release(key, 'test') FROM dlock_locks WHERE key ~ '^hot|^n|^k'");
reset_stats();
$a->ask_it("SELECT dlock_acquire('p', '1h', owner => i::text, slots => 3, cleanup => '1h') FROM generate_series(1, 3) i");
is($b->ask_it("SELECT dlock_acquire('p', '1h', slots => 3)"), '', 'a full semaphore');
counts('busy 1 grants 3', 'places');
is($a->ask_it("SELECT count(dlock_release('p', owner => i::text)) FROM generate_series(2, 3) i"), 2, 'released');
counts('releases 2', 'released places');
like($a->ask_it("SELECT dlock_acquire('p', '1h', owner => '1')"), qr/^\d+$/, 'an upgrade');
counts('grants 1 releases 1', 'ends the place, and is a new grant');
like($a->ask_it("SELECT dlock_acquire('p', '1h', owner => '1', shared => true)"), qr/^\d+$/, 'a downgrade');
counts('renewals 1', 'is the same grant');
$a->ask_it("SELECT dlock_acquire('p', '1h', owner => i::text, shared => true, cleanup => '1h') FROM generate_series(2, 3) i");
reset_stats();
$b->start("SELECT dlock_acquire('p', '1h', wait => '1h', priority => 1)");
until_sql($node, 'SELECT asked FROM dlock_stats', 2, 'those with time to clean up are asked');
$a->ask_it("SELECT dlock_release('p', owner => '3')");
is(counted(), 'asked 2 releases 1 waiting 1 yielded 1', 'one of them yields');
$now->ask_it("SELECT dlock_force_release('p', 'test', version) FROM dlock_locks WHERE key = 'p' AND owner = '2'");
like($b->answer, qr/^\d+$/, 'granted');
counts('asked 2 forced 1 grants 1 preempted 1 releases 1 waits 1 yielded 1', 'the others are preempted or forced');
$a->ask_it("SELECT dlock_acquire('m', '1h', owner => i::text, shared => true) FROM generate_series(1, 5) i");
reset_stats();
$b->ask_it("SELECT dlock_acquire('m', '1h', priority => 1)");
counts('grants 1 preempted 5', 'five at once');
is($b->ask_it("SELECT dlock_acquire_all('{m,v,w}', '1h')"), '', 'several keys, one of them busy');
counts('busy 1', 'is one busy acquire');
like($b->ask_it("SELECT dlock_acquire_all('{v,w}', '1h')"), qr/^\{\d+,\d+\}$/, 'several keys');
counts('grants 2', 'are several grants');
$a->ask_it("SELECT dlock_acquire('x', '1h', priority => 9)");
is($b->ask_it("SELECT dlock_acquire_all('{a2,x}', '1h', wait => '20ms')"), '', 'several keys, one of them not in time');
counts('grants 1 timeouts 1 waits 1', 'what is given back does not count');

# Lazy grants.
$a->ask_it("SELECT dlock_acquire('l', '10ms', lazy => true); SELECT pg_sleep(0.02)");
reset_stats();
like($b->ask_it("SELECT dlock_acquire('l', '1h')"), qr/^\d+$/, 'a lapsed grant');
counts('grants 1 lapsed_taken 1', 'is taken');

# Roles: everybody sees the numbers, nobody resets them without the privilege.
$node->safe_psql('postgres', 'CREATE ROLE nosy');
is($node->safe_psql('postgres', 'SET ROLE nosy; SELECT count(*) FROM dlock_stats, dlock_wait_times'), 18, 'the numbers are for everybody');
fails_with($node, 'SET ROLE nosy; SELECT dlock_stats_reset()', '42501', [], 'a reset is not');
$node->safe_psql('postgres', 'GRANT EXECUTE ON FUNCTION dlock_stats_reset TO nosy');
$node->safe_psql('postgres', 'SET ROLE nosy; SELECT dlock_stats_reset()');
is(counted(), '', 'unless it is granted');
isnt($now->ask_it('SELECT stats_reset FROM dlock_stats'), '', 'and its time is known');

# Zero after a crash; in a read-only transaction.
$a->ask_it("SELECT dlock_acquire('k', '1h')");
is(counted(), 'grants 1', 'before a crash');
kill 'KILL', $a->{pid};
$_->lost foreach $a, $b, $now;
$node->poll_query_until('postgres', 'SELECT true');
$now = client($node, 'again');
is(counted(), '', 'zero after it');
is($now->ask_it('BEGIN READ ONLY; SELECT grants FROM dlock_stats; COMMIT'), 0, 'in a read-only transaction');
$now->ask_it("SELECT dlock_acquire('k2', '1h')");
is(counted(), 'grants 1', 'and it continues');

close_clients($now);
DlockWait::close_monitors();
$node->stop;
done_testing();
