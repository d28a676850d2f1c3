# libdlock: statements that are sent again are prepared, where the session is the
# library's alone; and a second batch leaves if many calls wait for the first.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockBouncer;
use DlockClient;
use DlockTest;

client_build('tests');

my $node = new_node('prepared', conf => "max_connections = 60\nlog_statement = all\n");

$node->safe_psql('postgres', 'CREATE ROLE x LOGIN');

# How the acquires since then were sent: "text", or by name.
sub acquires
{
	my ($offset) = @_;
	my @found = slurp_file($node->logfile, $offset) =~ /execute (\S+): SELECT public\.dlock_acquire/g;

	return join ' ', map { $_ eq '<unnamed>' ? 'text' : 'name' } @found;
}

# Acquire and release this often; returns how the acquires were sent.
sub cycles
{
	my ($driver, $times) = @_;
	my $offset = -s $node->logfile;

	foreach my $time (1 .. $times)
	{
		is($driver->ask('acquire', 'key', ttl => 60000)->{status}, 'ok', 'acquired');
		is($driver->ask('release', 'key')->{status}, 'ok', 'released');
		$driver->ask('free', 'key');
	}
	return acquires($offset);
}

my $a = driver(conninfo($node));
is(cycles($a, 4), 'text name name name', 'what comes again is prepared');

# the plans follow the extension
$node->safe_psql('postgres', 'DROP EXTENSION dlock; CREATE EXTENSION dlock');
is(cycles($a, 2), 'name name', 'after DROP and CREATE EXTENSION');
$node->safe_psql('postgres', 'DROP EXTENSION dlock');
my $answer = $a->ask('acquire', 'key', ttl => 60000);
is($answer->{sqlstate}, '42883', 'without the extension: the error of the statement');
$node->safe_psql('postgres', 'CREATE EXTENSION dlock');
is(cycles($a, 1), 'name', 'and with it again');

# a session that forgets them, as behind a pooler that was not recognized
my $check = $node->safe_psql('postgres', q{SELECT pg_get_functiondef('dlock_check'::regproc)});
$node->safe_psql('postgres', <<'END');
CREATE OR REPLACE FUNCTION public.dlock_check(key text, version bigint = NULL, owner text = NULL) RETURNS text
LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'DEALLOCATE ALL'; RETURN 'held'; END $$
END
foreach my $time (1 .. 10)
{
	# the next call may have another connection, but not for long
	is($a->ask('check_key', 'key', version => 1)->{status}, 'ok', 'a session forgets what was prepared');
	cycles($a, 1);
}
$node->safe_psql('postgres', $check);
is(cycles($a, 3), 'text text text', 'then the texts are sent');

# behind a pooler that is recognized
my $bouncer = DlockBouncer->new(user => 'x', target => 'host=' . $node->host . ' port=' . $node->port);
my $b = driver('host=' . $bouncer->folder . ' port=' . $bouncer->port . ' dbname=postgres user=x');
is(cycles($b, 3), 'text text text', 'through a pooler nothing is prepared');

#
# Two batches: another session has locked the table
#

my $psql = session($node);

# Wait until this many acquires of it wait for the table.
sub until_blocked
{
	my ($name, $count) = @_;

	return $node->poll_query_until('postgres',
		"SELECT count(*) = $count FROM pg_stat_activity WHERE application_name = '$name' AND wait_event_type = 'Lock' AND query LIKE '%dlock_acquire%'"
	);
}

# How many of its sessions have acquired since then?
sub acquirers
{
	my ($name, $offset) = @_;
	my %pids = map { $_ => 1 } slurp_file($node->logfile, $offset) =~ /\[(\d+)\] \Q$name\E LOG:  execute [^\n]*\bdlock_acquire\b/g;

	return scalar keys %pids;
}

foreach my $case ([ 2, 1 ], [ 3, 1 ], [ 4, 2 ])
{
	my ($connections, $batches) = @$case;
	my $name = "at_most_$connections";
	my $c = driver(conninfo($node, more => "application_name=$name"), open => { connections => $connections });

	is($c->ask('acquire', 'warm', ttl => 600000)->{status}, 'ok', 'connected');
	ask($psql, 'BEGIN');
	ask($psql, 'LOCK TABLE dlock.locks');
	my $offset = -s $node->logfile;
	# the first batch carries one call, so that more are queued than it carries
	is($c->ask('begin', 'first', ttl => 600000, timeout => 170000)->{bad}, 0, 'a call is sent');
	is(until_blocked($name, 1), 1, 'and waits');
	$c->send('flights', 'own', threads => 40, count => 1, ttl => 600000, timeout => 170000);
	is(until_blocked($name, $batches), 1, "with $connections connections: $batches under way");
	ask($psql, 'COMMIT');
	is($c->answer->{bad}, 0, 'each gets the answer to its own call');
	is($c->ask('end', 'first')->{bad}, 0, 'so does the first');
	is(acquirers($name, $offset), $batches, "they went by $batches");
	is($c->ask('release', 'warm')->{status}, 'ok', 'released');
	is($c->finish, '', 'nothing was printed');
}
end_session($psql);

is($_->finish, '', 'nothing was printed') foreach $a, $b;
undef $bouncer;
$node->stop;
done_testing();
