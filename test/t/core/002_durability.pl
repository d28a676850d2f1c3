# Which commits wait for the disk and for a synchronous standby.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;

my $node = new_node(
	'primary',
	streaming => 1,
	conf => q{
full_page_writes = off
wal_writer_delay = 10s
checkpoint_timeout = 1h
bgwriter_lru_maxpages = 0
});
$node->safe_psql('postgres', 'CREATE TABLE work (n int)');

my $session = session($node);

# Reports whether a piece of SQL, sent unchanged, moved the end of the WAL and the flushed
# position.  With the WAL writer stopped, only a commit that asks for it flushes.
sub effect
{
	my ($sql) = @_;
	my $lsns = 'SELECT pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()';
	my ($insert, $flush) = split /\|/, ask($session, $lsns);
	my $answer = ask($session, $sql);
	my $complaint = $session->{stderr};
	my ($insert_now, $flush_now) = split /\|/, ask($session, $lsns);

	is($complaint, '', "no complaint: $sql");
	return
		$flush ne $flush_now ? 'flushed'
	  : $insert ne $insert_now ? 'lazy'
	  : 'nothing';
}

# Reading a page may prune it, as any SELECT does.  The second time there is nothing left
# to prune.
sub effect_of_reading
{
	my ($sql) = @_;

	ask($session, $sql);
	return effect($sql);
}

my %held;

sub held
{
	my ($key) = @_;

	$held{$key} = ask($session, "SELECT dlock_acquire('$key', '1h', owner => '$key')");
	return;
}

my $walwriter = pid_of($node, 'walwriter');

# warm up, so that what the first call of a session reads and writes is done
held('warm');
ask($session, "SELECT dlock_release('warm', $held{warm})");
ask($session, 'CREATE TEMP TABLE gone (n int)');
ask($session, 'SELECT pg_switch_wal()');
kill 'STOP', $walwriter;

foreach my $mode ('on', 'local', 'off')
{
	ask($session, "SET synchronous_commit = $mode");
	is(effect('INSERT INTO work VALUES (1)'), $mode eq 'off' ? 'lazy' : 'flushed',
		"$mode: the user's own write");

	is(effect("SELECT dlock_acquire('grant_$mode', '1h')"), 'flushed', "$mode: a grant");
	is(effect_of_reading("SELECT dlock_acquire('grant_$mode', '1h')"), 'nothing',
		"$mode: a try that fails writes nothing");
	is(effect("BEGIN; SELECT dlock_acquire('rolled_back'); ROLLBACK"), 'lazy',
		"$mode: a grant that is rolled back");
	is(effect("BEGIN; SAVEPOINT s; SELECT dlock_acquire('sub_$mode'); RELEASE s; COMMIT"),
		'flushed', "$mode: a grant in a subtransaction");
	is( effect(
			"BEGIN; SELECT dlock_acquire('twice_$mode'); SAVEPOINT s;"
			  . " SELECT dlock_release('twice_$mode', owner => 'x'); ROLLBACK TO s; COMMIT"),
		'flushed',
		"$mode: a grant, and a subtransaction that is undone");

	held("k$_") foreach 1 .. 6;
	is(effect("SELECT dlock_release('k1', $held{k1})"), 'lazy', "$mode: a release");
	is( effect(
			"BEGIN; SELECT dlock_release('k2', $held{k2});"
			  . " SELECT dlock_release('k3', $held{k3}); SELECT 1; COMMIT"),
		'lazy',
		"$mode: two releases");
	is(effect_of_reading("SELECT dlock_release('k1', $held{k1})"), 'nothing',
		"$mode: a release of what is not held");
	is(effect("SELECT dlock_refresh('k4', $held{k4})"), 'lazy', "$mode: a refresh");
	is(effect("SELECT dlock_refresh('k4', $held{k4}, '50 min')"), 'lazy',
		"$mode: a refresh with a shorter TTL");
	is(effect("SELECT dlock_refresh('k4', $held{k4}, '70 min')"), 'flushed',
		"$mode: a refresh with a longer TTL");
	is(effect("SELECT dlock_acquire('k4', '1h', owner => 'k4')"), 'flushed',
		"$mode: a grant repeated for its owner");
	is(effect_of_reading("SELECT dlock_check('k4', $held{k4})"), 'nothing', "$mode: a check");
	is(effect("BEGIN; SELECT dlock_fence('k4', $held{k4}); COMMIT"), 'lazy',
		"$mode: a fence alone");
	is( effect(
			"BEGIN; SAVEPOINT s; SELECT dlock_release('k5', $held{k5});"
			  . ' RELEASE s; COMMIT'),
		'lazy',
		"$mode: a release in a subtransaction");
	is(effect("BEGIN; SELECT dlock_release('k6', $held{k6}); ROLLBACK"), 'lazy',
		"$mode: a release that is rolled back");
	is( effect(
			"BEGIN; SELECT dlock_release('k6', $held{k6});"
			  . ' INSERT INTO gone VALUES (1); COMMIT'),
		'lazy',
		"$mode: a release, and a table that no crash leaves anyway")
	  if $mode ne 'on';
	is(ask($session, 'SHOW synchronous_commit'), $mode, "$mode: the setting is as before");
}

