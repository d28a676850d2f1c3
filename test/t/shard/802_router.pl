# The router: the functions and views of dlock over two clusters.  Here the clusters are
# two databases of one server; 804_cluster.pl has servers.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockCli;
use DlockRouter;
use DlockTest;
use DlockWait;

need_plproxy();

my $node = new_node('node', bare => 1);
my @connection = map { address($node, $_) } qw(a b);
my ($low, $high) = (key_of(17), key_of(1000));
my @low = keys_of(17, 3);

sub serve
{
	my ($database, $shards) = @_;

	$node->safe_psql($database, "SELECT dlock_serve('$shards')");
	return;
}

# In the router.
sub sql
{
	return $node->safe_psql('router', $_[0]);
}

sub refused
{
	my ($sql, $code, $patterns, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	fails_with($node, $sql, $code, $patterns, $what, database => 'router');
	return;
}

foreach my $database (qw(a b))
{
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	add_extension_in($node, $database);
}
serve('a', '{[0,512)}');
serve('b', '{[512,1024)}');
new_router($node, 'router');

#
# The map
#

is(sql("SELECT dlock_shard('$low')"), 17, 'the shard is what a client computes');
is(sql(q{SELECT string_agg(CASE WHEN dlock_shard(v.key) = v.shard THEN 'same' ELSE v.key END, ' ')
	FROM (VALUES ('a', 579), ('b', 1017), ('invoice:42', 1006), (' ', 837), ('0', 801), ('jobs/nightly', 891),
	(U&'Gr\00FC\00DFe', 113), (U&'\9375', 824), (U&'\+01F511', 698)) v(key, shard)}),
	join(' ', ('same') x 9), 'as on every server and for ever');
refused("SELECT dlock_acquire('a')", '55000', [qr/dlock_router\.clusters/], 'a router without clusters');
is(sql('SELECT status, detail FROM dlock_health()'), 'problem|the router has no clusters', 'and its health');

refused("INSERT INTO dlock_router.clusters VALUES ('a', '{[0,512)}', 'dbname=a')", '23514',
	[qr/DETAIL:  \{\[512,1024\)\}/, qr/in one transaction/], 'a map with a gap');
refused("INSERT INTO dlock_router.clusters VALUES ('a', '{[0,1024)}', 'dbname=a'), ('b', '{[7,9)}', 'dbname=b')", '23514',
	[qr/DETAIL:  a and b: \{\[7,9\)\}/], 'a map with a shard of two clusters');
refused("INSERT INTO dlock_router.clusters VALUES ('a', '{[0,1025)}', 'dbname=a')", '23514', [], 'a shard that does not exist');
refused("INSERT INTO dlock_router.clusters VALUES ('a', '{[0,1024)}', '$_')", '23514', [qr/clusters_connection_check/], $_)
	foreach 'dbname=a password=x', 'user = postgres dbname=a', 'dbname=a options=-cwork_mem=1MB', 'postgresql://postgres\@localhost/a';
refused("SELECT dlock_acquire('a')", '55000', [], 'what was refused has no effect');

set_clusters($node, 'router', a => '{[0,512)}', $connection[0], b => '{[512,1024)}', $connection[1]);
refused('TRUNCATE dlock_router.clusters', '0A000', [qr/Use DELETE/], 'TRUNCATE');
$node->safe_psql('a', 'CREATE EXTENSION plproxy');
fails_with($node, 'CREATE EXTENSION dlock_router', '55000', [qr/a database of its own/], 'in a database with locks', database => 'a');
$node->safe_psql('a', 'DROP EXTENSION plproxy');

#
# The same functions and views
#

# name, arguments without those for results, type of the result
my $functions = q{SELECT p.prokind::text || ' ' || p.proname || '('
	|| regexp_replace(pg_get_function_arguments(p.oid), '(, )?OUT .*', '') || ') '
	|| CASE WHEN p.proretset THEN 'SETOF ' ELSE '' END || format_type(p.prorettype, NULL)
	FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_extension e ON e.oid = d.refobjid AND e.extnamespace = p.pronamespace
	WHERE e.extname ~ '^dlock' ORDER BY 1};
is(sql($functions), $node->safe_psql('a', $functions), 'the same functions with the same arguments');

my $columns = q{SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, NULL)
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
	WHERE c.relkind = 'v' AND c.relnamespace = 'public'::regnamespace
	AND c.relname NOT IN ('dlock_policies', 'dlock_served', 'dlock_stats_by_cluster') AND a.attname <> 'cluster'
	ORDER BY c.relname, a.attnum};
