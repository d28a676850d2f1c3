# Waiting through one pool of PgBouncer, and running the command through
# another, by the same owner: clients that wait take no connection from the renewal
# of the command that runs.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockBouncer;
use DlockCli;
use DlockTest;

my $node = new_node('pools');
my $user = $node->safe_psql('postgres', 'SELECT current_user');
my $server = 'host=' . $node->host . ' port=' . $node->port;
my $waiters = 5;

# two entries for one database; the module completes the last one
my $bouncer = DlockBouncer->new(
	user => $user,
	target => "$server pool_size=2 dbname=postgres user=$user\nwait = $server pool_size=" . ($waiters + 3));

my $dlock = dlock_program();
my $go_on = temp_file();
my $script = script_file(<<"SH");
owner=worker:\$1
"$dlock" acquire job -d wait --owner="\$owner" --ttl=1min --wait=forever >/dev/null &&
	exec "$dlock" exec job -d postgres --owner="\$owner" --adopt --ttl=3s -- sh -c 'echo runs; while [ ! -e "\$0" ]; do sleep 0.1; done' "$go_on"
SH

sub worker
{
	my ($name) = @_;
	my $worker = { name => $name, out => '', err => '' };
	local %ENV = (%ENV, PGHOST => $bouncer->folder, PGPORT => $bouncer->port);

	$worker->{h} = IPC::Run::start([ $script, $name ], '<', \undef, '>', \$worker->{out}, '2>', \$worker->{err},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return $worker;
}

sub becomes
{
	my ($what, $sql) = @_;

	wait_until($what, sub { return $node->safe_psql('postgres', $sql) eq 't' });
	return;
}

my $holder = worker('holder');
becomes('it has the lock, with the TTL of its command', q{SELECT count(*) = 1 FROM dlock_locks WHERE ttl = '3s'});
my $version = $node->safe_psql('postgres', 'SELECT version FROM dlock_locks');
my @waiting = map { worker($_) } 1 .. $waiters;
becomes('the others wait, more than the first pool has connections', "SELECT count(*) = $waiters FROM dlock_waiters");

# Its lease has to be renewed for as long as that.
becomes('time passes', q{SELECT coalesce(max(clock_timestamp() - acquired_at) > '8s', true) FROM dlock_locks});
is($node->safe_psql('postgres', q{SELECT version FROM dlock_locks WHERE owner = 'worker:holder'}),
	$version, 'a command is not lost while others wait');

append_to_file($go_on, '');
foreach my $worker ($holder, @waiting)
{
	$worker->{h}->finish;
	is($worker->{h}->result(0), 0, "$worker->{name} has run") or diag($worker->{err});
	is($worker->{out}, "runs\n", "$worker->{name}: its command");
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_locks'), 0, 'all is released');

undef $bouncer;
$node->stop;
done_testing();
