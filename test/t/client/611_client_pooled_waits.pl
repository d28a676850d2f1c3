# libdlock through PgBouncer in transaction mode: many wait, one holds, and there
# are far fewer server connections than clients.

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

client_build('all', 'tests');

my $node = new_node('pooled', conf => "max_connections = 60\n");
my $user = $node->safe_psql('postgres', 'SELECT current_user');
my $bouncer = DlockBouncer->new(
	user => $user,
	pool_size => 20,
	target => 'host=' . $node->host . ' port=' . $node->port);
my $through = 'host=' . $bouncer->folder . ' port=' . $bouncer->port . ' dbname=postgres user=x';

sub waiting
{
	my ($count) = @_;

	$node->poll_query_until('postgres', "SELECT count(*) = $count FROM dlock_waiters") or die "there are not $count that wait";
	return;
}

# calls of all kinds, together
my $holder = driver($through);
my @waiters = map { driver($through) } 1, 2;
is($holder->ask('acquire', 'held', ttl => 600000)->{status}, 'ok', 'one key is held by another client');
$node->safe_psql('postgres', "SELECT dlock_policy('denied', NULL, false)");
is($waiters[0]->ask('flights', 'some', threads => 16, count => 5, ttl => 60000)->{bad}, 0, 'threads: each gets the answer to its own call');
is($waiters[0]->ask('queue', 'one', threads => 8, count => 2, ttl => 60000, wait => 170000)->{counter}, 16, 'threads that wait for one key');

# 500 that wait, and one that holds
my $lock = $holder->ask('acquire', 'key', ttl => 3000, renew => 1);
is($lock->{status}, 'ok', 'one holds it');
$_->send('started', 'key', count => 250, ttl => 60000, wait => 170000) foreach @waiters;
waiting(500);
$node->poll_query_until('postgres', "SELECT refreshed_at - acquired_at > '6 s' FROM dlock_locks WHERE key = 'key' AND version = $lock->{version}")
  or die 'it is not renewed';
cmp_ok($node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"),
	'<', 20, 'and there are fewer connections than that');
is($holder->events, '', 'the holder has lost nothing');
is($holder->ask('release', 'key')->{status}, 'ok', 'it releases');
foreach my $waiter (@waiters)
{
	my $answer = $waiter->answer;

	is("$answer->{bad} $answer->{counter}", '0 250', 'all of them get it in turn');
}
waiting(0);
is($_->finish, '', 'nothing was printed') foreach @waiters;

# the command line: more that wait than the pool has connections
my $result = temp_file();
my %env = (env => { PGHOST => $bouncer->folder, PGPORT => $bouncer->port, PGUSER => 'x', PGDATABASE => 'postgres' });
$lock = $holder->ask('acquire', 'job', ttl => 3000, renew => 1);
my @runs = map { start_dlock('exec', 'job', '--wait=170s', '--timeout=2s', '--ttl=5s', '--', 'sh', '-c', "echo $_ >>$result", {%env}) } 1 .. 30;
waiting(30);
is($holder->ask('release', 'job')->{status}, 'ok', 'the holder releases');
is(join(' ', map { (end_dlock($_))[0] } @runs), join(' ', (0) x 30), 'dlock exec: all have had their turn');
is(join(' ', sort { $a <=> $b } split ' ', slurp_file($result)), join(' ', 1 .. 30), 'once each');
is($holder->finish, '', 'nothing was printed');
undef $bouncer;

# a pooler that has no connection left for a client: those that wait come again
my $small = DlockBouncer->new(
	user => $user,
	more => 'max_client_conn = 4',
	target => 'host=' . $node->host . ' port=' . $node->port);
%env = (env => { PGHOST => $small->folder, PGPORT => $small->port, PGUSER => 'x', PGDATABASE => 'postgres' });
unlink $result;
my $held = session($node);
like(ask($held, "SELECT dlock_acquire('job', '10min', 'holder')"), qr/^\d+$/, 'held');
@runs = map { start_dlock('exec', 'job', '--wait=170s', '--timeout=5s', '--ttl=5s', '--', 'sh', '-c', "echo $_ >>$result", {%env}) } 1 .. 10;
wait_until('some are turned away', sub { return slurp_file($small->{log}) =~ /no more connections allowed/ });
is(ask($held, "SELECT dlock_release('job', owner => 'holder')"), 'released', 'released');
is(join(' ', map { (end_dlock($_))[0] } @runs), join(' ', (0) x 10), 'a full pooler: all have had their turn');
is(join(' ', sort { $a <=> $b } split ' ', slurp_file($result)), join(' ', 1 .. 10), 'once each');
end_session($held);
undef $small;
$node->stop;
done_testing();