my $there = $node->safe_psql('a', $columns) =~ s/\bregrole\b/text/gr;
is(sql($columns), $there, 'the same views with the same columns, but roles are texts');

is(sql("SELECT dlock_acquire('$low', '1h', value => 'one'), dlock_acquire('$high', '1h', 'me', 'two')"), '1|1',
	'each cluster has its own versions');
is($node->safe_psql('a', 'SELECT key, value, role FROM dlock_locks'), "$low|one|postgres", 'one lock is on the first cluster');
is($node->safe_psql('b', 'SELECT key, value, owner FROM dlock_locks'), "$high|two|me", 'the other on the second');
is(sql("SELECT dlock_acquire('$low', '1h') IS NULL, dlock_acquire('$high', '1h', 'me')"), 't|1', 'busy, and the owner again');
is(sql("SELECT dlock_check('$low', 1), dlock_check('$high', owner => 'me'), dlock_check('$high', 9)"), 'held|held|held_by_other', 'dlock_check');
is(sql("SELECT dlock_refresh('$low', 1, '2h') > clock_timestamp() + interval '110 min', dlock_refresh('$low', 9) IS NULL"), 't|t', 'dlock_refresh');
is(sql("SELECT key, version, owner, role, value, state, ttl, cluster FROM dlock_get('$low')"), "$low|1||postgres|one|held|02:00:00|a", 'dlock_get');
is(sql('SELECT string_agg(cluster || key, $$ $$ ORDER BY cluster) FROM dlock_locks'), "a$low b$high", 'dlock_locks');
is(sql("SELECT (dlock_get('$low')).key, (dlock_get('$high')).key"), "$low|$high", 'several sets of rows at once');
is(sql("SELECT string_agg(dlock_acquire('m' || i, '1h')::text, ' ') IS NOT NULL FROM generate_series(1, 20) i"), 't', 'many calls in a statement');
is(sql('SELECT string_agg(key, $$ $$) FROM dlock_list($$m*$$, "limit" => 3)'), 'm1 m10 m11', 'dlock_list: the first keys of all clusters');
is(sql('SELECT string_agg(key, $$ $$) FROM dlock_list($$m*$$, after => $$m11$$, "limit" => 2)'), 'm12 m13', 'and those after a key');
is(sql('SELECT count(DISTINCT cluster) FROM dlock_list($$m*$$)'), 2, 'of both');
refused('SELECT * FROM dlock_list("limit" => 0)', '22023', [qr/limit must be greater than zero/], 'dlock_list');
is(sql("SELECT dlock_acquire_all(ARRAY['$low[1]', '$low[2]'], '1h') IS NOT NULL"), 't', 'dlock_acquire_all of one shard');
is(sql("SELECT dlock_acquire_all(ARRAY['$low[1]', '$low[2]'], '1h') IS NULL"), 't', 'which is busy now');
is(sql("SELECT dlock_release('$low', 1), dlock_release('$low', 1), dlock_release('$high', owner => 'me')"),
	'released|not_held|released', 'dlock_release');
is(sql('SELECT dlock_release_session()'), 0, 'there are no session locks');
is(sql("SELECT dlock_force_release('m1', 'test') IS NOT NULL, dlock_force_release('m1', 'test') IS NULL"), 't|t', 'dlock_force_release');
is(sql("SELECT dlock_acquire('$low', '1h', slots => 2) < dlock_acquire('$low', '1h', slots => 2), dlock_acquire('$low', '1h', slots => 2) IS NULL"),
	't|t', 'semaphores');
