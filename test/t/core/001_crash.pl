# A crash loses what was not committed and nothing else.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;

# Only a commit that asks for it flushes WAL: page images are off, so that little is
# written, and the delays are long.
my $node = new_node(
	'crash', conf => q{
wal_writer_delay = 10s
full_page_writes = off
checkpoint_timeout = 1h
bgwriter_lru_maxpages = 0
});

sub highest
{
	return $node->safe_psql('postgres', 'SELECT max(version) FROM dlock.locks');
}

# Make a lease look as if it had expired in this run of the server.
sub make_stale
{
	$node->safe_psql('postgres',
		"UPDATE dlock.locks SET expires_at = expires_at - interval '1 day'"
		  . " WHERE key = '$_[0]'");
	return;
}

#
# kill -9 of a backend
#

my $kept = $node->safe_psql('postgres', "SELECT dlock_acquire('kept', '1h')");
my $stale = $node->safe_psql('postgres', "SELECT dlock_acquire('stale', '1h')");
make_stale('stale');
is($node->safe_psql('postgres', "SELECT dlock_check('stale', $stale)"),
	'not_held', 'its time is up');

my $victim = session($node);
my $other = session($node);
ask($victim, 'BEGIN');
my $open = ask($victim, "SELECT dlock_acquire('open', '1h')");
ask($victim, "SELECT dlock_release('kept', $kept)");
ask($other, 'BEGIN');
my $also_open = ask($other, "SELECT dlock_acquire('also_open', '1h')");
cmp_ok($also_open, '>', $open, 'both were granted, in open transactions');

my $log_at = -s $node->logfile;
kill 'KILL', ask($victim, 'SELECT pg_backend_pid()');
$node->wait_for_log(qr/database system is ready to accept connections/, $log_at);
$node->poll_query_until('postgres', 'SELECT true');
end_session($victim, $other);

is(locks_of($node), "kept $kept, stale $stale",
	'after kill -9: committed grants are held, an uncommitted release is undone');
is( $node->safe_psql(
		'postgres', q{
SELECT count(*) FROM dlock_locks
 WHERE remaining > interval '59 min' AND remaining <= interval '1 hour'
   AND expires_at > now() + interval '59 min'}),
	2,
	'they last one full TTL from the restart');
is($node->safe_psql('postgres', "SELECT dlock_acquire('stale')"),
	'', 'including the one that seemed to have expired');
is($node->safe_psql('postgres', "SELECT dlock_refresh('kept', $kept) IS NOT NULL"),
	't', 'the holder continues');
cmp_ok($node->safe_psql('postgres', "SELECT dlock_acquire('open', '1h')"),
	'>', $stale, 'an uncommitted grant is gone, and versions rise');

#
# Immediate stop, and an outage longer than the TTL: after it, the row's time is over.  The
# TTL is long enough to look before it ends.
#

my $short = $node->safe_psql('postgres', "SELECT dlock_acquire('short', '15s')");
make_stale('short');
my $open_session = session($node);
ask($open_session, 'BEGIN');
ask($open_session, "SELECT dlock_acquire('never_committed', '1h')");
my $before = highest();

$node->stop('immediate');
end_session($open_session);
$node->start;

is($node->safe_psql('postgres', "SELECT dlock_acquire('short'), dlock_check('short', $short)"),
	'|held', 'a grant outlasts an outage');
$node->poll_query_until('postgres', "SELECT dlock_check('short', $short)", 'not_held')
  or die 'the lease does not end';
ok(1, '... by one TTL');
cmp_ok($node->safe_psql('postgres', "SELECT dlock_acquire('short')"),
	'>', $before, 'versions rise after it');
isnt($node->safe_psql('postgres', "SELECT dlock_acquire('never_committed')"),
	'', 'an open grant is gone after an immediate stop');

#
# Grants are durable whatever the session's settings are
#

sub crash_after
{
	my ($setting, $sql) = @_;
	my $session = session($node);

	ask($session, $setting) if $setting;
	my $answer = ask($session, $sql);
	is($session->{stderr}, '', "no complaint: $sql");
	$node->stop('immediate');
	end_session($session);
	$node->start;
	return (split /\n/, $answer)[-1];
}

