# Policies: what a role may do with keys of a prefix.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node('policies', conf => "deadlock_timeout = 60s\n");
$node->safe_psql('postgres',
	'CREATE ROLE app; CREATE ROLE team; CREATE ROLE guild; CREATE ROLE other; CREATE ROLE boss;'
	  . 'GRANT team TO app; GRANT guild TO app; GRANT app TO boss; ALTER ROLE app NOINHERIT');
my $now = client($node, 'now');
my ($app, $other) = map { client($node, $_, role => $_) } qw(app other);

sub policy
{
	my ($arguments) = @_;

	$now->ask_it("SELECT dlock_policy($arguments)");
	return;
}

sub without_policies
{
	$now->ask_it('SELECT dlock_policy_drop(prefix, role) FROM dlock_policies');
	$now->ask_it("SELECT dlock_force_release(key, 'test') FROM dlock_locks");
	return;
}

# "yes" or the error, of an acquire that is rolled back; $said has its text
my $said;
sub may
{
	my ($client, $key, $arguments) = @_;
	my $answer = $client->ask_it("BEGIN; SELECT dlock_acquire('$key'" . ($arguments ? ", $arguments" : '') . ')');

	$said = $client->said;
	$client->ask_it('ROLLBACK');
	return $answer =~ /^\d+$/ ? 'yes' : $answer;
}

# Which policy counts.
is(may($app, 'a:1'), 'yes', 'no policy');
policy("'a:', NULL, allow => false");
is(may($app, 'a:1'), 'ERROR 42501', 'everybody, in a session that was there before');
like($said, qr/permission denied for lock "a:1"\n.*The policy for prefix "a:" does not allow role "app"/, 'names prefix and role');
is(may($now, 'a:1'), 'ERROR 42501', 'superusers are not exempt');
is(may($app, 'b:1'), 'yes', 'another prefix');
is(may($app, 'a'), 'yes', 'a key that is shorter than the prefix');
is(may($app, 'A:1'), 'yes', 'another key');
policy("'a:x:', NULL");
is(may($app, 'a:x:1'), 'yes', 'the longest prefix counts');
is(may($app, 'a:x'), 'ERROR 42501', 'if it fits');
policy("'a:x:', 'other', allow => false");
is(may($other, 'a:x:1'), 'ERROR 42501', 'the role itself comes before everybody');
is(may($app, 'a:x:1'), 'yes', 'and is no other role');
policy("'a:', 'team'");
is(may($app, 'a:1'), 'yes', 'a role that it is a member of comes before everybody');
is(may($other, 'a:1'), 'ERROR 42501', 'not for others');
is(may($now, 'a:1'), 'ERROR 42501', 'a superuser is not a member of all roles');
policy("'a:', 'guild', allow => false");
is(may($app, 'a:1'), 'yes', 'what one of several allows is allowed');
policy("'a:', 'app', allow => false");
is(may($app, 'a:1'), 'ERROR 42501', 'the role itself comes before those');
policy("'', NULL, allow => false");
is(may($app, 'b:1'), 'ERROR 42501', 'the empty prefix is every key');
is(may($app, 'a:x:1'), 'yes', 'that has no longer one');
is($now->ask_it(q{SELECT string_agg(concat_ws(' ', '"' || prefix || '"', role, allow), ', ' ORDER BY prefix COLLATE "C", role::text) FROM dlock_policies}),
	'"" f, "a:" app f, "a:" guild f, "a:" team t, "a:" f, "a:x:" other f, "a:x:" t', 'the view');
is($now->ask_it("SELECT dlock_policy_drop('', NULL), dlock_policy_drop('', NULL), dlock_policy_drop('a:', 'app')"), 't|f|t', 'dropping');
is(may($app, 'b:1'), 'yes', 'takes effect in other sessions');
without_policies();