is(sql('SELECT grants > 20, busy > 0, (SELECT sum(grants) FROM dlock_stats_by_cluster) = grants FROM dlock_stats'), 't|t|t', 'dlock_stats');
is(sql('SELECT count(*) FROM dlock_stats_by_cluster WHERE grants > 0'), 2, 'of each cluster');
is(sql('SELECT count(*) FROM dlock_wait_times'), $node->safe_psql('a', 'SELECT count(*) FROM dlock_wait_times'), 'dlock_wait_times');
is(sql("SELECT cluster FROM dlock_contended WHERE key = '$low'"), 'a', 'dlock_contended');
is(sql(q{SELECT string_agg(name || ' ' || status, ', ' ORDER BY name) FROM dlock_health() WHERE name ~ '(server|shards)$'}),
	'a: server ok, a: shards ok, b: server ok, b: shards ok', 'dlock_health');
is(sql('SELECT name FROM dlock_health() LIMIT 1'), 'failover', 'the verdict comes first');
sql("SELECT dlock_force_release(key, 'test') FROM dlock_locks");

#
# Waiting
#

my $holder = client($node, 'holder', database => 'router');
my $waiter = client($node, 'waiter', database => 'router');
my $watcher = client($node, 'watcher', database => 'router');
my $version = $holder->ask_it("SELECT dlock_acquire('$low', '1h')");
my $in_queue = "SELECT count(*) FROM dlock_waiters WHERE key = '$low' AND cluster = 'a'";

$waiter->start("SELECT dlock_acquire('$low', '1h', wait => '1h')");
until_sql($node, $in_queue, 1, 'a waiter is in the queue of the cluster', database => 'router');
is($holder->ask_it("SELECT dlock_release('$low', $version)"), 'released', 'released');
cmp_ok(my $next = $waiter->answer, '>', $version, 'the waiter has it');
$watcher->start("SELECT dlock_watch('$low', $next, '1h')");
until_sql($node, $in_queue, 1, 'a watcher', database => 'router');
$holder->start("CALL dlock_lock('$low', '1h')");
until_sql($node, $in_queue, 2, 'dlock_lock waits', database => 'router');
is($waiter->ask_it("SELECT dlock_release('$low', $next)"), 'released', 'released');
cmp_ok($version = $holder->answer, '>', $next, 'dlock_lock returns the version');
like($watcher->answer, qr/^(|$version)$/, 'the watcher has seen a change');

$waiter->start("SELECT dlock_acquire('$low', '1h', wait => '1h')");
until_sql($node, $in_queue, 1, 'a waiter', database => 'router');
$node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
is($waiter->answer, 'ERROR 57014', 'is cancelled');
until_sql($node, $in_queue, 0, 'on the cluster, too', database => 'router');
is($waiter->ask_it("SET statement_timeout = '100ms'; SELECT dlock_acquire('$low', '1h', wait => '1h')"), 'ERROR 57014', 'statement_timeout');
until_sql($node, $in_queue, 0, 'also', database => 'router');
$waiter->ask_it('RESET statement_timeout');
$waiter->start("SELECT dlock_acquire('$low', '1h', wait => '1h')");
until_sql($node, $in_queue, 1, 'a waiter', database => 'router');
$node->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $waiter->pid . ')');
until_sql($node, $in_queue, 0, 'that dies leaves the queue of the cluster', database => 'router');
$waiter->lost;
is($holder->ask_it("SELECT dlock_release('$low', $version)"), 'released', 'released');

#
# Tickets: the number leads back to the cluster.
#

