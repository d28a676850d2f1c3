# The mistakes of a new user: each message says what to do next.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

use DlockBouncer;
use DlockTest;

my $node = new_node(
	'traps', stopped => 1, initdb => ['--wal-segsize=1'],
	conf => "shared_preload_libraries = ''\nmax_prepared_transactions = 4\n");
$node->start;

#
# No preload
#

my ($version, $warning);

(undef, undef, $warning) = $node->psql('postgres', 'CREATE EXTENSION dlock');
like(
	$warning,
	qr/^[^\n]*WARNING:  dlock must be loaded via "shared_preload_libraries"\nHINT:  Add the line shared_preload_libraries = 'dlock' to postgresql\.conf /m,
	'no preload: CREATE EXTENSION warns');
foreach my $call (
	"SELECT dlock_acquire('k')",
	"SELECT dlock_refresh('k', 1)",
	"SELECT dlock_release('k', 1)",
	"SELECT dlock_check('k', 1)",
	"SELECT dlock_fence('k', 1)",
	"SELECT dlock_force_release('k', 'reason')",
	'SELECT * FROM dlock_locks')
{
	fails_with(
		$node, $call, '55000',
		[
			qr/dlock must be loaded via "shared_preload_libraries"/,
			qr/HINT:  Add the line shared_preload_libraries = 'dlock' to postgresql\.conf \(or add dlock to the list that is there\) and restart the server\./
		],
		"no preload: $call");
}
$node->safe_psql('postgres', 'DROP EXTENSION dlock');
ok(1, 'no preload: DROP EXTENSION works');
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'dlock'");
$node->restart;
(undef, undef, $warning) = $node->psql('postgres', 'CREATE EXTENSION dlock');
is($warning, '', 'with the preload: no warning');

#
# Not installed in this database
#

$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');
my ($rc, $stdout, $stderr) = $node->psql('elsewhere', "SELECT dlock_acquire('k')");
like($stderr, qr/function dlock_acquire\(unknown\) does not exist/, 'no extension');
$node->safe_psql(
	'elsewhere', q{
CREATE FUNCTION my_check(text, bigint DEFAULT NULL, text DEFAULT NULL) RETURNS text
AS '$libdir/dlock', 'dlock_check' LANGUAGE C});
fails_with(
	$node,
	"SELECT my_check('k', 1)",
	'42704',
	[
		qr/extension "dlock" is not installed in database "elsewhere"/,
		qr/HINT:  Connect to this database as a superuser and run CREATE EXTENSION dlock\./
	],
	'a function that was left behind',
	database => 'elsewhere');

#
# Wrong arguments
#

foreach my $case (
	[ "'0'", qr/ttl must be greater than zero/ ],
	[ "'-1 s'", qr/ttl must be greater than zero/ ],
	[ "'1 month'", qr/ttl must not contain months or years\n.*DETAIL:  Their length varies\. Use days or smaller units\./ ],
	[ "'25 h'", qr/ttl exceeds "dlock\.max_ttl"\n.*DETAIL:  "dlock\.max_ttl" is 1d\.\n.*HINT:  Use a shorter TTL and renew it with dlock_refresh\./ ])
{
	my ($ttl, $message) = @$case;

	fails_with($node, "SELECT dlock_acquire('k', $ttl)", '22023', [$message], "TTL $ttl");
}
fails_with(
	$node,
	"SELECT dlock_release('k')",
	'22023',
	[
		qr/neither version nor owner is given/,
		qr/HINT:  Pass the version that dlock_acquire returned, or the owner that was passed to it\./
	],
	'a release that names no grant');
is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock.locks'), 0, 'nothing was changed');

#
# The table of locks by hand
#

$version = $node->safe_psql('postgres', "SELECT dlock_acquire('by hand', '1h')");
foreach my $statement ('DELETE FROM dlock.locks', 'UPDATE dlock.locks SET held = false', 'TRUNCATE dlock.locks')
{
	fails_with(
		$node,
		"SET dlock.allow_direct_writes = off; $statement",
		'55000',
		[ qr/table "dlock\.locks" cannot be changed by SQL/, qr/HINT:  Use dlock_force_release\(\) to take a lock away\./ ],
		$statement);
}
is($node->safe_psql('postgres', "SELECT dlock_check('by hand', $version)"), 'held', 'the lock is still held');
my $cooling = $node->safe_psql('postgres', "SELECT dlock_acquire('cooling', '1h', at_least => '1h')");
$node->safe_psql('postgres', "SELECT dlock_release('by hand', $version), dlock_release('cooling', $cooling)");
fails_with($node, "SET dlock.allow_direct_writes = off; DELETE FROM dlock.locks WHERE key = 'cooling'", '55000', [], 'a key that cools');
is($node->safe_psql('postgres', "SET dlock.allow_direct_writes = off; DELETE FROM dlock.locks WHERE key = 'by hand' RETURNING key"), 'by hand',
	'a row that nobody has any more may be deleted');