# The limits.
policy("'a:', 'app', max_ttl => '1min', max_priority => 5");
is(may($app, 'a:1', "'61s'"), 'ERROR 42501', 'a TTL above the limit');
like($said, qr/ttl exceeds the policy for prefix "a:"\n.*The limit of role "app" is 00:01:00\./, 'names limit and prefix');
is(may($app, 'a:1', "'1min'"), 'yes', 'a TTL at the limit');
is(may($app, 'a:1'), 'yes', 'the default TTL');
is(may($app, 'a:1', "priority => 6"), 'ERROR 42501', 'a priority above the limit');
like($said, qr/priority exceeds the policy for prefix "a:"\n.*The limit of role "app" is 5\./, 'names limit and prefix');
is(may($app, 'a:1', "priority => 5"), 'yes', 'a priority at the limit');
is($app->ask_it("CALL dlock_lock('a:1', '61s')"), 'ERROR 42501', 'dlock_lock');
my $version = $app->ask_it("SELECT dlock_acquire('a:1', '30s')");
is($app->ask_it("SELECT dlock_refresh('a:1', $version, ttl => '61s')"), 'ERROR 42501', 'a refresh with a TTL');
like($app->ask_it("SELECT dlock_refresh('a:1', $version, ttl => '1min')"), qr/^\d{4}-/, 'at the limit');
policy("'a:', 'app', allow => false");
is($app->ask_it("SELECT dlock_refresh('a:1', $version, ttl => '1s')"), 'ERROR 42501', 'a refresh with a TTL is judged');
like($app->ask_it("SELECT dlock_refresh('a:1', $version)"), qr/^\d{4}-/, 'one without is not');
is($app->ask_it("SELECT dlock_check('a:1', $version), dlock_fence('a:1', $version)"), 'held|', 'grants that are there stay');
is($app->ask_it("SELECT dlock_release('a:1', $version)"), 'released', 'and can be released');
policy("'a:', 'team', max_ttl => '1min', max_priority => 1");
policy("'a:', 'guild', max_ttl => '1h', max_locks => 1");
$now->ask_it("SELECT dlock_policy_drop('a:', 'app')");
is(may($app, 'a:1', "'1h', priority => 2147483647"), 'yes', 'of several roles, the highest limits');
is(may($app, 'a:1', "'61min'"), 'ERROR 42501', 'and no more');
without_policies();

# How many.
policy("'n:', 'app', max_locks => 3");
like($app->ask_it("SELECT dlock_acquire('n:' || i, '1h', owner => 'o') FROM generate_series(1, 3) i"), qr/^\d+\n\d+\n\d+$/, 'as many as allowed');
is(may($app, 'n:4'), 'ERROR 42501', 'one more');
like($said, qr/too many locks with prefix "n:"\n.*The limit of role "app" is 3;/, 'names limit and prefix');
like($app->ask_it("SELECT dlock_acquire('n:3', '1h', owner => 'o')"), qr/^\d+$/, 'the same grant again');
is(may($app, 'm:1'), 'yes', 'of another prefix');
is(may($other, 'n:4'), 'yes', 'by another role');
is($app->ask_it("SELECT dlock_release('n:3', owner => 'o')"), 'released', 'a release');
is(may($app, 'n:4'), 'yes', 'makes room');
like($app->ask_it("SELECT dlock_acquire('n:5', '10ms'); SELECT pg_sleep(0.02)"), qr/^\d+/, 'one that expires');
is(may($app, 'n:4'), 'ERROR 42501', 'counts until its row is removed or used');
is(may($app, 'n:5'), 'yes', 'but its own key is there to take');
policy("'n:', 'app', max_locks => 1");
like($app->ask_it("SELECT dlock_acquire('n:2', '1h', owner => 'o')"), qr/^\d+$/, 'a lower limit: grants that are there stay');
is(may($app, 'n:6'), 'ERROR 42501', 'and no new one is made');
policy("'n:', 'app', max_locks => 100");
$now->ask_it("SELECT dlock_force_release(key, 'test') FROM dlock_locks");
$now->ask_it('DELETE FROM dlock.locks');
is($app->ask_it("SELECT count(dlock_acquire('n:' || i, '1h')) FROM generate_series(1, 101) i"), 'ERROR 42501', 'many in one statement, one too many');
is($app->ask_it("SELECT count(dlock_acquire('n:' || i, '1h')) FROM generate_series(1, 100) i"), '100', 'as many as allowed');

# open transactions count, and nobody waits for them
without_policies();
policy("'n:', 'app', max_locks => 2");
my $app2 = client($node, 'app2', role => 'app');
$app->ask_it("BEGIN; SELECT dlock_acquire('n:1', '1h'); SELECT dlock_acquire('n:2', '1h')");
is(may($app2, 'n:3'), 'ERROR 42501', 'what an open transaction has taken counts');
$app->ask_it('ROLLBACK');
is(may($app2, 'n:3'), 'yes', 'until it rolls back');