foreach my $key ($low, $high)
{
	my $held = sql("SELECT dlock_acquire('$key', '1h')");
	my $ticket = sql("SELECT dlock_enqueue('$key', '1h', 'later', wait => '1h')");

	is(sql("SELECT key, state, position FROM dlock_ticket($ticket)"), "$key|waiting|1", "$key: a ticket that waits");
	is(sql("SELECT dlock_enqueue('$key', '1h', 'later', wait => '1h')"), $ticket, 'asked again');
	is(sql("SELECT ticket FROM dlock_waiters WHERE key = '$key'"), $ticket, 'it is in dlock_waiters');
	is(sql("SELECT count(*) FROM dlock_ticket($ticket + 1024)"), 0, 'another one is not known');
	is(sql("SELECT dlock_release('$key', $held)"), 'released', 'its turn');
	until_sql($node, "SELECT state FROM dlock_ticket($ticket)", 'granted', 'is granted', database => 'router');
	is(sql("SELECT dlock_acquire('$key', '1h', 'later') = version FROM dlock_ticket($ticket)"), 't', 'with that version');
	my $second = sql("SELECT dlock_enqueue('$key', '1h', 'last', wait => '1h')");
	is(sql("SELECT dlock_dequeue($second), dlock_dequeue($second)"), 't|f', 'withdrawn');
	is(sql("SELECT dlock_release('$key', owner => 'later')"), 'released', 'released');
}

#
# Errors keep their codes.
#

refused("SELECT dlock_acquire(NULL)", '22004', [qr/key must not be null/], 'no key');
refused("SELECT dlock_acquire('')", '22023', [qr/key must not be empty/], 'an empty key');
refused("SELECT dlock_acquire('a', '-1s')", '22023', [qr/ttl must be greater than zero/], 'a TTL');
refused("SELECT dlock_release('a')", '22023', [], 'neither version nor owner');
$version = sql("SELECT dlock_acquire('$low', '1h', cleanup => '1h')");
refused("SELECT dlock_acquire('$low', '1h', priority => 1, wait => '1ms')", '55P03', [], 'a holder that does not yield');
is(sql("SELECT dlock_release('$low', $version)"), 'released', 'and keeps its lock');
serve('a', '{[18,512)}');
refused("SELECT dlock_acquire('$low')", 'LK002', [qr/Shard 17 is not served here/], 'a cluster that does not serve the shard');
is(sql(q{SELECT status, detail FROM dlock_health() WHERE name = 'a: shards'}),
	'problem|serves {[18,512)}, but the router sends it {[0,512)}', 'which dlock_health tells');
serve('a', '{[0,512)}');

#
# Roles
#

$node->safe_psql('postgres', 'CREATE ROLE app LOGIN; CREATE ROLE other LOGIN');
my %as = map { $_ => client($node, $_, database => 'router', psql => { extra_params => [ '-U', $_ ] }) } qw(app other);
$version = $as{app}->ask_it("SELECT dlock_acquire('$low', '1h', 'secret')");
is($node->safe_psql('a', "SELECT role FROM dlock_locks WHERE key = '$low'"), 'app', 'the role is that of the caller');
is($as{other}->ask_it("SELECT dlock_release('$low', $version), dlock_refresh('$low', $version) IS NULL"), 'held_by_other|t', 'another role has no part in it');
is($as{other}->ask_it("SELECT role, owner IS NULL FROM dlock_locks WHERE key = '$low'"), 'app|t', 'and does not see the owner');
is($as{app}->ask_it("SELECT role, owner FROM dlock_locks WHERE key = '$low'"), 'app|secret', 'who sees it');
is($as{app}->ask_it("SELECT dlock_force_release('$low', 'x')"), 'ERROR 42501', 'dlock_force_release is not for everybody');
$node->safe_psql('router', 'GRANT EXECUTE ON FUNCTION dlock_force_release TO app');
is($as{app}->ask_it("SELECT dlock_force_release('$low', 'x')"), 'ERROR 42501', 'and the cluster has its own opinion');
like($as{app}->said, qr/REMOTE ERROR: +permission denied/, 'which is the one that counts');
is($as{app}->ask_it("INSERT INTO dlock_router.clusters VALUES ('c', '{}', 'dbname=c')"), 'ERROR 42501', 'the map is not for everybody, either');
is($as{app}->ask_it('ALTER SERVER dlock_router OPTIONS (SET p0 $$dbname=c$$)'), 'ERROR 42501', 'nor is what is made of it');
is($holder->ask_it('SET ROLE other; ' . "SELECT dlock_release('$low', $version)"), 'held_by_other', 'SET ROLE counts');
$holder->ask_it('RESET ROLE');
is($as{app}->ask_it("SELECT dlock_release('$low', $version)"), 'released', 'its own');
$node->safe_psql('a', "SELECT dlock_policy('p:', 'app', false)");
my ($forbidden) = grep { sql("SELECT dlock_shard('$_') < 512") eq 't' } map { "p:$_" } 1 .. 100;
is($as{app}->ask_it("SELECT dlock_acquire('$forbidden')"), 'ERROR 42501', 'policies of the cluster count');