$node->safe_psql('postgres', "SELECT dlock_force_release('cooling', 'test')");

#
# Two prompts
#

my $one = session($node);
my $two = session($node);
$version = ask($one, "SELECT dlock_acquire('invoice:42', '1h', owner => 'one')");
is(ask($two, "SELECT dlock_acquire('invoice:42', '1h')"), '', 'the second prompt gets nothing');
is(ask($two, "SELECT owner, version FROM dlock_locks WHERE key = 'invoice:42'"),
	"one|$version", 'and can look up the holder');
is(ask($one, "SELECT dlock_acquire('invoice:42', '1h')"), '', 'the first one does not either, without its owner');
is(ask($one, "SELECT dlock_acquire('invoice:42', '1h', owner => 'one')"),
	$version, 'with it, the same grant');
is(ask($two, "SELECT dlock_release('invoice:42', $version + 1)"), 'held_by_other', 'a wrong version');
is(ask($two, "SELECT dlock_release('invoice:42', $version)"), 'released',
	'the version is what counts, not the session');

#
# A forgotten ROLLBACK
#

ask($one, 'BEGIN');
ask($one, "SELECT dlock_acquire('forgotten', '1ms')");
is(ask($two, "SELECT dlock_acquire('forgotten')"), '', 'busy, past its TTL too');
is(ask($two, 'SELECT state, version IS NULL FROM dlock_locks'),
	'pending|t', 'though nobody holds it: the view says so');
is( ask($two,
		"SELECT state FROM pg_stat_activity WHERE query ~ 'dlock_acquire' AND pid <> pg_backend_pid()"),
	'idle in transaction',
	'pg_stat_activity shows why');
ask($two,
	"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE state = 'idle in transaction'");
isnt(ask($two, "SELECT dlock_acquire('forgotten', '1ms')"), '', 'it ends with the session');
end_session($one);

#
# Transactions that cannot have a lock
#

foreach my $statement (
	"SELECT dlock_acquire('prepared', '1h')",
	"SELECT dlock_fence('held', (SELECT version FROM dlock_locks WHERE key = 'held'))",
	"SELECT dlock_release('held', (SELECT version FROM dlock_locks WHERE key = 'held'))")
{
	$node->safe_psql('postgres', "SELECT dlock_acquire('held', '1h')");
	fails_with(
		$node,
		"BEGIN; $statement; PREPARE TRANSACTION 'p'",
		'0A000',
		[
			qr/cannot PREPARE a transaction that has changed or fenced a lock/,
			qr/HINT:  End it with COMMIT, or acquire the lock in a transaction of its own\./
		],
		"PREPARE TRANSACTION after $statement");
}
is($node->safe_psql('postgres', "SELECT string_agg(key, ' ') FROM dlock_locks"),
	'held', 'all was rolled back');
$node->safe_psql('postgres',
	"BEGIN; SELECT dlock_acquire('held'); PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'");
ok(1, 'a try that failed does not matter to PREPARE TRANSACTION');

fails_with($node, "BEGIN READ ONLY; SELECT dlock_acquire('read_only')",
	'25006', [qr/cannot execute dlock_acquire\(\) in a read-only transaction/],
	'a read-only transaction');
is( $node->safe_psql('postgres',
		"BEGIN READ ONLY; SELECT dlock_check('held', 1); COMMIT"),
	'held_by_other',
	'... may ask');

#
# VACUUM truncates the table while a session has cached its length and has hints that lead
# behind the new end.
#

my $knowing = session($node);
my $all = "SELECT count(dlock_acquire('long' || n, '1h')) FROM generate_series(1, 3000) AS n";
my $blocks = "SELECT pg_relation_size('dlock.locks') / current_setting('block_size')::int";
is(ask($knowing, $all), 3000, 'many rows');
my $before = ask($knowing, $blocks);
$node->safe_psql('postgres', "DELETE FROM dlock.locks WHERE key ~ '^long'");
foreach (1 .. 100)
{
	$node->safe_psql('postgres', 'VACUUM (TRUNCATE) dlock.locks');
	last if $node->safe_psql('postgres', $blocks) < $before / 2;
	usleep(100_000);
}
cmp_ok($node->safe_psql('postgres', $blocks), '<', $before / 2, 'VACUUM has cut the table short');
is(ask($knowing, $all), 3000, 'a hint into what was cut off does no harm');
end_session($knowing);

