# dlock_health(): what it reports about a primary, its standbys, and their problems.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;

# The row of that name: "status: detail (hint)".
sub told
{
	my ($node, $name, %params) = @_;

	return $node->safe_psql('postgres',
		($params{before} // '')
		  . "SELECT status || ': ' || detail || coalesce(' (' || hint || ')', '') FROM dlock_health() WHERE name = '$name'");
}

sub until_told
{
	my ($node, $name, $pattern, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $said;

	wait_until($what, sub { $said = told($node, $name); return $said =~ $pattern; });
	like($said, $pattern, $what);
	return;
}

# The rows that are not ok, in order.
sub complaints
{
	my ($node) = @_;

	return $node->safe_psql('postgres',
		"SELECT coalesce(string_agg(name || ' ' || status, ', '), '') FROM dlock_health() WHERE status <> 'ok'");
}

sub set
{
	my ($node, %settings) = @_;

	foreach my $name (sort keys %settings)
	{
		$node->safe_psql('postgres', "ALTER SYSTEM SET $name = $settings{$name}");
	}
	$node->reload;
	return;
}

#
# A primary, from bad to good
#

my $primary = new_node('primary', streaming => 1);
is(complaints($primary), 'failover problem, fsync problem, reaper warning', 'a server as the tests have it');
like(told($primary, 'failover'), qr/^problem: grants can be lost in a crash; see: fsync \(Turn fsync on/, 'the verdict');
like(told($primary, 'fsync'), qr/^problem: off: .*Turn fsync on/, 'fsync off');
like(told($primary, 'reaper'), qr/^warning: dlock.reap_interval is 0: .*Set dlock.reap_interval/, 'no reaper');

# One that is alone is well, and its operator knows what that means.  A base backup is no standby.
set($primary, fsync => 'on', 'dlock.reap_interval' => q{'100ms'});
until_told($primary, 'failover', qr/^ok: grants survive a crash of this server, but not its loss, because it has no standby$/, 'alone');
is(complaints($primary), '', 'without a complaint');
like(told($primary, 'standbys'), qr/^ok: none, and nothing is set up for one: .* everything is lost \(Set up a standby/, 'no standby');
$primary->backup('of_one_alone');
is(complaints($primary), '', 'after a base backup');
like(told($primary, 'dlock.require_sync', before => 'SET dlock.require_sync = on;'), qr/^problem: /, 'unless it wants a standby');

# Not if there should be a standby: with a slot, and where one was seen.
my $missed = qr/^problem: grants can be lost in a failover; see: synchronous_standby_names, standbys \(Set synchronous_standby_names to /;
$primary->safe_psql('postgres', q{SELECT pg_create_physical_replication_slot('for_a_standby')});
like(told($primary, 'failover'), $missed, 'a slot without a standby');
like(told($primary, 'standbys'), qr/^problem: none: .*pg_basebackup/, 'no standby');
$primary->safe_psql('postgres', q{SELECT pg_drop_replication_slot('for_a_standby')});
like(told($primary, 'failover'), qr/^ok/, 'without the slot');
my $passing = new_standby($primary, 'passing');
until_told($primary, 'standbys', qr/^ok: 1 streaming, none is synchronous$/, 'a standby comes');
$passing->stop;
until_told($primary, 'failover', $missed, 'a standby that has gone is not forgotten');
$primary->restart;
like(told($primary, 'failover'), qr/^ok: .*no standby$/, 'until a restart');
set($primary, primary_conninfo => q{'host=elsewhere'});
until_told($primary, 'failover', $missed, 'a former standby');
set($primary, primary_conninfo => 'DEFAULT', fsync => 'DEFAULT', 'dlock.reap_interval' => 'DEFAULT');
until_told($primary, 'failover', qr/crash; see: fsync /, 'not well');

my $standby = new_standby($primary, 'standby');
until_told($primary, 'standbys', qr/^ok: 1 streaming, none is synchronous$/, 'an asynchronous standby');
until_told($primary, 'standby "standby"', qr/^ok: async, streaming, \d+ bytes behind$/, 'and which one it is');
like(told($primary, 'failover'), qr/^problem: .*see: synchronous_standby_names, fsync /, 'it does not count');

set($primary, synchronous_standby_names => q{'standby'}, fsync => 'on', 'dlock.reap_interval' => q{'100ms'});
until_told($primary, 'failover', qr/^ok: grants survive the loss of this server, if a synchronous standby is promoted$/, 'all is well');
is(complaints($primary), '', 'no complaint');
is(told($primary, 'synchronous_standby_names'), 'ok: standby: a commit with a grant waits for 1 of these', 'its names');
is(told($primary, 'standbys'), 'ok: 1 streaming, 1 of 1 required are synchronous', 'its standbys');
is(told($primary, 'standby "standby"'), 'ok: sync, streaming, 0 bytes behind', 'the one');
like(told($primary, 'server'), qr/^ok: primary, timeline 1, accepting writes since 20/, 'what it is');

# Which role sees what.
$primary->safe_psql('postgres', 'CREATE ROLE app; CREATE ROLE monitor IN ROLE pg_monitor');
is($primary->safe_psql('postgres', q{SET ROLE app; SELECT status FROM dlock_health() LIMIT 1}), 'ok', 'any role can call it');
is($primary->safe_psql('postgres', q{SET ROLE app; SELECT count(*) FROM dlock_health() WHERE name ~ '^standby '}), 0, 'not every role sees the names');
is($primary->safe_psql('postgres', q{SET ROLE monitor; SELECT count(*) FROM dlock_health() WHERE name ~ '^standby '}), 1, 'but for a monitor');

#
# More standbys, and more than one required
#

my $second = new_standby($primary, 'second');
set($primary, synchronous_standby_names => q{'FIRST 1 (standby, second)'});
until_told($primary, 'standby "second"', qr/^ok: potential, streaming/, 'one in reserve');
set($primary, synchronous_standby_names => q{'ANY 2 (standby, second)'});
until_told($primary, 'standbys', qr/^ok: 2 streaming, 2 of 2 required are synchronous$/, 'a quorum');
is(told($primary, 'standby "second"'), 'ok: quorum, streaming, 0 bytes behind', 'both count');
$second->stop;
until_told(
	$primary, 'standbys',
	qr/^problem: 1 streaming, 1 of 2 required are synchronous: grants and refreshes wait, and are not confirmed \(Bring the standby back/,
	'one is missing');
like(told($primary, 'failover'),
	qr/^problem: grants that were confirmed survive a failover, but no new one is confirmed now; see: standbys \(Bring/, 'what that means');
like(told($primary, 'standbys', before => 'SET dlock.require_sync = on;'), qr/^problem: .*grants are refused \(55000\), refreshes wait/, 'and with require_sync');
set($primary, synchronous_standby_names => q{'standby'});
until_told($primary, 'failover', qr/^ok/, 'one is enough again');

#
# A standby that is connected but does not answer
#

my $receiver = pid_of($standby, 'walreceiver');
kill 'STOP', $receiver;
$primary->safe_psql('postgres', q{SET synchronous_commit = local; CREATE TABLE unconfirmed (n int)});
like(told($primary, 'standbys'),
	qr/^problem: 1 streaming, 1 of 1 required are synchronous, but WAL written 1000 ms ago is not confirmed \(Check whether the standby hangs/,
	'a standby that hangs');
like(told($primary, 'standby "standby"'), qr/^ok: sync, streaming, [1-9]\d* bytes behind$/, 'it is behind');
kill 'CONT', $receiver;
until_told($primary, 'failover', qr/^ok/, 'it continues');

#
# The names are set, but the checkpointer does not know yet
#

set($primary, synchronous_standby_names => q{''});
until_told($primary, 'synchronous_standby_names', qr/^problem: empty/, 'no names');
my $checkpointer = pid_of($primary, 'checkpointer');
kill 'STOP', $checkpointer;
set($primary, synchronous_standby_names => q{'standby'});
until_told($primary, 'standby "standby"', qr/^ok: sync, streaming/, 'the standby is synchronous');
like(told($primary, 'synchronous_standby_names'), qr/^problem: standby, but commits do not wait for it yet \(Reload/, 'but nobody waits for it');
like(told($primary, 'failover'), qr/^problem: grants can be lost in a failover; see: synchronous_standby_names /, 'the verdict');
fails_with(
	$primary, "SET dlock.require_sync = on; SELECT dlock_acquire('too_early')", '55000',
	[qr/commits do not wait for a synchronous standby yet/, qr/HINT:  Try again in a moment\./],
	'require_sync knows that');
kill 'CONT', $checkpointer;
until_told($primary, 'failover', qr/^ok/, 'it knows the setting');
isnt($primary->safe_psql('postgres', "SET dlock.require_sync = on; SELECT dlock_acquire('in_time', '1h')"), '', 'granted');

#
# The reaper
#

$primary->safe_psql('postgres', "SELECT dlock_acquire('short', '1ms')");
until_told($primary, 'reaper', qr/^ok: running; last visited this database at 20/, 'it was here');
my $launcher = pid_of($primary, 'dlock launcher');
kill 'TERM', $launcher;
wait_until('there is another launcher', sub { return pid_of($primary, 'dlock launcher') != $launcher });
until_told($primary, 'reaper', qr/^ok: running/, 'and is again');

#
# On a standby
#

until_told($standby, 'receiver', qr/^ok: streaming from .*, port \d+$/, 'a standby that follows');
is(complaints($standby), 'failover problem, synchronous_standby_names warning, fsync problem',
	'what is wrong with it');
set($standby, fsync => 'on');
until_told($standby, 'failover', qr/^warning: this standby is streaming: .*; worth a look: synchronous_standby_names /, 'it could be promoted');
like(told($standby, 'synchronous_standby_names'), qr/^warning: empty: once promoted, .*Set synchronous_standby_names here too/, 'for later');
set($standby, synchronous_standby_names => q{'primary'});
until_told($standby, 'failover', qr/^ok: this standby is streaming/, 'all is well there');
like(told($standby, 'versions'), qr/^ok: the last one is \d+; the first one after a promotion leaps by 4294967296 or more$/, 'its versions');
like(told($standby, 'server'), qr/^ok: standby, timeline 1$/, 'what it is');
like(told($standby, 'reaper'), qr/^ok: starts when/, 'no reaper');
is($standby->safe_psql('postgres', q{SET ROLE app; SELECT detail FROM dlock_health() WHERE name = 'receiver'}), 'streaming', 'not every role sees the host');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
until_told($standby, 'replay', qr/^warning: paused; \d+ bytes are received.*pg_wal_replay_resume/, 'replay is paused');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
until_told($standby, 'replay', qr/^ok: \d+ bytes/, 'and continues');
set($standby, primary_conninfo => q{''});
until_told($standby, 'receiver', qr/^problem: not streaming from the primary: .*Check primary_conninfo/, 'cut off');
like(told($standby, 'failover'), qr/^problem: if this standby is promoted, grants can be lost; see: receiver /, 'the verdict');

# After promotion it is a primary like any other.
$standby->promote;
like(told($standby, 'server'), qr/^ok: primary, timeline 2, /, 'promoted');
like(told($standby, 'versions'), qr/of an earlier incarnation; the next one leaps by 4294967296 or more$/, 'the next version leaps');
$standby->safe_psql('postgres', q{SET dlock.durable_grants = off; SET synchronous_commit = local; SELECT dlock_acquire('next')});
like(told($standby, 'versions'), qr/, of this incarnation$/, 'it has');
$standby->stop;
$primary->stop('immediate');

#
# A primary that was restored to an older state, with a standby that was not
#

my $now = new_node('now', streaming => 1, conf => "wal_keep_size = '320MB'\n");
my $ahead = new_standby($now, 'ahead');
$now->safe_psql('postgres', 'CREATE TABLE remembered (n int)');
$now->stop;
$now->backup_fs_cold('cold');
$now->start;
$now->safe_psql('postgres', q{CREATE TABLE forgotten AS SELECT n FROM generate_series(1, 1000) n});
$now->wait_for_catchup($ahead);
$now->stop('immediate');
my $older = PostgreSQL::Test::Cluster->new('older');
$older->init_from_backup($now, 'cold');
$older->append_conf('postgresql.conf', q{synchronous_standby_names = 'ahead'});
$older->start;
set($ahead, primary_conninfo => q{'} . $older->connstr =~ s/'/''/gr . q{'});
until_told($older, 'standbys', qr/^problem: 1 of 1 have WAL that this server has not written: .*pg_rewind/, 'a standby of another history');
is(told($older, 'standby "ahead"'), 'problem: sync, streaming, with WAL that this server has not written (Stop it and rebuild it with pg_rewind or pg_basebackup.)',
	'which one');
fails_with(
	$older, "SET dlock.require_sync = on; SELECT dlock_acquire('x')", '55000',
	[ qr/a synchronous standby has a different history/, qr/HINT:  Stop that standby/ ],
	'its word is not good enough');
$ahead->stop('immediate');
$older->stop('immediate');

#
# Settings that no failover survives
#

my $minimal = new_node('minimal', conf => q{
wal_level = minimal
max_wal_senders = 0
full_page_writes = off
synchronous_standby_names = '*'
dlock.reap_interval = 100ms
max_worker_processes = 1
max_logical_replication_workers = 0
});
like(told($minimal, 'wal_level'), qr/^problem: minimal, with max_wal_senders = 0: no standby can connect \(Set wal_level/, 'wal_level');
like(told($minimal, 'full_page_writes'), qr/^warning: off: .*Turn full_page_writes on/, 'full_page_writes');
like(told($minimal, 'synchronous_standby_names'), qr/^problem: \*, but commits do not wait for it, because max_wal_senders is 0 \(Set max_wal_senders/, 'with max_wal_senders = 0, nobody waits');
fails_with(
	$minimal, "SET dlock.require_sync = on; SELECT dlock_acquire('x')", '55000',
	[ qr/"max_wal_senders" is 0/, qr/HINT:  Set max_wal_senders and restart/ ],
	'require_sync knows that');

# The launcher has the only worker slot, or none.
until_told($minimal, 'reaper', qr/^warning: could not be started because no worker slot is free: .*Raise max_worker_processes \(now 1\)/, 'no slot for the reaper');
$minimal->append_conf('postgresql.conf', 'max_worker_processes = 0');
$minimal->restart;
like(told($minimal, 'reaper'), qr/^warning: the process "dlock launcher" is not running: .*Raise max_worker_processes \(now 0\)/, 'no slot for the launcher');

# Not preloaded.
$minimal->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$minimal->restart;
fails_with($minimal, 'SELECT * FROM dlock_health()', '55000', [qr/HINT:  Add the line shared_preload_libraries = 'dlock'/], 'not preloaded');
$minimal->stop;

done_testing();