#
# Transactions: what they cannot undo is refused.
#

my $user = client($node, 'user', database => 'router');
my $try = "SELECT dlock_acquire('$low', '1h')";

$user->ask_it('CREATE TABLE t (i int)');
$user->ask_it("CREATE FUNCTION take() RETURNS bigint LANGUAGE plpgsql AS \$f\$ BEGIN RETURN dlock_acquire('$low', '1h', 'me'); END \$f\$");
foreach my $statement (
	"SELECT dlock_acquire('$low', '1h')", "SELECT dlock_acquire_all(ARRAY['$low'])", "CALL dlock_lock('$low')",
	"SELECT dlock_refresh('$low', 1)", "SELECT dlock_release('$low', 1)", "SELECT dlock_force_release('$low', 'x')",
	"SELECT dlock_enqueue('$low', NULL, 'me')", 'SELECT dlock_dequeue(1)')
{
	$user->ask_it('BEGIN');
	is($user->ask_it($statement), 'ERROR 25001', "in a transaction block: $statement");
	$user->ask_it('ROLLBACK');
}
$user->ask_it('BEGIN');
is($user->ask_it("SELECT dlock_check('$low', 1), (SELECT count(*) FROM dlock_locks) >= 0"), 'not_held|t', 'reading is allowed');
$user->ask_it('COMMIT');
$user->ask_it('BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY');
is($user->ask_it($try), 'ERROR 25006', 'in a read-only transaction');
$user->ask_it('ROLLBACK');
is($user->ask_it("SELECT 1\\; $try"), 'ERROR 25001', 'several statements in one message');
is($user->ask_it("DO \$\$ BEGIN BEGIN PERFORM dlock_acquire('$low'); EXCEPTION WHEN division_by_zero THEN NULL; END; END \$\$"),
	'ERROR 25001', 'in a subtransaction');
is($user->ask_it("DO \$\$ BEGIN INSERT INTO t VALUES (1); PERFORM dlock_acquire('$low'); END \$\$"), 'ERROR 25001', 'after a write');
is($user->ask_it("INSERT INTO t SELECT 1 WHERE take() IS NOT NULL"), 'ERROR 25001', 'before a write: the write fails');
is($user->ask_it('SELECT count(*) FROM t'), 0, 'and is undone');
like(sql("SELECT owner FROM dlock_get('$low')"), qr/^me$/, 'but not the grant, which is why');
is($user->ask_it("SELECT take() IS NOT NULL, dlock_release('$low', owner => 'me')"), 't|released', 'a function that only calls the router');
$user->ask_it('SET dlock_router.autocommit_ok = on');
$user->ask_it('BEGIN');
like($version = $user->ask_it($try), qr/^\d+$/, 'allowed by the caller');
$user->ask_it('INSERT INTO t VALUES (1)');
$user->ask_it('ROLLBACK');
is($user->ask_it("SELECT dlock_check('$low', $version), dlock_release('$low', $version)"), 'held|released', 'the rollback did not undo it');
$user->ask_it('RESET dlock_router.autocommit_ok');

#
# What does not work through a router
#

