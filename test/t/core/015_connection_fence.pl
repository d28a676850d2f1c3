# dlock.fence judges what a session has written when it commits, whatever happens between the
# write and the commit, and whoever is not meant by it is left alone.
# sql/connection_fence.sql has what one session can show.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node('fenced', streaming => 1, conf => "lock_timeout = 0\n");
my ($holder, $second, $rival) = map { client($node, $_) } qw(holder second rival);

$node->safe_psql('postgres', 'CREATE TABLE note (what text)');

sub notes
{
	return $node->safe_psql('postgres', q{SELECT coalesce(string_agg(what, ' ' ORDER BY what), '') FROM note});
}

# The holder's next fence is on a grant that it has now.
sub take
{
	my ($key) = @_;
	my $version = $second->ask_it("SELECT dlock_acquire('$key', '1h')");

	like($version, qr/^\d+$/, "$key is held");
	$holder->ask_it("SET dlock.fence = '$version:$key'");
	return $version;
}

# The lock is lost between the write and the commit
my $v = take('lost');
$holder->ask_it("BEGIN; INSERT INTO note VALUES ('lost')");
$second->ask_it("SELECT dlock_release('lost', $v)");
like($rival->ask_it("SELECT dlock_acquire('lost', '1h')"), qr/^\d+$/, 'an open transaction keeps nobody out before it commits');
is($holder->ask_it('COMMIT'), 'ERROR LK001', 'taken between write and commit: it does not commit');
is(notes(), '', 'and wrote nothing');
is($holder->ask_it("INSERT INTO note VALUES ('lost')"), 'ERROR LK001', 'nor in autocommit');