# many at once do not exceed the limit
without_policies();
$now->ask_it('DELETE FROM dlock.locks');
policy("'q:', 'app', max_locks => 40");
my $script = $node->basedir . '/take.sql';
append_to_file($script, "\\set k random(1, 1000000000)\nSELECT dlock_acquire('q:' || :k, '1h');\n");
$node->command_checks_all(
	[ 'pgbench', '-n', '-c', 8, '-t', 20, '-f', $script, '-d', $node->connstr('postgres') . " options='-c role=app'" ],
	2, [qr/./], [qr/too many locks with prefix "q:"/], '160 tries by 8 clients');
is($now->ask_it("SELECT count(*) FROM dlock_locks WHERE key ^@ 'q:'"), 40, 'the limit is reached, and not exceeded');

# What keeps a key busy counts, whether it is held or not.
sub without_locks
{
	without_policies();
	$now->ask_it('DELETE FROM dlock.locks');
	return;
}

without_locks();
policy("'b:', 'app', max_ttl => '1min', max_locks => 1");
is(may($app, 'b:1', "'1s', delay => '61s'"), 'ERROR 42501', 'a delay above the limit of TTLs');
like($said, qr/delay exceeds the policy for prefix "b:"\n.*The limit of role "app" is 00:01:00\./, 'names limit and prefix');
is(may($app, 'b:1', "'1s', delay => '1min'"), 'yes', 'a delay at the limit');
is($app->ask_it("SELECT dlock_enqueue('b:1', '1s', 'me', delay => '61s')"), 'ERROR 42501', 'of a ticket');
like($app->ask_it("SELECT dlock_acquire('b:1', '1min', session => true, delay => '1min'); DISCARD ALL; SET ROLE app"), qr/^\d+/, 'a session that ends');
is(may($app, 'b:2'), 'ERROR 42501', 'what cools after it counts');
$now->ask_it("SELECT dlock_force_release('b:1', 'test')");
is(may($app, 'b:2'), 'yes', 'until it has cooled');
is($app->ask_it("SELECT dlock_acquire('b:1', '1min', 'o', at_least => '1min') IS NOT NULL, dlock_release('b:1', owner => 'o')"), 't|released', 'at_least');
is(may($app, 'b:2'), 'ERROR 42501', 'and what cools after that');
is($app->ask_it("SELECT dlock_refresh('b:1', owner => 'o', at_least => '61s')"), 'ERROR 42501', 'at_least of a refresh');
is(may($other, 'b:2'), 'yes', 'not for others');
without_locks();
policy("'b:', 'app', max_locks => 1");
is($app->ask_it("BEGIN; SELECT dlock_acquire('b:1', '1min', 'o') IS NOT NULL, dlock_release('b:1', owner => 'o')"), 't|released', 'a transaction that releases');
is(may($other, 'b:1'), '', 'keeps the key busy until it ends');
is($app->ask_it("SELECT dlock_acquire('b:2')"), 'ERROR 42501', 'and that counts');
$app->ask_it('ROLLBACK');

# The room that a count has found is forgotten when a policy changes.
without_locks();
sub take
{
	my ($prefix, $n) = @_;

	return $app->ask_it("SELECT count(dlock_acquire('$prefix' || i, '1h')) FROM generate_series(1, $n) i");
}
policy("'p:', 'app', max_locks => 10");
is(take('p:a', 1), 1, 'one of ten');
$now->ask_it("SELECT dlock_policy_drop('p:', 'app')");
is(take('p:b', 50), 50, 'fifty while there is no policy');
policy("'p:', 'app', max_locks => 10");
is(take('p:c', 1), 'ERROR 42501', 'none of ten under the same policy');
without_locks();
policy("'p:', 'app', max_locks => 5");
policy("'p:x:', 'app'");
is(take('p:a', 1), 1, 'one of five');
is(take('p:x:', 100), 100, 'a hundred under a longer prefix');
is(take('p:b', 1), 'ERROR 42501', 'which the shorter one counts');
without_locks();
is(take('p:a', 50), 50, 'fifty in a session that knows of no policy');
$app->ask_it("BEGIN; SELECT dlock_acquire('p:b', '1h')");
policy("'p:', 'app', max_locks => 10");
is($app->ask_it("SELECT dlock_acquire('p:c', '1h')"), 'ERROR 42501', 'one that comes counts in an open transaction, too');
$app->ask_it('ROLLBACK');
without_locks();