refused("SELECT dlock_acquire('a', session => true)", '0A000', [qr/session locks/], 'a session lock');
refused("SELECT dlock_acquire_all(ARRAY['$low'], session => true)", '0A000', [qr/session locks/], 'session locks');
refused("SELECT dlock_acquire_all(ARRAY['$low', '$high'])", '0A000', [qr/shard 17 and of shard 1000/], 'keys of two shards');
refused("SELECT dlock_acquire_all(ARRAY['$low', '" . key_of(18) . "'])", '0A000', [qr/shard 17 and of shard 18/], 'also of the same cluster');
refused("SELECT dlock_fence('a', 1)", '0A000', [qr/same database as the lock/], 'a fence');
$user->ask_it("CREATE TRIGGER fenced BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('a')");
is($user->ask_it('INSERT INTO t VALUES (1)'), 'ERROR 0A000', 'a trigger');
refused("SELECT $_", '0A000', [qr/on each cluster/], $_)
	foreach "dlock_serve('{}')", 'dlock_settle()', 'dlock_advance(1)', "dlock_policy('x', NULL)", "dlock_policy_drop('x', NULL)", 'dlock_stats_reset()';

#
# A change of the map: sessions notice it with their next call.
#

is($user->ask_it("SELECT dlock_acquire('$low', '1ms') IS NOT NULL"), 't', 'a session uses the map');
serve('a', '{[0,17),[18,512)}');
is($user->ask_it("SELECT dlock_acquire('$low')"), 'ERROR LK002', 'an old map: refused, not granted');
is($user->ask_it("SELECT $_"), 'ERROR LK002', "and nothing is said about grants: $_")
	foreach "dlock_check('$low', 1)", "dlock_refresh('$low', 1)", "dlock_release('$low', 1)", "dlock_force_release('$low', 'x')", "dlock_watch('$low', 1)";
serve('b', '{[17,18),[512,1024)}');
set_clusters($node, 'router', a => '{[0,17),[18,512)}', $connection[0], b => '{[17,18),[512,1024)}', $connection[1]);
like($user->ask_it("SELECT dlock_acquire('$low', '1h', 'moved')"), qr/^\d+$/, 'the new one');
is($node->safe_psql('b', "SELECT owner FROM dlock_get('$low')"), 'moved', 'leads to the other cluster');
is($user->ask_it("SELECT dlock_release('$low', owner => 'moved')"), 'released', 'for all calls');
sql("INSERT INTO dlock_router.clusters VALUES ('aa', '{}', 'host=" . $node->host . " dbname=nowhere')");
is(sql(q{SELECT string_agg(name, ', ' ORDER BY name) FROM dlock_health() WHERE name ~ 'server$' AND status = 'ok'}),
	'a: server, b: server', 'a cluster without shards does not shift the others');
sql("DELETE FROM dlock_router.clusters WHERE name = 'aa'");

#
# A cluster that is away: the others work, and what is missing is told.
#

sql("SELECT dlock_acquire('$high', '1h', 'stays'), dlock_acquire('" . key_of(100) . "', '1h', 'seen')");
sql("UPDATE dlock_router.clusters SET connection = 'host=" . $node->host . " port=1 dbname=b' WHERE name = 'b'");
refused("SELECT dlock_acquire('$high')", 'XX000', [qr/PQconnect/], 'a key of the cluster that is away');
like(sql("SELECT dlock_acquire('" . key_of(101) . "', '1ms')"), qr/^\d+$/, 'a key of the other one');
is($user->ask_it('SELECT string_agg(owner, $$ $$) FROM dlock_locks'), 'seen', 'dlock_locks has what there is');
like($user->said, qr/WARNING:  01000: cluster "b" is missing here/, 'with a warning');
like(sql(q{SELECT status || ' ' || detail FROM dlock_health() WHERE name = 'b: server'}), qr/^problem does not answer/, 'dlock_health');
is(sql('SELECT status FROM dlock_health() LIMIT 1'), 'problem', 'and its verdict');
sql("UPDATE dlock_router.clusters SET connection = '$connection[1]' WHERE name = 'b'");
is($user->ask_it("SELECT dlock_release('$high', owner => 'stays')"), 'released', 'it is back');

