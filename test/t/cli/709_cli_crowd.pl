# The command line: many more commands wait for one key than the server has
# connections, and all get their turn.  scripts/soak runs this with 1,000 commands and
# 100 connections (DLOCK_CROWD, DLOCK_CROWD_CONNECTIONS).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes;

use DlockCli;
use DlockTest;

my $commands = $ENV{DLOCK_CROWD} // 200;
my $connections = $ENV{DLOCK_CROWD_CONNECTIONS} // 40;
my $node = new_node('crowd', conf => "max_connections = $connections\n");
my $dlock = dlock_program();
my $ran = temp_file();
my $codes = temp_file();

$node->safe_psql('postgres', 'CREATE ROLE app LOGIN');
my $script = script_file(<<"SH");
exec </dev/null
for i in \$(seq $commands); do
	{
		"$dlock" exec job --wait=forever --timeout=60s --ttl=10s -- sh -c 'echo "\$0" >>"\$1"' "\$i" "$ran"
		echo "\$?" >>"$codes"
	} &
done
wait
SH
my $began = Time::HiRes::time();
my $held = session($node);
like(ask($held, "SELECT dlock_acquire('job', '10min', 'holder')"), qr/^\d+$/, 'the key is held');
{
	local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => 'app');
	my $crowd = IPC::Run::start([$script]);

	wait_until('the server is full', sub { return slurp_file($node->logfile) =~ /remaining connection slots|too many clients/ });
	is(ask($held, "SELECT dlock_release('job', owner => 'holder')"), 'released', 'and released when the server has turned some away');
	IPC::Run::finish($crowd);
}
end_session($held);
note(sprintf '%d commands on %d connections: all served in %.1f s', $commands, $connections, Time::HiRes::time() - $began);
is(join(' ', split ' ', slurp_file($codes)), join(' ', (0) x $commands), 'none has failed');
is(join(' ', sort { $a <=> $b } split ' ', slurp_file($ran)), join(' ', 1 .. $commands), 'each has had its turn, once');
is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits');

# one that is ended by a signal leaves the queue, and says why it waits if a person asks
$node->safe_psql('postgres', "SELECT dlock_acquire('held', '10min', 'somebody')");
{
	my $env = { env => { PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => 'app' } };
	my $run = start_dlock('exec', 'held', '--wait=forever', '--quiet', '--', 'true', $env);

	$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM dlock_waiters WHERE ticket IS NOT NULL') or die 'it does not wait';
	kill 'TERM', $run->{pid};
	my ($code, $out, $err) = end_dlock($run);
	is($code, 143, 'ended by the signal');
	is($err, '', 'without a word, if it is to be quiet');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_waiters'), 0, 'and not in the queue any more');
}

# one that is killed stays in the queue; each costs the next one a TTL at most, and can be
# withdrawn by its role, which finds its host and process in the owner
{
	my $env = { env => { PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => 'app' } };
	my $expired = $node->safe_psql('postgres', 'SELECT expired FROM dlock_stats');
	my @dead = map { start_dlock('exec', 'held', '--wait=forever', '--ttl=1s', '--', 'true', $env) } 1 .. 3;

	$node->poll_query_until('postgres', 'SELECT count(*) = 3 FROM dlock_waiters') or die 'they do not wait';
	my $heir = start_dlock('exec', 'held', '--wait=forever', '--timeout=2s', '--', 'true', $env);
	$node->poll_query_until('postgres', 'SELECT count(*) = 4 FROM dlock_waiters') or die 'it does not wait';
	kill 'KILL', map { $_->{pid} } @dead;
	is(join(' ', map { (end_dlock($_))[0] } @dead), '137 137 137', 'killed');
	is($node->safe_psql('postgres', "SET ROLE app; SELECT string_agg(dlock_dequeue(ticket)::text, ' ') FROM dlock_waiters WHERE owner LIKE '%:$dead[0]{pid}:%'"),
		'true', 'one of them is withdrawn');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_waiters'), 3, 'the others still wait');
	my $withdrawn = $node->safe_psql('postgres', "SET ROLE app; SELECT ticket FROM dlock_waiters WHERE owner LIKE '%:$heir->{pid}:%' AND dlock_dequeue(ticket)");
	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters WHERE owner LIKE '%:$heir->{pid}:%' AND ticket <> $withdrawn")
	  or die 'it does not come back';
	pass('one that is alive queues again');
	is($node->safe_psql('postgres', "SELECT dlock_release('held', owner => 'somebody')"), 'released', 'the key is released');
	is((end_dlock($heir))[0], 0, 'the one that is alive gets it');
	is($node->safe_psql('postgres', "SELECT expired - $expired FROM dlock_stats"), 2, 'after those that are not');
}

$node->stop;
done_testing();