# A transaction that wrote anything else keeps the durability that it asked for.
foreach my $mode ('on', 'off')
{
	my $own = $mode eq 'off' ? 'lazy' : 'flushed';
	my $insert = 'INSERT INTO work VALUES (1)';

	ask($session, "SET synchronous_commit = $mode");
	foreach my $other (
		[ 'INSERT', $insert ],
		[ 'a row lock', 'SELECT 1 FROM work LIMIT 1 FOR UPDATE' ],
		[ 'INSERT in a subtransaction', "SAVEPOINT a; $insert; RELEASE a" ],
		[ 'DDL', 'CREATE TABLE made (n int); DROP TABLE made' ],
		[ 'a message', "SELECT pg_logical_emit_message(true, 'x', 'y')" ])
	{
		my ($what, $write) = @$other;

		# PostgreSQL itself flushes a transaction that drops a file
		my $expected = $what eq 'DDL' ? 'flushed' : $own;

		held('mixed');
		my $release = "SELECT dlock_release('mixed', $held{mixed})";
		is(effect("BEGIN; $write; $release; COMMIT"), $expected,
			"$mode: $what, then a release");
		held('mixed');
		$release = "SELECT dlock_release('mixed', $held{mixed})";
		is(effect("BEGIN; $release; $write; COMMIT"), $expected,
			"$mode: a release, then $what");
		held('mixed');
		is( effect(
				"BEGIN; SELECT dlock_fence('mixed', $held{mixed}); $write;"
				  . " SELECT dlock_refresh('mixed', $held{mixed}); COMMIT"),
			$expected,
			"$mode: a fence, $what and a refresh");
		held('mixed');
		$release = "SELECT dlock_release('mixed', $held{mixed})";
		is( effect(
				"BEGIN; SAVEPOINT s; $release; ROLLBACK TO s; $write; COMMIT"),
			$expected,
			"$mode: a release that is undone, then $what");
		ask($session, "SELECT dlock_release('mixed', $held{mixed})");
	}

	held('function');
	is( effect(
			"DO \$\$ BEGIN PERFORM dlock_release('function', $held{function});"
			  . " $insert; END \$\$"),
		$own,
		"$mode: a release and INSERT in one statement");

	held('forced');
	is(effect("SELECT dlock_force_release('forced', 'test')"), $own,
		"$mode: a forced release is the session's own affair");
}

# SET LOCAL counts, and ends with its transaction.
ask($session, 'SET synchronous_commit = on');
is(effect("BEGIN; SET LOCAL synchronous_commit = off;"
		. " SELECT dlock_acquire('local_off', '1h'); COMMIT"),
	'flushed', 'SET LOCAL synchronous_commit = off does not weaken a grant');
is(effect('INSERT INTO work VALUES (1)'), 'flushed', 'the next transaction is as before');
held('lazy');
is(effect("SELECT dlock_release('lazy', $held{lazy})"), 'lazy', 'a lazy commit');
is(effect('INSERT INTO work VALUES (1)'), 'flushed', '... ends with its transaction');

# A session may want its releases to be as durable as grants.
ask($session, 'SET dlock.durable_releases = on');
foreach my $mode ('on', 'off')
{
	ask($session, "SET synchronous_commit = $mode; SET dlock.durable_grants = $mode");
	held("d$_") foreach 1 .. 4;
	is(effect("SELECT dlock_release('d1', $held{d1})"), 'flushed', "$mode: a durable release");
	is(effect("BEGIN; SAVEPOINT s; SELECT dlock_release('d2', $held{d2}); RELEASE s; COMMIT"),
		'flushed', "$mode: in a subtransaction");
	is(effect("SELECT dlock_force_release('d3', 'test')"), 'flushed', "$mode: a forced release");
	is(effect("SELECT dlock_refresh('d4', $held{d4})"), 'lazy', "$mode: a refresh is not affected");
	is(effect_of_reading("SELECT dlock_release('d1', $held{d1})"), 'nothing',
		"$mode: a release of what is not held");
	is(effect("BEGIN; SELECT dlock_release('d4', $held{d4}); ROLLBACK"), 'lazy',
		"$mode: a release that is rolled back");
}
ask($session, 'RESET dlock.durable_releases');

