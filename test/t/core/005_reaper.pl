# The background workers that remove expired rows, and the events.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;

my $node = new_node('reaper', conf => "dlock.reap_interval = '50ms'\n");
$node->safe_psql('postgres', "CREATE DATABASE $_") foreach 'db1', 'db2', 'unused';
add_extension_in($node, 'db1', 'db2', 'unused');

sub set_interval
{
	my ($interval) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET dlock.reap_interval = '$interval'");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('dlock.reap_interval')", $interval)
	  or die 'the setting does not arrive';
	return;
}

sub wait_for_rows
{
	my ($database, $n, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok($node->poll_query_until($database, 'SELECT count(*) FROM dlock.locks', $n), $what);
	return;
}

# What a listening session receives, until the pattern has matched that many times.
sub hear
{
	my ($listener, $pattern, $times) = @_;

	wait_until(
		"there are $times of $pattern",
		sub {
			$listener->{heard} .= ask($listener, "SELECT ''") . "\n";
			my $n = () = $listener->{heard} =~ /$pattern/g;
			return $n >= $times;
		});
	return;
}

sub ready_again
{
	my ($log_at) = @_;

	$node->wait_for_log(qr/database system is ready to accept connections/, $log_at);
	$node->poll_query_until('postgres', 'SELECT true') or die 'the server is not back';
	return;
}

#
# Expired rows are removed, and listeners are notified
#

my %listener = map { $_ => session($node, $_) } 'postgres', 'db1', 'db2';
ask($_, 'LISTEN dlock') foreach values %listener;

my %version;
foreach my $database (keys %listener)
{
	$version{$database} =
	  $node->safe_psql($database, "SELECT dlock_acquire('in \"$database\"', '200ms')");
	$node->safe_psql($database, "SELECT dlock_acquire('stays', '1h')");
}
foreach my $database (sort keys %listener)
{
	wait_for_rows($database, 1, "an expired row is removed in database $database");
	hear($listener{$database},
		qr/"dlock" with payload "\{"event": "expired", "key": "in \\"$database\\"", "version": $version{$database}\}"/,
		1);
	my $events = () = $listener{$database}{heard} =~ /payload/g;
	is($events, 1, "one event in database $database, and none of another's");
	is($node->safe_psql($database, 'SELECT key FROM dlock_locks'), 'stays', 'a live grant is kept');
}

# A release is not an expiry; its row is kept for a while and then removed without an event.
$listener{db1}{heard} = '';
my $released = $node->safe_psql('db1', "SELECT dlock_acquire('released', '1h')");
is($node->safe_psql('db1', "SELECT dlock_release('released', $released)"), 'released', 'released');
wait_for_rows('db1', 1, 'the row of a free key is removed in the end');
$node->safe_psql('db1', "SELECT dlock_acquire('marker', '1ms')");
hear($listener{db1}, qr/"key": "marker"/, 1);
unlike($listener{db1}{heard}, qr/"key": "released"/, 'a release sends no event');

# An expired key in an open fence stays until the transaction ends.
my $holder = session($node, 'db1');
my $fenced = ask($holder, "SELECT dlock_acquire('fenced', '300ms')");
ask($holder, 'BEGIN');
ask($holder, "SELECT dlock_fence('fenced', $fenced)");
$node->safe_psql('db1', "SELECT dlock_acquire('later', '500ms')");
hear($listener{db1}, qr/"key": "later"/, 1);
is($node->safe_psql('db1', "SELECT count(*) FROM dlock.locks WHERE key = 'fenced'"),
	1, 'a fenced row is not removed');
unlike($listener{db1}{heard}, qr/"key": "fenced"/, '... and not announced');
ask($holder, 'COMMIT');
hear($listener{db1}, qr/"key": "fenced", "version": $fenced/, 1);
wait_for_rows('db1', 1, '... until the fence ends');
end_session($holder);

# A transaction that is still open when its grant expires.
$holder = session($node, 'db1');
ask($holder, 'BEGIN');
my $late = ask($holder, "SELECT dlock_acquire('late', '1ms')");
$node->safe_psql('db1', "SELECT dlock_acquire('meanwhile', '1ms')");
hear($listener{db1}, qr/"key": "meanwhile"/, 1);
ask($holder, 'COMMIT');
hear($listener{db1}, qr/"key": "late", "version": $late/, 1);
wait_for_rows('db1', 1, 'a grant that was committed after its time is removed');
end_session($holder);

#
# The reaper reads only where a row is due
#

sub blocks_read
{
	return $node->safe_psql('db1',
		q{SELECT heap_blks_read + heap_blks_hit FROM pg_statio_all_tables WHERE relid = 'dlock.locks'::regclass});
}

# A row that is written while the reaper reads its block: it must know of the version that it
# does not see yet.
$holder = session($node, 'db1');
my $renewed = ask($holder, "SELECT dlock_acquire('renewed', '1h')");
ask($holder, "BEGIN; SELECT dlock_refresh('renewed', $renewed, '2s')");
$node->safe_psql('db1', "SELECT dlock_acquire('beside', '1ms')");
wait_for_rows('db1', 2, 'a row is removed from the block of one that is being changed');
ask($holder, 'COMMIT');
wait_for_rows('db1', 1, 'that one is removed at its new time');
ask($holder, "SELECT dlock_refresh('shorter', dlock_acquire('shorter', '1h'), '300ms')");
wait_for_rows('db1', 1, 'so is one whose TTL becomes shorter');
end_session($holder);

$node->safe_psql('db1', "SELECT count(dlock_acquire('live' || i, '1h')) FROM generate_series(1, 30000) i");

# Until no reaper is there, and what it has read is counted.
sub until_rest
{
	$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'dlock reaper'")
	  or die 'the reaper does not leave';
	return;
}

# one that expires last: when it is removed, the others have been read
$node->safe_psql('db1', "SELECT dlock_acquire('settled', '100ms')");
hear($listener{db1}, qr/"key": "settled"/, 1);
until_rest();
my $read = blocks_read();
foreach my $i (1 .. 5)
{
	$node->safe_psql('db1', "SELECT dlock_acquire('due$i', '1ms')");
	hear($listener{db1}, qr/"key": "due$i"/, 1);
}
until_rest();
my $blocks = $node->safe_psql('db1', "SELECT pg_relation_size('dlock.locks') / 8192");
cmp_ok(blocks_read() - $read, '<', $blocks, 'five expiries do not read the table');
$node->safe_psql('db1', "DELETE FROM dlock.locks WHERE key ~ '^live'");

#
# dlock_force_release: event and log
#

my $log_at = -s $node->logfile;
my $forced = $node->safe_psql('db2', "SELECT dlock_acquire('forced', '1h')");
$node->safe_psql('db2', "BEGIN; SELECT dlock_force_release('forced', 'undone'); ROLLBACK");
$node->safe_psql('postgres', 'CREATE ROLE admin LOGIN');
$node->safe_psql('db2', 'GRANT EXECUTE ON FUNCTION dlock_force_release TO admin');
is( $node->safe_psql(
		'db2', "SET ROLE admin; SELECT dlock_force_release('forced', 'host \"x\" died')"),
	$forced,
	'the version that was taken away');
hear($listener{db2},
	qr/\{"event": "forced", "key": "forced", "version": $forced, "by": "admin", "reason": "host \\"x\\" died"\}/,
	1);
unlike($listener{db2}{heard}, qr/undone/, 'no event if it is rolled back');
$node->wait_for_log(
	qr/LOG:  lock "forced" with version $forced was forcibly released by role "admin"\n.*DETAIL:  Reason: host "x" died/,
	$log_at);
ok(1, 'role and reason are in the log');
end_session(values %listener);

#
# Workers that die
#

my $launcher = pid_of($node, 'dlock launcher');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($launcher)");
$node->safe_psql('db1', "SELECT dlock_acquire('terminated', '1ms')");
isnt(
	do
	{
		wait_until('there is another launcher',
			sub { pid_of($node, 'dlock launcher') ne $launcher });
		pid_of($node, 'dlock launcher');
	},
	$launcher,
	'a launcher that was terminated comes back');
wait_for_rows('db1', 1, 'and does its work');

# A reaper that waits for a user's lock; the reapers of other databases do not wait.
my $locker = session($node, 'db1');
my $second = session($node, 'db2');

# A row becomes due behind the lock; try again if the reaper was faster.
sub lock_table
{
	wait_until(
		'the table is locked with a row in it',
		sub {
			ask($locker, "SELECT dlock_acquire('behind_lock', '500ms')");
			ask($locker, 'BEGIN');
			ask($locker, 'LOCK TABLE dlock.locks IN ACCESS EXCLUSIVE MODE');
			my $n = ask($locker, "SELECT count(*) FROM dlock.locks WHERE key = 'behind_lock'");
			ask($locker, 'ROLLBACK') if $n == 0;
			return $n == 1;
		});
	return;
}

$log_at = -s $node->logfile;
lock_table();
$node->wait_for_log(qr/canceling statement due to lock timeout/, $log_at);
ok(1, 'a reaper gives up on a locked table');
ask($second, "SELECT dlock_acquire('elsewhere', '1ms')");
wait_for_rows('db2', 1, 'other databases are served meanwhile');
ask($locker, 'COMMIT');
wait_for_rows('db1', 1, 'and so is this one afterwards, with no new lock taken');
end_session($second);

lock_table();
my $reaper = pid_of($node, 'dlock reaper');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($reaper)");
ask($locker, 'COMMIT');
wait_for_rows('db1', 1, 'a reaper that was terminated is followed by another');

lock_table();
$reaper = pid_of($node, 'dlock reaper');
$log_at = -s $node->logfile;
kill 'KILL', $reaper;
ready_again($log_at);
end_session($locker);
wait_for_rows('db1', 1, 'kill -9 of a reaper: the next one does the work');

$log_at = -s $node->logfile;
kill 'KILL', pid_of($node, 'dlock launcher');
ready_again($log_at);
$node->safe_psql('db2', "SELECT dlock_acquire('again', '1ms')");
wait_for_rows('db2', 1, 'kill -9 of the launcher');

#
# After a restart, nothing has told the new launcher about the old rows
#

$node->safe_psql('unused', "SELECT dlock_acquire('left' || n, '100ms') FROM generate_series(1, 10) n");
$node->restart;
wait_for_rows('unused', 0, 'rows of a database that nobody uses are removed after a restart');

# a crash may have undone a removal
wait_for_rows('db1', 1, 'and of the others');

#
# Rows that SQL has written, in a database in which nothing else happens
#

$node->safe_psql('db1', "BEGIN; SELECT dlock_acquire('written', '1ms'); CREATE TABLE written AS SELECT * FROM dlock.locks WHERE key = 'written'; COMMIT");
wait_for_rows('db1', 1, 'a row that is to be copied is removed');
foreach my $trigger ('ENABLE ALWAYS', 'DISABLE')
{
	$node->poll_query_until('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'dlock reaper'", 0)
	  or die 'the reaper does not leave';
	$node->safe_psql('db1', 'BEGIN; '
		  . join('', map { "ALTER TABLE dlock.locks $trigger TRIGGER $_; " } qw(refuse_replicated_row count_restored_row))
		  . 'INSERT INTO dlock.locks SELECT * FROM written; COMMIT');
	wait_for_rows('db1', 1, "it is removed again, trigger: $trigger");
}
$node->safe_psql('db1', "ALTER TABLE dlock.locks ENABLE ALWAYS TRIGGER $_") foreach qw(refuse_replicated_row count_restored_row);

#
# Off, and on again without a restart
#

set_interval('0');
is($node->safe_psql('db1', "SELECT dlock_acquire('off', '1ms') IS NOT NULL"), 't', 'granted');
$node->poll_query_until('postgres',
	"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'dlock reaper'");
my $again = $node->safe_psql('db1', "SELECT dlock_acquire('off', '1ms')");
isnt($again, '', 'an expired lock is free without the reaper');
is( $node->safe_psql('db1', "SELECT string_agg(key, ' ' ORDER BY key) FROM dlock.locks"),
	'off stays', 'its row is still there');
set_interval('10ms');
wait_for_rows('db1', 1, 'SIGHUP turns the reaper on');

#
# Mass expiry, and what must work meanwhile
#

my $listener = session($node, 'db1');
ask($listener, 'LISTEN dlock');
is( $node->safe_psql(
		'db1', "SELECT count(dlock_acquire('mass' || n, '1s')) FROM generate_series(1, 20000) n"),
	20000,
	'20,000 grants');
wait_for_rows('db1', 1, 'are removed');
hear($listener, qr/"event": "expired", "key": "mass\d+"/, 20000);
my %seen;
$seen{$1}++ while $listener->{heard} =~ /"key": "(mass\d+)"/g;
is(scalar(keys %seen), 20000, 'each with its event');
is(scalar(grep { $_ != 1 } values %seen), 0, '... and only one');
end_session($listener);

# A client makes sure that the reaper always has something to do in db2.
my $load = $node->basedir . '/load.sql';
append_to_file(
	$load, q{
\set i (:i + 1) % 1000
SELECT dlock_acquire('load' || :i, '1ms');
});
my ($out, $err) = ('', '');
my $pgbench = IPC::Run::start(
	[
		'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', '1', '-T', '600',
		'-D', 'i=0', '-f', $load, 'db1'
	],
	'>', \$out, '2>', \$err);
$node->poll_query_until('db1', "SELECT count(*) > 10 FROM dlock.locks WHERE key ~ '^load'")
  or die 'there is no load';

$node->safe_psql('db2', "SELECT dlock_acquire('m' || n, '1ms') FROM generate_series(1, 5000) n");
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE db2');
ok(1, 'CREATE DATABASE .. TEMPLATE');
is($node->safe_psql('copy', "SELECT count(*) FROM dlock_locks WHERE key = 'stays'"), 1,
	'the copy has the locks');
cmp_ok($node->safe_psql('copy', "SELECT dlock_acquire('fresh', '1h')"),
	'>', 2**32, 'and higher versions');
wait_for_rows('copy', 2, 'and is reaped with no configuration');
$node->safe_psql('copy', "SELECT dlock_acquire('m' || n, '1ms') FROM generate_series(1, 5000) n");
$node->safe_psql('postgres', 'DROP DATABASE copy');
ok(1, 'DROP DATABASE');
$node->safe_psql('db1', 'DROP EXTENSION dlock');
ok(1, 'DROP EXTENSION in a database with load');
eval { $pgbench->finish };
like($err, qr/does not exist|extension "dlock" is not installed in database "db1"/,
	'a holder that continues to use it gets an error');
add_extension_in($node, 'db1');
$node->safe_psql('db1', "SELECT dlock_acquire('anew', '1ms')");
wait_for_rows('db1', 0, 'CREATE EXTENSION again');

#
# An acquire of an expired key is never busy because the reaper is removing it
#

$node->safe_psql('db1', 'CREATE TABLE spurious (key text)');
my $script = $node->basedir . '/expired.sql';
append_to_file(
	$script, q{
\set i (:i + 1) % 200
SELECT coalesce(dlock_acquire('c' || :client_id || ':' || :i, '1ms'), -1) AS v \gset
\if :v < 0
INSERT INTO spurious VALUES ('c' || :client_id || ':' || :i);
\endif
});
$node->command_ok(
	[
		'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', '4', '-T', '4',
		'-D', 'i=0', '-f', $script, 'db1'
	],
	'tries on expired keys while they are removed');
is($node->safe_psql('db1', 'SELECT count(*) FROM spurious'), 0, 'are all granted');
wait_for_rows('db1', 0, 'in the end all rows are gone');

#
# The table is rewritten between two batches of the first pass
#

# A copy of a database has not been read yet.  Most of its rows are dead, so VACUUM FULL
# moves the place at the end to a block that the first batch has passed.
$node->safe_psql('postgres', 'CREATE DATABASE origin');
add_extension_in($node, 'origin');
$node->safe_psql('origin',
	"SELECT count(dlock_acquire('k' || i, '1 h')) FROM generate_series(1, 30000) i");
$node->safe_psql('origin', "SELECT dlock_acquire('shared', '1 h', shared => true)");
$node->safe_psql('origin', "DELETE FROM dlock.locks WHERE key LIKE 'k%' AND key NOT LIKE 'k%7'");
wait_until('no reaper is in the database',
	sub { $node->psql('postgres', 'CREATE DATABASE copied TEMPLATE origin') == 0 });

my $table_locker = session($node, 'copied');
my $rewriter = session($node, 'copied');
ask($table_locker, 'BEGIN');
ask($table_locker, 'LOCK TABLE dlock.locks IN SHARE ROW EXCLUSIVE MODE');
ask($rewriter, "SELECT dlock_check('shared', 1)");
$node->poll_query_until('postgres',
	"SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'RowExclusiveLock'", 1)
  or die 'the reaper does not come';
my $rewritten = background_answer($rewriter, 'VACUUM FULL dlock.locks;');
$node->poll_query_until('postgres',
	"SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'", 1)
  or die 'VACUUM does not wait';
ask($table_locker, 'COMMIT');
$rewritten->();
$node->poll_query_until('postgres',
	"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'dlock reaper'", 0)
  or die 'the reaper does not leave';
is($node->safe_psql('copied', "SELECT dlock_acquire('shared', '1 h')"),
	'', 'a place is known, although VACUUM FULL moved it during the first pass');
end_session($table_locker, $rewriter);
$node->safe_psql('postgres', "DROP DATABASE $_ WITH (FORCE)") foreach 'copied', 'origin';

#
# No free worker slot
#

foreach my $workers (1, 0)
{
	$node->append_conf('postgresql.conf', "max_worker_processes = $workers");
	$node->restart;
	my $held = $node->safe_psql('db1', "SELECT dlock_acquire('held$workers', '1h')");
	is($node->safe_psql('db1', "SELECT dlock_check('held$workers', $held)"),
		'held', "max_worker_processes = $workers: locks work");
	my $short = $node->safe_psql('db1', "SELECT dlock_acquire('short$workers', '50ms')");
	$node->poll_query_until('db1', "SELECT dlock_check('short$workers', $short)", 'not_held')
	  or die 'the lease does not end';
	isnt($node->safe_psql('db1', "SELECT dlock_acquire('short$workers', '1ms')"), '', 'and expire');
	$node->restart;
	is( $node->safe_psql(
			'db1',
			"SELECT remaining > interval '59 min' FROM dlock_locks WHERE key = 'held$workers'"),
		't',
		'and outlast a restart');
}

$node->stop;
done_testing();
