# Those who wait with the command line are told where they stand: in a log, a line at the
# beginning and one at the end.  On a terminal: 705_cli_terminal.pl.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockCli;
use DlockWait;

# room for one ticket
my $node = new_node('waiting', conf => "dlock.max_tickets = 1\n");

server_is($node);
$node->safe_psql('postgres', "SELECT dlock_acquire('k', '1 h', 'holder')");

sub says
{
	my ($run, $what, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_until($name, sub { $run->{h}->pump_nb; return $run->{err} =~ $what; });
	like($run->{err}, $what, $name);
	return;
}

# A named request that is given up leaves the queue.
my $named = start_dlock('exec', 'k', '--owner=named', '--wait=1h', '--', 'true');
until_sql($node, "SELECT count(*) FROM dlock_waiters WHERE owner = 'named'", 1, 'it waits');
kill 'TERM', $named->{pid};
is((end_dlock($named))[0], 143, 'a signal ends it');
until_sql($node, 'SELECT count(*) FROM dlock_waiters', 0, 'it has left the queue');

# A place, and none, because the other one has the only ticket.
my $first = start_dlock('exec', 'k', '--wait=1h', '--', 'true');
says($first, qr/^dlock: waiting for lock "k": held by role \w+, owner holder, for .*, next in the queue; \S+ \S+ left$/m,
	'where it stands');
my $second = start_dlock('exec', 'k', '--wait=1h', '--', 'true');
says($second, qr/^dlock: waiting for lock "k": held by role \w+, owner holder, for .*, not in the queue: the server has no room for tickets/m,
	'that it has to ask again and again');
my $elect = start_dlock('elect', 'k', '--quiet', '--', 'true');
my $several = start_dlock('exec', 'k', '--and=another', '--wait=1h', '--', 'true');
says($several, qr/^dlock: waiting for 2 locks; /m, 'several locks');

$node->safe_psql('postgres', "SELECT dlock_release('k', owner => 'holder')");
foreach ([ $first, 'exec', qr/^dlock: got lock "k" after \S+$/m ], [ $several, 'several', qr/^dlock: got 2 locks after \S+$/m ], [ $second, 'without a ticket', qr/^dlock: got lock "k" after/m ])
{
	my ($run, $what, $expected) = @$_;
	my ($code, undef, $err) = end_dlock($run);

	is($code, 0, "$what: it has had its turn");
	like($err, $expected, "$what: how long it took");
}
my ($code, undef, $err) = end_dlock($elect);
is("$code $err", '0 ', '--quiet: nothing is said');

# A short wait is not worth a word.
$node->safe_psql('postgres', "SELECT dlock_acquire('k', '1 h', 'holder')");
unlike((dlock('exec', 'k', '--wait=10ms', '--', 'true'))[2], qr/waiting/, 'a wait that is over soon');

# A server that does not accept connections is named long before the time is up.
$node->stop;
my $run = start_dlock('exec', 'k', '--timeout=1h', '--', 'true');
says($run, qr/^dlock: waiting for lock "k": connection to server .*failed/m, 'a server that is not there is named');
kill 'TERM', $run->{pid};
is((end_dlock($run))[0], 143, 'and a signal ends it');

done_testing();