# its connections break: the next call fails, the one after it works
$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'b'");
like($user->ask_it("SELECT dlock_acquire('$high', '1ms')"), qr/^(ERROR (57P01|XX000)|\d+)$/, 'a broken connection');
like($user->ask_it("SELECT dlock_acquire('$high', '1ms')"), qr/^\d+$/, 'is replaced');

#
# A hostile search_path, on the router and on the clusters
#

foreach my $database (qw(router a b))
{
	$node->safe_psql($database, q{
		CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC;
		CREATE TABLE evil.caught (what text); GRANT INSERT ON evil.caught TO PUBLIC;
		CREATE FUNCTION evil.catch(what text) RETURNS int LANGUAGE plpgsql AS 'BEGIN INSERT INTO evil.caught VALUES (what); RETURN 1; END';
		CREATE FUNCTION evil.eq(text, text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN PERFORM evil.catch($$=$$); RETURN true; END';
		CREATE OPERATOR evil.= (FUNCTION = evil.eq, LEFTARG = text, RIGHTARG = text);
		CREATE FUNCTION evil.plus(int, bigint) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN PERFORM evil.catch($$+$$); RETURN 1; END';
		CREATE OPERATOR evil.+ (FUNCTION = evil.plus, LEFTARG = int, RIGHTARG = bigint);
		CREATE FUNCTION evil.dlock_shard(text) RETURNS int LANGUAGE sql AS 'SELECT evil.catch($$shard$$)';
		CREATE FUNCTION evil.dlock_release(text, bigint, text) RETURNS text LANGUAGE sql AS 'SELECT evil.catch($$release$$)::text';
		CREATE FUNCTION evil.dlock_list(text, text, int) RETURNS SETOF text LANGUAGE sql AS 'SELECT evil.catch($$list$$)::text';
		CREATE FUNCTION evil.count(bigint) RETURNS bigint LANGUAGE sql AS 'SELECT evil.catch($$count$$)::bigint';
		CREATE FUNCTION evil.int8shr(bigint, int) RETURNS bigint LANGUAGE sql AS 'SELECT evil.catch($$shr$$)::bigint';
		CREATE VIEW evil.dlock_stats AS SELECT evil.catch($$stats$$);
		CREATE DOMAIN evil.text AS pg_catalog.text CHECK (evil.catch($$text$$) = 1);
		CREATE DOMAIN evil.interval AS pg_catalog.interval CHECK (evil.catch($$interval$$) = 1);
	});
	$node->safe_psql('postgres', "ALTER DATABASE $database SET search_path = evil, pg_catalog, public");
}
is(sql(qq{SELECT public.dlock_acquire('$low', '1h', 'me') IS NOT NULL, public.dlock_check('$low', owner => 'me'), public.dlock_release('$low', NULL, 'me')}),
	't|held|released', 'the functions');
is(sql('SELECT pg_catalog.count(*) > 10 FROM public.dlock_health()'), 't', 'dlock_health');
is(sql('SELECT pg_catalog.count(*) FROM public.dlock_stats'), 1, 'dlock_stats');
is(sql('SELECT pg_catalog.count(*) >= 0 FROM public.dlock_locks'), 't', 'dlock_locks');
is(sql("SELECT pg_catalog.count(*) FROM public.dlock_list('*', NULL, 1)"), 1, 'dlock_list');
my %router = (env => { PGDATABASE => 'router' });
my ($code, $out, $err);

server_is($node);
($code, $out, $err) = dlock('shard', 'list', \%router);
is($code, 0, 'dlock shard list') or diag $err;
foreach my $way ([ 'b', 'a' ], [ 'a', 'b' ])
{
	($code, $out, $err) = dlock('shard', 'move', 17, @$way, \%router);
	is($code, 0, "dlock shard move, from $way->[0] to $way->[1]") or diag $err;
}
is($node->safe_psql($_, 'SELECT pg_catalog.string_agg(what, $$ $$) FROM evil.caught'), '', "nothing was caught in $_") foreach qw(router a b);
$node->safe_psql('postgres', "ALTER DATABASE $_ RESET search_path") foreach qw(router a b);

#
# The command line, and with it libdlock
#

($code, $out, $err) = dlock('exec', $low, '--', 'sh', '-c', 'echo $DLOCK_VERSION', \%router);
is($code, 0, 'dlock exec');
like($out, qr/^\d+$/, 'runs the command with a version');
is($err, '', 'without a complaint');
($code, $out) = dlock('acquire', $high, '--ttl=1h', '--wait=5s', '--owner=cli', \%router);
is($code, 0, 'dlock acquire, waiting');
chomp($version = $out);
($code, $out) = dlock('refresh', $high, $version, \%router);
is($code, 0, 'dlock refresh');
($code, $out) = dlock('check', $high, $version, \%router);
is($out, "held\n", 'dlock check');
($code, $out) = dlock('acquire', $high, \%router);
is($code, 75, 'busy');
($code, $out) = dlock('info', $high, \%router);
like($out, qr/\bcli\b/, 'dlock info');
($code, $out) = dlock('ls', \%router);
like($out, qr/^\Q$high\E /m, 'dlock ls');
($code, $out) = dlock('top', '--once', \%router);
is($code, 0, 'dlock top');
($code, $out) = dlock('stats', \%router);
like($out, qr/grants +\d+/, 'dlock stats');
($code, $out) = dlock('health', \%router);
like($out, qr/a: shards: serves what the router sends it/, 'dlock health');
($code, $out) = dlock('exec', $high, '--and', $low, '--', 'true', \%router);
is($code, 78, 'keys of two shards');

# events do not pass a router, so a client that waits asks, and does not listen
$node->append_conf('postgresql.conf', "log_statement = 'all'");
$node->reload;
until_sql($node, 'SHOW log_statement', 'all', 'statements are logged');
my $log = -s $node->logfile;
my $waiting = start_dlock('acquire', $high, '--ttl=1h', '--wait=1h', '--owner=next', \%router);
until_sql($node, "SELECT count(*) FROM dlock_waiters WHERE key = '$high'", 1, 'dlock acquire waits', database => 'router');
($code, $out) = dlock('release', $high, $version, \%router);
is($out, "released\n", 'dlock release');
is((end_dlock($waiting))[0], 0, 'dlock acquire has had its turn');
my $said = PostgreSQL::Test::Utils::slurp_file($node->logfile, $log);
like($said, qr/dlock_ticket/, 'it has asked for its ticket');
unlike($said, qr/LISTEN/, 'and did not listen');
$node->append_conf('postgresql.conf', "log_statement = 'none'");
$node->reload;
is(sql("SELECT dlock_release('$high', owner => 'next')"), 'released', 'released');
($code, $out) = dlock('acquire', $low, '--ttl=1h', '--wait=1ms', '--priority=3', \%router);
is($code, 0, 'with a priority');
serve('b', '{[512,1024)}');
($code, $out, $err) = dlock('acquire', $low, '--owner=lost', \%router);
is($code, 70, 'LK002');
like($err, qr/Shard 17 is not served here/, 'names the shard');
sql("UPDATE dlock_router.clusters SET connection = 'host=" . $node->host . " port=1 dbname=b' WHERE name = 'b'");
($code, $out, $err) = dlock('acquire', $high, '--timeout=1s', \%router);
is($code, 69, 'a cluster that is away');
sql("UPDATE dlock_router.clusters SET connection = '$connection[1]' WHERE name = 'b'");

#
# Dump and restore
#

my $dump = $node->basedir . '/router.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', $node->connstr('router') ], 'pg_dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $node->connstr('restored') ], 'restored');
like($node->safe_psql('restored', "SELECT public.dlock_acquire('$high', '1ms')"), qr/^\d+$/, 'the restored router works');
$node->safe_psql('restored', 'DROP EXTENSION dlock_router CASCADE');
is($node->safe_psql('restored', "SELECT count(*) FROM pg_foreign_server WHERE srvname = 'dlock_router'"), 0, 'and can be dropped');

close_clients($holder, $watcher, $user, values %as);
$node->stop;
done_testing();