#
# A full disk, simulated by files that may not grow, which needs no privileges.
#

# above the size of a WAL file, which is 1 MB here
sub limit_files
{
	my ($session, $bytes) = @_;
	my $pid = ask($session, 'SELECT pg_backend_pid()');

	run_log([ 'prlimit', '--pid', $pid, "--fsize=$bytes:" ]) or die 'prlimit failed';
	return;
}

my $ready = session($node);
my $held = ask($ready, "SELECT dlock_acquire('before', '1h')");
my $full = session($node);
ask($full, "SELECT dlock_acquire('warm', '1ms')");
limit_files($full, 2 * 1024 * 1024);
like(
	complaint($full, q{
DO $$ BEGIN FOR n IN 1 .. 200000 LOOP PERFORM dlock_acquire('fill' || n, '1h'); END LOOP; END $$}),
	qr/could not extend file .*: File too large/, 'the disk is full');
is(ask($ready, "SELECT count(*) FROM dlock_locks WHERE key ~ '^fill'"), 0, 'nothing was granted');
is(ask($ready, "SELECT dlock_refresh('before', $held) IS NOT NULL"), 't', 'others continue');
like(complaint($full, "SELECT dlock_acquire('small', '1h')"),
	qr/could not extend file/, 'a new key finds no room');
is(ask($ready, "SELECT dlock_acquire('before'), dlock_check('before', $held)"),
	'|held', 'what is held stays held');
ask($ready, 'VACUUM dlock.locks');
like(ask($full, "SELECT dlock_acquire('small', '1h')"), qr/^\d+$/, 'after VACUUM it does');
is(ask($full, "SELECT dlock_release('before', $held)"), 'released', 'and a release works');
isnt(ask($ready, "SELECT dlock_acquire('fill1', '1h')"), '', 'the keys are free');
end_session($full, $two);

# Without room for WAL the server stops, as PostgreSQL does.
$held = ask($ready, "SELECT dlock_acquire('survivor', '1h')");
$full = session($node);
ask($full, 'BEGIN');
ask($full, "SELECT dlock_acquire('no_room', '1h')");
limit_files($full, 1);
my $log_at = -s $node->logfile;
background_answer($full, 'COMMIT;');
$node->wait_for_log(qr/database system is ready to accept connections/, $log_at);
$node->poll_query_until('postgres', 'SELECT true') or die 'the server is not back';
end_session($full, $ready);
is($node->safe_psql('postgres', "SELECT dlock_check('survivor', $held)"),
	'held', 'no room for WAL: what was granted is held');
isnt($node->safe_psql('postgres', "SELECT dlock_acquire('no_room', '1h')"),
	'', 'no room for WAL: what was not committed is free');

#
# PgBouncer in transaction mode: more clients than connections
#

my $bouncer = DlockBouncer->new(
	user => $node->safe_psql('postgres', 'SELECT current_user'),
	target => 'host=' . $node->host . ' port=' . $node->port,
	pool_size => 2);
my $cycle = PostgreSQL::Test::Utils::tempdir() . '/cycle.sql';
$node->safe_psql('postgres',
	'CREATE TABLE work (k int PRIMARY KEY, n int); INSERT INTO work SELECT n, 0 FROM generate_series(0, 2) n');
append_to_file(
	$cycle, q{
\set k random(0, 2)
SELECT coalesce(dlock_acquire('pooled' || :k, '10min', owner => 'client' || :client_id), 0) AS v \gset
\if :v > 0
SELECT 1 / (dlock_refresh('pooled' || :k, :v) IS NOT NULL)::int;
BEGIN;
SELECT dlock_fence('pooled' || :k, :v);
UPDATE work SET n = n + 1 WHERE k = :k;
COMMIT;
SELECT 1 / (dlock_check('pooled' || :k, owner => 'client' || :client_id) = 'held')::int;
SELECT 1 / (dlock_release('pooled' || :k, :v) = 'released')::int;
\endif
});
$node->command_ok(
	[ 'pgbench', '-n', '-h', $bouncer->folder, '-p', $bouncer->port, '-c', 6, '-t', 100, '-f', $cycle, 'postgres' ],
	'locks through PgBouncer in transaction mode');
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key ~ '^pooled'"),
	0, 'all are released');
cmp_ok($node->safe_psql('postgres', 'SELECT sum(n) FROM work'), '>', 0, 'there were grants');
undef $bouncer;

$node->stop;
done_testing();
