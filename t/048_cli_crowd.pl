# The command line: many more commands wait for one key than the server has
# connections, and all get their turn.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockCli;
use DlockTest;

my $commands = 200;
my $node = new_node('crowd', conf => "max_connections = 40\n");
my $dlock = dlock_program();
my $ran = temp_file();
my $codes = temp_file();

$node->safe_psql('postgres', 'CREATE ROLE app LOGIN');
my $script = script_file(<<"SH");
for i in \$(seq $commands); do
	{
		"$dlock" exec job --wait=170s --timeout=60s --ttl=10s -- sh -c 'echo "\$0" >>"\$1"' "\$i" "$ran" </dev/null
		echo "\$?" >>"$codes"
	} &
done
wait
SH
{
	local %ENV = (%ENV, PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => 'app');

	is(system($script), 0, 'all come to an end');
}
is(join(' ', split ' ', slurp_file($codes)), join(' ', (0) x $commands), 'none has failed');
is(join(' ', sort { $a <=> $b } split ' ', slurp_file($ran)), join(' ', 1 .. $commands), 'each has had its turn, once');
is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits');

# one that is ended by a signal leaves the queue, and says why it waits if a person asks
$node->safe_psql('postgres', "SELECT dlock_acquire('held', '10min', 'somebody')");
{
	my $env = { env => { PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => 'app' } };
	my $run = start_dlock('exec', 'held', '--wait=forever', '--', 'true', $env);

	$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM dlock_waiters WHERE ticket IS NOT NULL') or die 'it does not wait';
	kill 'TERM', $run->{pid};
	my ($code, $out, $err) = end_dlock($run);
	is($code, 143, 'ended by the signal');
	is($err, '', 'without a word, where nobody reads it');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_waiters'), 0, 'and not in the queue any more');
}

$node->stop;
done_testing();
