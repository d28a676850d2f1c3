# libdlock: how long a call waits is its own affair, and not that of timeouts
# which are set on the server.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockBouncer;
use DlockClient;
use DlockCli;
use DlockTest;

client_build();

my $node = new_node('timeouts', conf => "deadlock_timeout = 100ms\n");

# Each role has one, and nothing is said of the others.
my %timeouts = (statement => '400ms', lock => '300ms');
$timeouts{transaction} = '500ms' if $node->safe_psql('postgres', "SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'");
foreach my $which (sort keys %timeouts)
{
	$node->safe_psql('postgres', "CREATE ROLE app_$which LOGIN; ALTER ROLE app_$which SET ${which}_timeout = '$timeouts{$which}'");
}
$node->safe_psql('postgres', 'CREATE ROLE app_both LOGIN; CREATE ROLE holder LOGIN');
$node->safe_psql('postgres', "ALTER ROLE app_both SET ${_}_timeout = '$timeouts{$_}'") foreach keys %timeouts;

my $holder = driver(conninfo($node, more => 'user=holder'));
my $cancelled = qr/(?:canceling statement|terminating connection) due to (?:statement|lock|transaction) timeout/;

# Has the one that waits for it waited for longer than any of them?
sub waits_beyond
{
	my ($key) = @_;

	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM dlock_waiters WHERE key = '$key' AND clock_timestamp() - since > '1 s'")
	  or die "nobody waits for $key";
	return;
}

# Has somebody been cancelled, again and again?
sub comes_back
{
	my ($key, $offset) = @_;

	wait_until("it is cancelled when it waits for $key",
		sub { my @times = slurp_file($node->logfile, $offset) =~ /$cancelled/g; return @times >= 3; });
	return;
}

# Does a statement of it wait for a row for longer than any of them?
sub waits_for_row
{
	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND clock_timestamp() - query_start > '1 s'")
	  or die 'it does not wait';
	return;
}

# A release that waits for a row which is in use.
sub release_late
{
	my ($what, $client, $key, $beyond) = @_;
	my $psql = session($node);
	my $offset = -s $node->logfile;

	ask($psql, 'BEGIN');
	like(ask($psql, "SELECT dlock_force_release('$key', 'test')"), qr/^\d+$/, "$what: the row is in use");
	$client->send('release', $key, timeout => 170000);
	$beyond->($key, $offset);
	ask($psql, 'ROLLBACK');
	is($client->answer->{status}, 'ok', "$what: released after a long wait");
	end_session($psql);
	return;
}

sub tries
{
	my ($what, $conninfo, $direct) = @_;
	my $beyond = $direct ? \&waits_beyond : \&comes_back;
	my $client = driver($conninfo);
	my ($key, $offset);

	# a wait is as long as it says, because no statement waits
	$key = "$what: wait";
	is($holder->ask('acquire', $key, ttl => 600000)->{status}, 'ok', "$what: held");
	$client->send('acquire', $key, wait => 170000);
	waits_beyond($key);
	is($holder->ask('release', $key)->{status}, 'ok', "$what: released");
	is($client->answer->{status}, 'ok', "$what: acquired after a long wait");
	is($client->ask('release', $key)->{status}, 'ok', "$what: and released");

	# and ends as it should
	$holder->ask('acquire', "$what: busy", ttl => 600000);
	is($client->ask('acquire', "$what: busy", wait => 1500)->{status}, 'busy', "$what: busy is busy");
	$holder->ask('acquire', "$what: refused", ttl => 600000, cleanup => 60000);
	is($client->ask('acquire', "$what: refused", wait => 1500, priority => 1)->{status}, 'refused', "$what: refused is refused");
	is($client->ask('acquire', "$what: refused", wait => 1500, priority => 1, force => 1)->{status}, 'ok', "$what: forced");

	# watching is waiting, too
	$key = "$what: watch";
	$offset = -s $node->logfile;
	$client->send('watch', $key, version => 0, wait => 170000);
	$beyond->($key, $offset);
	my $lock = $holder->ask('acquire', $key, ttl => 600000);
	is($client->answer->{version}, $lock->{version}, "$what: seen after a long watch");

	# as is a row that is in use
	is($client->ask('acquire', "$what: row", ttl => 600000)->{status}, 'ok', "$what: acquired");
	release_late($what, $client, "$what: row", $direct ? \&waits_for_row : \&comes_back);

	is($client->finish, '', 'nothing was printed');
	return;
}

tries("direct, ${_}_timeout", conninfo($node, more => "user=app_$_"), 1) foreach sort keys %timeouts;

# one who means it is heard, where a statement waits
my $client = driver(conninfo($node, more => 'user=app_both'));
$holder->ask('acquire', 'cancel', ttl => 600000);
$client->send('acquire', 'cancel', wait => 170000, session => 1);
waits_beyond('cancel');
$node->safe_psql('postgres', "SELECT pg_cancel_backend(pid) FROM dlock_waiters WHERE key = 'cancel'");
my $answer = $client->answer;
is("$answer->{status} $answer->{sqlstate}", 'server_error 57014', 'a cancel is a cancel');

is($client->finish, '', 'nothing was printed');

# the command line
server_is($node);
$holder->ask('acquire', 'cli', ttl => 600000, cleanup => 60000);
my $run = start_dlock('acquire', 'cli', '-U', 'app_both', '--wait=170s');
waits_beyond('cli');
is($holder->ask('release', 'cli')->{status}, 'ok', 'released');
is((end_dlock($run))[0], 0, 'dlock acquire --wait: acquired after a long wait');

#
# Through a pooler the session is not ours, and its settings stay.  Only what
# counts for one transaction can be changed, which is lock_timeout.
#

foreach my $which (sort keys %timeouts)
{
	my $bouncer = DlockBouncer->new(user => "app_$which", target => 'host=' . $node->host . ' port=' . $node->port);
	my $through = 'host=' . $bouncer->folder . ' port=' . $bouncer->port . ' dbname=postgres user=x';

	tries("PgBouncer, ${which}_timeout", $through, 0) if $which ne 'lock';
	if ($which eq 'lock')
	{
		# in the queue it keeps its place; so it does for a row that is in use
		my $waiter = driver($through);
		$holder->ask('acquire', 'pooled', ttl => 600000);
		$waiter->send('acquire', 'pooled', wait => 170000);
		waits_beyond('pooled');
		is($holder->ask('release', 'pooled')->{status}, 'ok', 'released');
		is($waiter->answer->{status}, 'ok', 'PgBouncer, lock_timeout: acquired after a long wait');
		$holder->ask('acquire', 'refused', ttl => 600000, cleanup => 60000);
		is($waiter->ask('acquire', 'refused', wait => 1500, priority => 1)->{status}, 'refused', 'PgBouncer, lock_timeout: refused is refused');
		release_late('PgBouncer, lock_timeout', $waiter, 'pooled', \&waits_for_row);
		is($waiter->finish, '', 'nothing was printed');
	}
	# the next client of that session finds it as it should be
	is($node->safe_psql('postgres', "SHOW ${which}_timeout",
			connstr => 'host=' . $bouncer->folder . ' port=' . $bouncer->port . ' dbname=postgres user=x'),
		$timeouts{$which}, "PgBouncer, ${which}_timeout: nothing of ours is left in the session");
}

is($holder->finish, '', 'nothing was printed');
$node->stop;

done_testing();