# Places that a transaction has released come back if it is rolled back.
policy("'r:', 'app', max_locks => 3");
is($app->ask_it("SELECT count(dlock_acquire('r:s', '1h', slots => 9, owner => 'o' || g)) FROM generate_series(1, 3) AS g"), 3, 'three places');
$app->ask_it("BEGIN; SELECT dlock_release('r:s', owner => 'o' || g) FROM generate_series(1, 3) AS g");
isnt($app->ask_it("SELECT dlock_acquire('r:x', '1h')"), 'ERROR 42501', 'a grant beside releases that are open');
$app->ask_it('ROLLBACK');
is($app->ask_it("SELECT dlock_acquire('r:s', '1h', slots => 9, owner => 'o5')"), 'ERROR 42501', 'leaves no room when they are rolled back');
without_locks();

# A waiter is judged at its grant.
$version = $other->ask_it("SELECT dlock_acquire('w:1', '1h')");
$app->start("SELECT dlock_acquire('w:1', '1h', wait => NULL)");
until_waiting($node, $app, 'w:1');
policy("'w:', 'app', allow => false");
$other->ask_it("SELECT dlock_release('w:1', $version)");
is($app->answer, 'ERROR 42501', 'a policy that came while it waited');
is($now->ask_it("SELECT count(*) FROM dlock_locks"), 0, 'nothing is granted');
is($app->ask_it("SELECT dlock_acquire('w:1', '1h', wait => NULL)"), 'ERROR 42501', 'who may not does not wait at all');
without_policies();

# So is a ticket, by all that keeps the key busy.
$version = $other->ask_it("SELECT dlock_acquire('w:1', '1h')");
my $ticket = $app->ask_it("SELECT dlock_enqueue('w:1', '1s', 'me', delay => '1h')");
policy("'w:', 'app', max_ttl => '1min'");
$other->ask_it("SELECT dlock_release('w:1', $version)");
wait_until('the ticket is missed', sub { $app->ask_it("SELECT state FROM dlock_ticket($ticket)") eq 'missed' });
is($now->ask_it('SELECT count(*) FROM dlock_locks'), 0, 'a delay that is too long by now');
without_policies();

