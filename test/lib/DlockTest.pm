# Common parts of dlock's TAP tests.

package DlockTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Test::More;
use Time::HiRes qw(usleep);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(
  new_node new_standby session end_session ask complaint fails_with
  wait_until pid_of add_extension_in background_answer
  faketime_env locks_of
  make_synchronous cut_off reconnect promote until_sync_waits
);

# A server with dlock.  The reaper is off unless the test is about it, so that only the
# test writes WAL or deletes rows.
sub new_node
{
	my ($name, %params) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(
		extra => $params{initdb},
		allows_streaming => $params{streaming},
		has_archiving => $params{archiving});
	$node->append_conf(
		'postgresql.conf', q{
shared_preload_libraries = 'dlock'
dlock.reap_interval = 0
dlock.allow_direct_writes = on
restart_after_crash = on
autovacuum = off
log_statement = none
log_replication_commands = off
});
	$node->append_conf('postgresql.conf', $params{conf}) if $params{conf};
	if (!$params{stopped})
	{
		$node->start;
		add_extension_in($node, 'postgres') unless $params{bare};
	}
	return $node;
}

sub new_standby
{
	my ($primary, $name, %params) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$primary->backup("for_$name");
	$node->init_from_backup($primary, "for_$name", has_streaming => 1);
	$node->append_conf('postgresql.conf', $params{conf}) if $params{conf};
	{
		local %ENV = (%ENV, $params{env} ? %{ $params{env} } : ());
		$node->start unless $params{stopped};
	}
	return $node;
}

# From here on, commits of the primary wait for that standby.
sub make_synchronous
{
	my ($primary, $standby) = @_;
	my $name = $standby->name;

	$primary->safe_psql('postgres', "SET synchronous_commit = local; ALTER SYSTEM SET synchronous_standby_names = '$name'");
	$primary->reload;
	wait_until(
		"$name is synchronous, and commits wait for it",
		sub {
			return $primary->safe_psql('postgres',
				"SELECT name || ' ' || status FROM dlock_health() WHERE name ~ '^(synchronous_standby_names|standbys)\$' ORDER BY name") eq
			  "standbys ok\nsynchronous_standby_names ok";
		});
	return;
}

# A standby that receives nothing from here on; what the primary sends does not arrive
# later either.
sub cut_off
{
	my ($node) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET primary_conninfo = ''");
	$node->reload;
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_wal_receiver')
	  or die 'the WAL receiver does not stop';
	return;
}

sub reconnect
{
	my ($node) = @_;

	$node->safe_psql('postgres', 'ALTER SYSTEM RESET primary_conninfo');
	$node->reload;
	return;
}

sub promote
{
	my ($node) = @_;

	$node->promote;
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  or die 'the standby is not promoted';
	return;
}

# Wait until this many commits wait for a synchronous standby.
sub until_sync_waits
{
	my ($node, $count, $condition) = @_;

	$condition //= 'true';
	$node->poll_query_until('postgres',
		"SELECT count(*) = $count FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND $condition")
	  or die "there are not $count who wait for the standby";
	return;
}

sub add_extension_in
{
	my ($node, @databases) = @_;

	$node->safe_psql($_, 'CREATE EXTENSION dlock') foreach @databases;
	return;
}

# A psql session that stays open.
sub session
{
	my ($node, $database, %params) = @_;
	my $session = $node->background_psql($database // 'postgres',
		on_error_stop => 0, %params);

	$session->set_query_timer_restart;
	return $session;
}

# psql may be gone already when its backend was killed.
sub end_session
{
	my @sessions = @_;

	foreach my $session (@sessions)
	{
		eval { $session->quit; 1 } or note "session had ended: $@";
	}
	return;
}

# The answer of a session; earlier error output is discarded.
sub ask
{
	my ($session, $sql) = @_;

	$session->{stderr} = '';
	return scalar $session->query($sql);
}

# The error output of a session.
sub complaint
{
	my ($session, $sql) = @_;

	ask($session, $sql);
	return $session->{stderr};
}

# The statement fails with that error code, and its message matches the patterns.
sub fails_with
{
	my ($node, $sql, $code, $patterns, $what, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($rc, $stdout, $stderr) = $node->psql(
		$params{database} // 'postgres',
		"\\set VERBOSITY verbose\n$sql",
		%{ $params{psql} // {} });

	like($stderr, qr/ERROR:  \Q$code\E: /, "$what: error $code");
	like($stderr, $_, "$what: says what to do") foreach @$patterns;
	return;
}

# Poll a condition in perl.
sub wait_until
{
	my ($what, $condition) = @_;

	for (my $i = 0; $i < 20 * $PostgreSQL::Test::Utils::timeout_default; $i++)
	{
		return 1 if $condition->();
		usleep(50_000);
	}
	die "timed out waiting until $what";
}

# The pid of a background worker or an auxiliary process.
sub pid_of
{
	my ($node, $type) = @_;
	my $pid;

	wait_until(
		"there is a $type",
		sub {
			$pid = $node->safe_psql('postgres',
				"SELECT pid FROM pg_stat_activity WHERE backend_type = '$type'");
			return $pid =~ /^\d+$/;
		});
	return $pid;
}

# Send a statement that will not return at once; the returned sub waits for its answer.
sub background_answer
{
	my ($session, $sql) = @_;
	my $mark = 'sent ' . ++$session->{dlock_sent};

	$session->query_until(qr/\Q$mark\E/, "\\echo $mark\n$sql\n");
	return sub {
		my $answer = ask($session, '');

		$answer =~ s/^\Q$mark\E\n?//;
		return $answer;
	};
}

# The environment that a server needs for its wall clock to be wrong (Debian package
# faketime).
sub faketime_env
{
	my (%params) = @_;
	my ($library) = glob '/usr/lib/*/faketime/libfaketime.so.1';

	die 'libfaketime is missing (Debian package faketime)' unless $library;
	return (
		LD_PRELOAD => $library,
		FAKETIME_DONT_FAKE_MONOTONIC => 1,
		FAKETIME_DONT_RESET => 1,
		%params);
}

sub locks_of
{
	my ($node, $database) = @_;

	return $node->safe_psql($database // 'postgres',
		"SELECT string_agg(key || ' ' || version, ', ' ORDER BY key) FROM dlock_locks");
}

1;