ask($session, 'SET dlock.durable_grants = off; SET synchronous_commit = off');
is(effect("SELECT dlock_acquire('careless')"), 'lazy', 'durable_grants off');
ask($session, 'SET synchronous_commit = on');
is(effect("SELECT dlock_acquire('careful')"), 'flushed',
	'durable_grants off, in a session that flushes');
ask($session, 'RESET dlock.durable_grants; RESET synchronous_commit');
fails_with(
	$node,
	"CREATE ROLE app; SET ROLE app; SET dlock.durable_grants = off",
	'42501', [], 'not the ordinary user\'s to set');

kill 'CONT', $walwriter;

#
# A synchronous standby
#

fails_with(
	$node,
	"SET dlock.require_sync = on; SELECT dlock_acquire('nobody_confirms')",
	'55000',
	[
		qr/cannot grant a lock without a synchronous standby/,
		qr/HINT:  Set synchronous_standby_names on this server, or turn dlock\.require_sync off\./
	],
	'require_sync without synchronous_standby_names');
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock.locks WHERE key = 'nobody_confirms'"),
	0, 'nothing was written');

my $standby = new_standby($node, 'standby');
make_synchronous($node, $standby);

my $version = $node->safe_psql('postgres',
	"SET dlock.require_sync = on; SELECT dlock_acquire('confirmed', '1h')");
isnt($version, '', 'require_sync with a synchronous standby');
my $leaver = session($node);
my $leaver_pid = ask($leaver, 'SELECT pg_backend_pid()');
ask($leaver, "SET dlock.durable_releases = on; SELECT dlock_acquire('leaves', '1h', session => true)");
my $given_back = $node->safe_psql('postgres', "SELECT dlock_acquire('given_back', '1h')");
$node->wait_for_catchup($standby);

$standby->stop;
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_replication')
  or die 'the standby does not go';

fails_with(
	$node,
	"SET dlock.require_sync = on; SELECT dlock_acquire('nobody_confirms')",
	'55000',
	[
		qr/could not grant a lock: no synchronous standby confirms commits/,
		qr/0 of 1 synchronous standbys are streaming/,
		qr/HINT:  Bring the standby back/
	],
	'require_sync with the standby gone');

# A grant or refresh that a failover would lose is not acknowledged.
my @waiting;
foreach my $mode ('off', 'local', 'remote_write')
{
	my $s = session($node);

	ask($s, "SET synchronous_commit = $mode");
	push @waiting,
	  [
		"grant, $mode", $s,
		background_answer($s, "SELECT dlock_acquire('waits_$mode', '1h');")
	  ];
}
{
	my $s = session($node);

	ask($s, 'SET synchronous_commit = off');
	push @waiting,
	  [
		'refresh, off', $s,
		background_answer($s, "SELECT dlock_refresh('confirmed', $version);")
	  ];
}
{
	my $s = session($node);

	ask($s, 'SET synchronous_commit = off; SET dlock.durable_releases = on');
	push @waiting,
	  [
		'release, durable', $s,
		background_answer($s, "SELECT dlock_release('given_back', $given_back);")
	  ];
}
$node->poll_query_until('postgres',
	"SELECT count(*) = 5 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
  or die 'not everybody waits for the standby';
is($node->safe_psql('postgres', "SELECT dlock_acquire('waits_off')"),
	'', 'what waits for the standby is busy');

# A release waits for no standby.
my $s = session($node);
is(ask($s, "SELECT dlock_release('local_off', (SELECT version FROM dlock_locks WHERE key = 'local_off'))"),
	'released', 'a release does not wait for the standby');
end_session($s);
is($node->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"),
	5, 'the others still do');

# Nor does the end of a session.
end_session($leaver);
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $leaver_pid"), 'a session that ends waits for nobody');

$standby->start;
foreach my $waiter (@waiting)
{
	my ($what, $session, $answer) = @$waiter;

	isnt($answer->(), '', "$what: continues with the standby");
	end_session($session);
}
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key ~ '^waits_'"),
	3, 'they are granted');

end_session($session);
$standby->stop;
$node->stop('immediate');
done_testing();
