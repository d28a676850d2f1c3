# Tickets, for the tests of them.

package DlockTicket;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Test::More;
use Time::HiRes qw(usleep);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

use DlockTest;
use DlockWait;

our @EXPORT = qw(
  enqueue state_of until_state version_of hears granter_of until_granter_sleeps
  stop_granter
);

# Take a ticket: enqueue($client, $key, $owner, "further arguments").
sub enqueue
{
	my ($client, $key, $owner, $args) = @_;

	$args = $args ? ", $args" : '';
	$args .= ', ttl => NULL' if $args !~ /ttl =>/;
	return $client->ask_it("SELECT dlock_enqueue('$key', owner => '$owner'$args)");
}

# What becomes of a ticket: "waiting 1", "granted", "missed", or nothing.
sub state_sql
{
	my ($ticket) = @_;

	return "SELECT concat_ws(' ', state, position) FROM dlock_ticket($ticket)";
}

sub state_of
{
	my ($client, $ticket) = @_;

	return $client->ask_it(state_sql($ticket));
}

sub until_state
{
	my ($node, $ticket, $state, $what, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	until_sql($node, state_sql($ticket), $state, $what, %params);
	return;
}

sub version_of
{
	my ($client, $ticket) = @_;

	return $client->ask_it("SELECT version FROM dlock_ticket($ticket)");
}

# Wait until a listening client has received an event that matches; the payloads that
# have come so far.
sub hears
{
	my ($client, $pattern, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$client->{heard} //= '';
	wait_until(
		"there is $pattern",
		sub {
			$client->{heard} .= $client->ask_it("SELECT ''") . "\n";
			return $client->{heard} =~ $pattern;
		});
	like($client->{heard}, $pattern, $what);
	return;
}

# The pid of the granter of a database, or ''.
sub granter_of
{
	my ($node, $database) = @_;

	$database //= 'postgres';
	return $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'dlock granter' AND datname = '$database'");
}

# Wait until the granter has nothing to do.
sub until_granter_sleeps
{
	my ($node) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	until_sql($node,
		"SELECT wait_event_type FROM pg_stat_activity WHERE backend_type = 'dlock granter' AND datname = 'postgres'",
		'Extension', 'the granter sleeps');
	return;
}

# Stop the granter while it sleeps; it holds nothing then.  The caller has to
# continue it.
sub stop_granter
{
	my ($node) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $pid = granter_of($node);

	until_granter_sleeps($node);
	kill 'STOP', $pid;
	usleep(1000) until slurp_file("/proc/$pid/stat") =~ /\) T /;
	return $pid;
}

1;