# The lock is kept until the commit is visible: here it waits for a standby
$v = take('kept');
$node->safe_psql('postgres', "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
$node->reload;
until_sql($node, 'SHOW synchronous_standby_names', 'nobody', 'commits wait for a standby');
$holder->start("INSERT INTO note VALUES ('kept')");
until_sync_waits($node, 1);
$_->ask_it('SET dlock.durable_grants = off; SET synchronous_commit = local') foreach $second, $rival;
is($second->ask_it("SELECT dlock_refresh('kept', $v, '1ms') IS NOT NULL"), 't', 'meanwhile its holder can refresh the lock');
until_sql($node, "SELECT dlock_check('kept', $v)", 'not_held', 'and its TTL can run out');
is($rival->ask_it("SELECT dlock_acquire('kept', '1h') IS NULL"), 't', 'but nobody else gets it');
asks_for($node, $rival, 'kept', "wait => '1h'");
is($node->safe_psql('postgres', "SELECT pg_cancel_backend($holder->{pid})"), 't', 'the wait for the standby ends');
unlike($holder->answer, qr/ERROR/, 'the commit is done');
like($rival->answer, qr/^\d+$/, 'which wakes the one who waits for the lock');
is($rival->ask_it('SELECT string_agg(what, \' \') FROM note'), 'kept', 'and who sees what was written');
$node->safe_psql('postgres', 'SET synchronous_commit = local; ALTER SYSTEM RESET synchronous_standby_names; TRUNCATE note');
$node->reload;
until_sql($node, 'SHOW synchronous_standby_names', '', 'commits wait for no standby');

# A commit that has to wait for the row can be cancelled, and has a timeout
$v = take('waits');
$second->ask_it("BEGIN; SELECT dlock_release('waits', $v)");
is($holder->ask_it("SET lock_timeout = '10ms'; INSERT INTO note VALUES ('timeout')"), 'ERROR 55P03', 'lock_timeout counts at the commit');
like($holder->said, qr/fence of the connection, judged at COMMIT: dlock.fence = '$v:waits'/, 'and the context says why');
$holder->ask_it('SET lock_timeout = 0');
foreach my $end ([ 'cancel', sub { $node->safe_psql('postgres', "SELECT pg_cancel_backend($holder->{pid})") }, 'ERROR 57014' ],
	[ 'rollback', sub { $second->ask_it('ROLLBACK') }, '' ],
	[ 'commit', sub { $second->ask_it('COMMIT') }, 'ERROR LK001' ])
{
	my ($name, $act, $answer) = @$end;

	$second->ask_it("BEGIN; SELECT dlock_release('waits', $v)") if $name eq 'commit';
	$holder->start("INSERT INTO note VALUES ('$name')");
	until_sql($node, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $holder->{pid}", 'Lock', "$name: the commit waits");
	$act->();
	is($holder->answer, $answer, "$name: the commit then ends with " . ($answer || 'success'));
}
foreach my $ending ([ 'handover', "SELECT dlock_handover('waits', \$v, 'other') IS NULL", $second ],
	[ 'forced release', "SELECT dlock_force_release('waits', 'test') IS NULL", $rival ],
	[ 'preemption', "SELECT dlock_acquire('waits', '1h', priority => 9) IS NULL", $rival ])
{
	my ($name, $sql, $who) = @$ending;

	$v = take('waits');
	is($who->ask_it('BEGIN; ' . $sql =~ s/\$v/$v/r), 'f', "$name: in an open transaction");
	$holder->start("INSERT INTO note VALUES ('$name')");
	until_sql($node, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $holder->{pid}", 'Lock', "$name: the commit waits");
	$who->ask_it($name eq 'handover' ? 'ROLLBACK' : 'COMMIT');
	is($holder->answer, $name eq 'handover' ? '' : 'ERROR LK001', "$name: for its end");
	$rival->ask_it("SELECT dlock_release(key, version) FROM dlock_get('waits')");
	$second->ask_it("SELECT dlock_release(key, version) FROM dlock_get('waits')");
}
is(notes(), 'handover rollback', 'what was committed under the fence is there, and nothing else');

# The holder is killed in its transaction: its lock can be taken
$v = take('killed');
$holder->ask_it("BEGIN; INSERT INTO note VALUES ('killed')");
$second->ask_it("SELECT dlock_refresh('killed', $v, '1ms')");
$second->ask_it("SELECT dlock_acquire('flush', '1h')");	# a crash does not undo the refresh
kill 'KILL', $holder->{pid};
$_->lost foreach $holder, $second, $rival;
DlockWait::close_monitors();
$node->poll_query_until('postgres', 'SELECT true') or die 'the server does not come back';
($holder, $second, $rival) = map { client($node, $_) } qw(holder second rival);
is($rival->ask_it("SELECT dlock_acquire('killed', '1h', wait => NULL) > $v"), 't', 'kill -9: the lock passes on');
is(notes(), 'handover rollback', 'and the transaction has written nothing');

# From outside of the session: options of the connection, the role, the database
$v = $rival->ask_it("SELECT dlock_acquire('a key \\', '1h')");
{
	local $ENV{PGOPTIONS} = "-c dlock.fence=$v:a\\ key\\ \\\\";
	is($node->safe_psql('postgres', "INSERT INTO note VALUES ('by options'); SHOW dlock.fence"), "$v:a key \\", 'a connection string has a fence');
	local $ENV{PGOPTIONS} = '-c dlock.fence=17:gone';
	fails_with($node, "INSERT INTO note VALUES ('late')", 'LK001', [qr/HINT:  .*SET LOCAL/], 'which is judged');
	local $ENV{PGOPTIONS} = '-c dlock.fence=gone';
	like(($node->psql('postgres', 'SELECT 1'))[2], qr/FATAL:  invalid value for parameter "dlock.fence": "gone"/, 'or no connection is made');
}
$node->safe_psql('postgres', q{
CREATE ROLE app LOGIN;
GRANT ALL ON note TO app;
ALTER ROLE app SET dlock.require_fence = 'leader:';
CREATE DATABASE other;
});
my @app = (psql => { connstr => $node->connstr('postgres') . ' user=app' });
fails_with($node, "INSERT INTO note VALUES ('forgot')", 'LK001',
	[ qr/writes are committed only under a fence on a lock whose key begins with "leader:"/, qr/HINT:  Acquire such a lock, .* SET LOCAL dlock.fence/ ],
	'a role that needs a fence', @app);
fails_with($node, 'SET dlock.require_fence = \'\'', '42501', [], 'which it cannot change', @app);
fails_with($node, "BEGIN; INSERT INTO note VALUES ('prepared'); PREPARE TRANSACTION 'x'", '0A000', [qr/HINT:  .*COMMIT/], 'nor avoid with PREPARE', @app);
is($node->safe_psql('postgres', q{
SELECT set_config('dlock.fence', dlock_acquire('leader:a', '1h') || ':leader:a', false) IS NULL;
INSERT INTO note VALUES ('by_app');
}, connstr => $node->connstr('postgres') . ' user=app'), 'f', 'and which writes under a fence');
is(notes(), 'by options by_app handover rollback', 'what was committed under a fence is there, and nothing else');

# Not judged: autovacuum and our own workers, and a backend that exits
my $offset = -s $node->logfile;
$node->safe_psql('postgres', q{
ALTER DATABASE postgres SET dlock.fence = '17:gone';
ALTER DATABASE postgres SET dlock.require_fence = 'gone';
});
{
	local $ENV{PGOPTIONS} = "-c dlock.fence= -c dlock.require_fence=";
	$node->safe_psql('postgres', q{
ALTER TABLE note SET (autovacuum_enabled = true, autovacuum_analyze_threshold = 1, autovacuum_analyze_scale_factor = 0);
INSERT INTO note SELECT i FROM generate_series(1, 100) i;
ALTER SYSTEM SET autovacuum = on;
ALTER SYSTEM SET autovacuum_naptime = 1;
ALTER SYSTEM SET dlock.reap_interval = '10ms';
});
	$node->reload;
	ok($node->poll_query_until('postgres', "SELECT count(*) > 0 FROM pg_stats WHERE tablename = 'note'"), 'autovacuum is not judged');
}
fails_with($node, "INSERT INTO note VALUES ('late')", 'LK001', [], 'a session of that database is');
$node->safe_psql('postgres', "SELECT dlock_acquire('reaped', '1ms')");
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM dlock.locks WHERE key = 'reaped' AND held"), 'nor is the reaper');
my $ticket = $node->safe_psql('postgres', "SELECT dlock_enqueue('granted', ttl => '1h', owner => 'me')");
ok($node->poll_query_until('postgres', "SELECT state = 'granted' FROM dlock_ticket($ticket)"), 'nor the granter');
$node->safe_psql('postgres', q{
BEGIN;
SET LOCAL dlock.fence = '';
SET LOCAL dlock.require_fence = '';
CREATE TEMP TABLE left_behind ();
COMMIT;
});
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_class WHERE relname = 'left_behind'"), 'a backend that exits drops its temporary tables');
unlike(slurp_file($node->logfile, $offset), qr/FATAL.*lock "gone"/, 'without an error');
$node->safe_psql('other', 'ALTER DATABASE postgres RESET ALL');

# A database without the extension, and a session that has loaded the library late
fails_with($node, "SET dlock.fence = '1:k'; CREATE TABLE t ()", '42704', [qr/HINT:  .*CREATE EXTENSION dlock/], 'no extension', database => 'other');
$node->safe_psql('other', "SET dlock.fence = '1:k'; SELECT count(*) FROM pg_class");
my $late = new_node('late', bare => 1, stopped => 1);
$late->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$late->start;
fails_with($late, "LOAD 'dlock'; SET dlock.fence = '1:k'; CREATE TABLE t ()", '55000', [qr/HINT:  Add the line shared_preload_libraries/], 'no preload');
$late->stop;

# A standby writes nothing, so nothing is judged
my $standby = new_standby($node, 'standby');
is($standby->safe_psql('postgres', "SET dlock.fence = '17:gone'; SELECT count(*) > 0 FROM note"), 't', 'a standby judges nothing');
$node->wait_for_catchup($standby);
promote($standby);
fails_with($standby, "SET dlock.fence = '17:gone'; INSERT INTO note VALUES ('late')", 'LK001', [], 'until it is promoted');

close_clients($holder, $second, $rival);
DlockWait::close_monitors();
$_->stop foreach $standby, $node;
done_testing();
