# In a server that pg_upgrade has started, dlock changes nothing: pg_upgrade has already
# noted the next transaction id, and copies the files afterwards.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use DlockTest;

my $node = new_node('upgrade');
my $count = 'SELECT count(*), count(*) FILTER (WHERE xmax::text <> $$0$$), sum(version) FROM dlock.locks';

$node->safe_psql('postgres', q{SELECT count(dlock_acquire('k' || n, '1ms')) FROM generate_series(1, 1000) n});
my $rows = $node->safe_psql('postgres', $count);
like($rows, qr/^1000\|/, 'there are expired rows');
$node->stop;

# The reaper would start at once.
$node->append_conf('postgresql.conf', "dlock.reap_interval = 10ms\n");

sub next_xid
{
	my ($out, $err) = run_command([ 'pg_controldata', $node->data_dir ]);

	return $out =~ /NextXID:\s+(\d+:\d+)/ ? $1 : die "no NextXID in: $out $err";
}

sub start
{
	my (@options) = @_;

	command_ok([ 'pg_ctl', '-w', '-s', '-D', $node->data_dir, '-l', $node->logfile, '-o', "@options", 'start' ],
		"it starts with: @options");
	return;
}

sub workers
{
	return $node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'dlock'});
}

my $before = next_xid();
start('-b', '--autovacuum=off');

# Nothing must happen, so wait for a while; without the check, the rows would be gone by
# then.
my $until = time + 2;
my $seen = 0;
while (time < $until && $seen == 0)
{
	$seen = workers();
	usleep(50_000);
}
is($seen, 0, 'no worker of dlock runs');
is($node->safe_psql('postgres', $count), $rows, 'the rows are unchanged');

foreach my $call (
	"dlock_acquire('new')", "dlock_acquire('k1')", "dlock_refresh('k1', 1)",
	"dlock_release('k1', 1)", "dlock_fence('k1', 1)", "dlock_force_release('k1', 'test')", 'dlock_release_session()')
{
	my ($status, $out, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\nSELECT $call", on_error_die => 0);
	like($err, qr/55000/, "$call is refused");
}
like($node->safe_psql('postgres', "SELECT dlock_check('k1', 1)"), qr/held/, 'to ask is allowed');
command_ok([ 'pg_ctl', '-w', '-s', '-D', $node->data_dir, '-m', 'fast', 'stop' ], 'it stops');
is(next_xid(), $before, 'no transaction id was used');

# and after an ordinary start everything works
start();
wait_until('the reaper comes', sub { return $node->safe_psql('postgres', 'SELECT count(*) FROM dlock.locks') eq '0' });
ok($node->safe_psql('postgres', "SELECT dlock_acquire('new')") > 1000, 'locks are granted again');
command_ok([ 'pg_ctl', '-w', '-s', '-D', $node->data_dir, '-m', 'fast', 'stop' ], 'it stops');

done_testing();