my $n = 0;
foreach my $setting (
	'SET synchronous_commit = off',
	'SET synchronous_commit = local',
	"SET dlock.default_ttl = '1h'")
{
	my $key = 'durable' . ++$n;
	my $version = crash_after($setting, "SELECT dlock_acquire('$key', '1h')");

	is($node->safe_psql('postgres', "SELECT dlock_check('$key', $version)"),
		'held', "a grant survives: $setting");
}

$node->safe_psql('postgres', 'ALTER SYSTEM SET synchronous_commit = off');
$node->restart;
my $version = crash_after('', "SELECT dlock_acquire('durable_all', '1h')");
is($node->safe_psql('postgres', "SELECT dlock_check('durable_all', $version)"),
	'held', 'a grant survives: synchronous_commit off for the whole server');

# In one transaction with a user's table: both survive or neither does, so both do.
$node->safe_psql('postgres', 'CREATE TABLE work (n int)');
$node->safe_psql('postgres', 'CHECKPOINT');
crash_after('', "BEGIN; INSERT INTO work VALUES (1);"
	  . " SELECT dlock_acquire('with_work', '1h'); COMMIT");
is($node->safe_psql('postgres', "SELECT dlock_acquire('with_work'), count(*) FROM work"),
	'|1', 'a grant carries the writes of its transaction');

# The row that survives has the longer TTL.
$version = $node->safe_psql('postgres', "SELECT dlock_acquire('longer', '10 min')");
crash_after('', "SELECT dlock_refresh('longer', $version, '2h')");
is($node->safe_psql('postgres',
		"SELECT remaining > interval '1 h' FROM dlock_locks WHERE key = 'longer'"),
	't', 'a refresh that lengthens the TTL survives');

# A lost release leaves the lock until its TTL ends; a later grant flushes the release, too.
$version = $node->safe_psql('postgres', "SELECT dlock_acquire('freed', '1h')");
crash_after('', "SELECT dlock_release('freed', $version);"
	  . " SELECT dlock_acquire('after_release', '1h')");
is($node->safe_psql('postgres', "SELECT dlock_check('freed', $version)"),
	'not_held', 'a release survives if a later grant does');

# What nobody has flushed is lost.  Only the WAL writer could flush that WAL, so it is
# stopped first and then used to cause the crash.
sub lose_after
{
	my ($run) = @_;
	my $session = session($node);

	$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
	my $walwriter = pid_of($node, 'walwriter');
	kill 'STOP', $walwriter;
	$run->($session);
	my $at = -s $node->logfile;
	kill 'KILL', $walwriter;
	$node->wait_for_log(qr/database system is ready to accept connections/, $at);
	$node->poll_query_until('postgres', 'SELECT true');
	end_session($session);
	return;
}

# A release that was answered, and that nothing has followed, is undone.
$version = $node->safe_psql('postgres', "SELECT dlock_acquire('revived', '1h')");
my $release = "SELECT dlock_release('revived', $version)";
my $check = "SELECT dlock_check('revived', $version)";
lose_after(sub { is(ask($_[0], $release) . ' ' . ask($_[0], $check), 'released not_held', 'a release'); });
is($node->safe_psql('postgres', $check), 'held', 'a crash undoes it');
is($node->safe_psql('postgres', "SELECT dlock_acquire('revived', '1h')"), '', 'nobody else gets it');
is($node->safe_psql('postgres', "SELECT dlock_refresh('revived', $version) IS NOT NULL; BEGIN; SELECT dlock_fence('revived', $version); COMMIT"),
	"t\n", 'its version is valid again');
lose_after(sub { is(ask($_[0], "SET dlock.durable_releases = on; $release"), 'released', 'dlock.durable_releases: a release'); });
is($node->safe_psql('postgres', $check), 'not_held', 'survives');

# dlock.durable_grants = off gives up the durability of grants.
$node->safe_psql('postgres', 'ALTER SYSTEM SET dlock.durable_grants = off');
$node->reload;
lose_after(
	sub {
		$version = ask($_[0], "SELECT dlock_acquire('not_durable', '1h')");
		is(ask($_[0], "SELECT dlock_check('not_durable', $version)"), 'held', 'durable_grants off: the grant is given');
	});
is($node->safe_psql('postgres', "SELECT dlock_check('not_durable', $version)"),
	'not_held', 'durable_grants off: it went with its WAL');

$node->stop;
done_testing();
