# libdlock and the command line: no more connections than needed, none broken
# off, and a server that has none left.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'time';

use DlockClient;
use DlockCli;
use DlockTest;

client_build();

my $node = new_node('connections', conf => "log_connections = on\nlog_disconnections = on\n");

# A client of its own name, so that the log tells its connections from ours.
sub named
{
	my ($name) = @_;

	return conninfo($node, more => "application_name=$name");
}

# Run this; what the server has logged of it, when all its connections are gone.
sub log_of
{
	my ($name, $sub) = @_;
	my $offset = -s $node->logfile;

	$sub->();
	$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = '$name'")
	  or die 'its connections do not end';
	return slurp_file($node->logfile, $offset);
}

# This many connections, each with a good end; a few more are allowed.
sub well_behaved
{
	my ($name, $count, $what, $log, $more) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @connections = $log =~ /connection authorized: .*application_name=\Q$name\E$/mg;

	cmp_ok(scalar @connections, '>=', $count, "$what: $count connections");
	cmp_ok(scalar @connections, '<=', $count + ($more // 0), "$what: not more");
	unlike($log, qr/Broken pipe|unexpected EOF|could not (?:send|receive)|connection to client lost/, "$what: none is broken off");
	return;
}

#
# Short calls
#

my $a = driver(undef);
well_behaved('short', 100, 'acquire and release',
	log_of('short', sub { is($a->ask('cycle', named('short'), key => 'short', count => 100)->{status}, 'ok', 'a hundred times'); }));

# as long as it takes the renewal thread to do what it does, in whatever it is doing
well_behaved('long', 100, 'held for up to 60 ms, and renewed',
	log_of('long', sub { is($a->ask('cycle', named('long'), key => 'long', count => 100, hold => 60, ttl => 60000, renew => 1)->{status}, 'ok', 'a hundred times'); }));

# in one handle, with one lock at a time
well_behaved('handle', 1, 'one handle',
	log_of('handle', sub {
		$a->ask('open', named('handle'));
		foreach my $i (1 .. 100)
		{
			$a->ask('acquire', "handle $i", ttl => 60000);
			$a->ask('release', "handle $i");
			$a->ask('free', "handle $i");
		}
		# it listens, and gives its connection away when it has to
		is($a->ask('acquire', 'handle', ttl => 1500, renew => 1)->{status}, 'ok', 'acquired');
		$node->poll_query_until('postgres', "SELECT refreshed_at - acquired_at > '1 s' FROM dlock_locks WHERE key = 'handle'")
		  or die 'it is not renewed';
		is($a->ask('release', 'handle')->{status}, 'ok', 'released');
		is($a->ask('acquire', 'handle 2', ttl => 1500, renew => 1)->{status}, 'ok', 'again');
		is($a->ask('release', 'handle 2')->{status}, 'ok', 'released');
		is($a->events, '', 'nothing was lost');
		$a->ask('close'); }));

# whatever the renewal thread is doing with it at the time
well_behaved('race', 1, 'one handle, renewals under way',
	log_of('race', sub {
		$a->ask('open', named('race'));
		is($a->ask('race', 'race', count => 20, ttl => 1500, renew => 1)->{bad}, 0, 'released while it is renewed');
		$a->ask('close'); }));

server_is($node);
well_behaved('dlock acquire', 20, 'dlock acquire',
	log_of('dlock acquire', sub { is((dlock('acquire', "cli $_", '--ttl=1h', { env => { PGAPPNAME => 'dlock acquire' } }))[0], 0, "dlock acquire: $_") foreach 1 .. 20; }));

# a lock that is held for 20 ms gets a connection for its renewals
my $slow = 0;
my $log = log_of('dlock exec', sub {
	foreach (1 .. 20)
	{
		my $start = time;
		is((dlock('exec', "exec $_", '--', 'true', { env => { PGAPPNAME => 'dlock exec' } }))[0], 0, "dlock exec: $_");
		$slow++ if time - $start >= 0.02;
	}});
well_behaved('dlock exec', 20, 'dlock exec', $log, $slow);

#
# A server that is full: five may come, and there are twelve
#

$node->safe_psql('postgres', 'CREATE ROLE app LOGIN');
$node->append_conf('postgresql.conf', "max_connections = 8\nsuperuser_reserved_connections = 3\n");
$node->restart;
my $app = conninfo($node, more => 'user=app');
my $turned_away = qr/FATAL:  (?:sorry, too many clients|remaining connection slots)/;

my $b = driver($app);
my $lock = $b->ask('acquire', 'full', ttl => 3000, renew => 1);
is($lock->{status}, 'ok', 'one has the lock');
my $result = temp_file();
my $offset = -s $node->logfile;
my @runs = map { start_dlock('exec', 'full', '-U', 'app', '--wait=170s', '--timeout=1s', '--ttl=5s', '--', 'sh', '-c', "echo $_ >>$result") } 1 .. 12;
$node->poll_query_until('postgres', "SELECT count(*) = 4 FROM dlock_waiters") or die 'there are not four that wait';

# time is told by how often they are turned away: more than in their --timeout
wait_until(
	'they have tried for a while',
	sub {
		my @tries = slurp_file($node->logfile, $offset) =~ /$turned_away/g;
		return @tries >= 100;
	});
is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_waiters'), 4, 'those who are in stay in the queue');
is($b->ask('state', 'full')->{owner}, 1, 'the holder has renewed its lock');
cmp_ok($node->safe_psql('postgres', "SELECT extract(epoch FROM refreshed_at - acquired_at) FROM dlock_locks WHERE key = 'full'"),
	'>', 0, 'on the server too');
is($b->ask('check', 'full', timeout => 100000)->{status}, 'ok', 'it can ask');
is($b->ask('release', 'full', timeout => 100000)->{status}, 'ok', 'and release');
is($b->events, '', 'nothing was lost');
is($b->finish, '', 'nothing was printed');
is(join(' ', map { (end_dlock($_))[0] } @runs), join(' ', (0) x 12), 'all have had their turn');
is(join(' ', sort split ' ', slurp($result)), join(' ', sort 1 .. 12), 'once each');

# one that does not wait is told so when its time is up
my @guests = map { driver($app) } 1 .. 5;
is($_->ask('ping')->{status}, 'ok', 'in') foreach @guests;
my ($code, $out, $err) = dlock('acquire', 'full', '-U', 'app', '--timeout=500ms');
is($code, 69, 'no place in time: unreachable');
like($err, qr/too many clients|remaining connection slots/, 'and why');
is($_->finish, '', 'nothing was printed') foreach @guests, $a;
$node->stop;

# nobody there is another matter: a wait does not continue
($code, $out, $err) = dlock('acquire', 'full', '--wait=170s', '--timeout=500ms');
is($code, 69, 'no server: unreachable');

done_testing();