# Transactions: a change counts for others when it is committed.
$now->ask_it("BEGIN; SELECT dlock_policy('t:', NULL, allow => false)");
is(may($app, 't:1'), 'yes', 'a policy that is not committed');
is($now->ask_it("SAVEPOINT s; SELECT dlock_acquire('t:1')"), 'ERROR 42501', 'counts for its own transaction');
$now->ask_it('ROLLBACK');
is(may($now, 't:1'), 'yes', 'until it rolls back');
$app->ask_it('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
policy("'t:', NULL, allow => false");
is($app->ask_it("SELECT dlock_acquire('t:1')"), 'ERROR 42501', 'the newest policies count, whatever the snapshot');
$app->ask_it('ROLLBACK');
$now->ask_it("UPDATE dlock.policies SET allow = true");
is(may($app, 't:1'), 'yes', 'SQL against the table takes effect, too');
$now->ask_it("UPDATE dlock.policies SET allow = false");
is(may($app, 't:1'), 'ERROR 42501', 'SQL against the table');
$now->ask_it('TRUNCATE dlock.policies');
is(may($app, 't:1'), 'yes', 'even TRUNCATE');

# Bad input.
foreach my $bad (
	[ "NULL, 'app'", '22004', qr/prefix must not be null/ ],
	[ "repeat('x', 1025), 'app'", '22023', qr/prefix is too long/ ],
	[ "'a', 'app', allow => NULL", '22004', qr/allow must not be null/ ],
	[ "'a', 'app', max_ttl => '0'", '22023', qr/max_ttl must be greater than zero/ ],
	[ "'a', 'app', max_ttl => '-1s'", '22023', qr/max_ttl must not be negative/ ],
	[ "'a', 'app', max_ttl => '1 month'", '22023', qr/max_ttl must not contain months/ ],
	[ "'a', 'app', max_priority => -1", '22023', qr/max_priority must not be negative/ ],
	[ "'a', 'app', max_locks => -1", '22023', qr/max_locks must not be negative/ ],
	[ "'a', 'nobody'", '42704', qr/role "nobody" does not exist/ ],
	[ "'a', 1", '42704', qr/invalid role OID: 1/ ])
{
	fails_with($node, "SELECT dlock_policy($bad->[0])", $bad->[1], [ $bad->[2] ], "dlock_policy($bad->[0])");
}
is($now->ask_it('SELECT count(*) FROM dlock_policies'), 0, 'changes nothing');

# Roles: who may change them, and who cannot get round them.
policy("'h:', 'app', allow => false");
foreach my $sql ("SELECT dlock_policy('h:', 'app')", "SELECT dlock_policy_drop('h:', 'app')",
	'DELETE FROM dlock.policies', 'TRUNCATE dlock.policies', 'SELECT * FROM dlock.policies',
	'ALTER TABLE dlock.policies DISABLE TRIGGER ALL')
{
	is($app->ask_it($sql), 'ERROR 42501', "not for everybody: $sql");
}
is($app->ask_it('SELECT count(*) FROM dlock_policies'), 1, 'everybody can see them');
is(may($app, 'h:1'), 'ERROR 42501', 'denied');
$app->ask_it('CREATE TEMP TABLE policies (LIKE dlock_policies); SET search_path = pg_temp, public');
is(may($app, 'h:1'), 'ERROR 42501', 'a table of that name changes nothing');
$app->ask_it('RESET search_path');
$now->ask_it(
	q{CREATE FUNCTION take(text) RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT dlock_acquire($1)'; ALTER FUNCTION take OWNER TO other});
like($app->ask_it("SELECT take('h:1')"), qr/^\d+$/, 'in a SECURITY DEFINER function, the role of its owner counts');
is($now->ask_it("SELECT role FROM dlock_locks WHERE key = 'h:1'"), 'other', 'which also gets the lock');
my $boss = client($node, 'boss', role => 'boss');
is(may($boss, 'h:2'), 'ERROR 42501', 'a member of the role is judged by its policy');
policy("'h:', 'boss'");
is(may($boss, 'h:2'), 'yes', 'unless it has its own');
$boss->ask_it('SET ROLE app');
is(may($boss, 'h:2'), 'ERROR 42501', 'after SET ROLE that role counts');
$node->safe_psql('postgres', 'GRANT EXECUTE ON FUNCTION dlock_policy, dlock_policy_drop TO other');
is($other->ask_it("SELECT dlock_policy('h:', 'app'), dlock_policy_drop('h:', 'boss')"), '|t', 'EXECUTE is enough to change them');
is(may($app, 'h:2'), 'yes', 'and that takes effect');

# a hostile search_path of a role that may change them
$node->safe_psql('postgres', 'CREATE SCHEMA evil AUTHORIZATION other');
$other->ask_it(
	q{CREATE FUNCTION evil.eq(text, text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''reached as %'', current_user; END';
	  CREATE OPERATOR evil.= (FUNCTION = evil.eq, LEFTARG = text, RIGHTARG = text);
	  SET search_path = evil, pg_catalog});
is($other->ask_it("SELECT public.dlock_policy('h:', 'app', false), public.dlock_policy_drop('h:', 'app')"), '|t', 'reaches nothing of it');

# Dumped and restored, with roles by name.
without_policies();
policy("'d:', 'app', max_ttl => '90s', max_priority => 7, max_locks => 8, max_hold => '1h'");
policy("'d:', NULL, allow => false");
my $dump = $node->basedir . '/dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('postgres') ], 'pg_dump');
$node->safe_psql('postgres', 'CREATE DATABASE copy');
$node->command_ok([ 'pg_restore', '-e', '-d', $node->connstr('copy'), $dump ], 'pg_restore');
is($node->safe_psql('copy', 'SELECT * FROM dlock_policies ORDER BY role'), "d:|app|t|00:01:30|7|8|01:00:00\nd:||f||||", 'the policies are there');
fails_with($node, "SET ROLE other; SELECT dlock_acquire('d:1')", '42501', [], 'and count', database => 'copy');

# DROP and CREATE EXTENSION in one session
is($now->ask_it("SELECT dlock_acquire('d:1')"), 'ERROR 42501', 'before DROP EXTENSION');
$now->ask_it('DROP EXTENSION dlock CASCADE; CREATE EXTENSION dlock');
is(may($now, 'd:1'), 'yes', 'after CREATE EXTENSION');
policy("'d:', NULL, allow => false");
is(may($now, 'd:1'), 'ERROR 42501', 'new policies count');

close_clients($now, $app, $app2, $other, $boss);
DlockWait::close_monitors();
$node->stop;
done_testing();
