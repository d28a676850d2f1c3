# dlock exec during a failover: the primary is killed, its synchronous standby is
# promoted, and the command does not notice.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockCli;

my $primary = new_node('primary', streaming => 1);
my $standby = new_standby($primary, 'standby');
make_synchronous($primary, $standby);

my $conninfo = sprintf "host='%s,%s' port=%d,%d dbname=postgres", $primary->host, $standby->host, $primary->port, $standby->port;
my $script = script_file(<<'SH');
trap 'echo TERM >>"$1"; exit 1' TERM
echo "group $$ version $DLOCK_VERSION" >>"$1"
while ! [ -e "$1.end" ]; do sleep 0.1; done
SH
my $file = temp_file();

# Commands that read work on a standby, too.
$primary->safe_psql('postgres', "SELECT dlock_acquire('read', '1 h', 'somebody', 'some value')");
$primary->wait_for_catchup($standby);
my @there = ('-h', $standby->host, '-p', $standby->port, '-d', 'postgres');
foreach ([ qr/^read +\d+ +held/m, 'ls' ], [ qr/^owner +somebody$/m, 'info', 'read' ], [ qr/  read  version \d+  role \w+  owner somebody/, 'watch', 'read', '--count=1' ],
	[ qr/^read +\d/m, 'top', '--once' ], [ qr/^grants +0$/m, 'stats' ], [ qr/^dlock \w+: /, 'health' ])
{
	my ($expected, @command) = @$_;
	my (undef, $out, $err) = dlock(@command, @there);

	like($out, $expected, "$command[0] on a standby");
	like($err, qr/^dlock: connected to a standby: .*\n\z/, "$command[0] on a standby: which is said");
}
my $watch = start_dlock('watch', 'read', '--until-free', @there);
wait_until('it watches', sub { $watch->{h}->pump_nb; return $watch->{out} =~ /version/; });
$primary->safe_psql('postgres', "SELECT dlock_release('read', owner => 'somebody')");
like((end_dlock($watch))[1], qr/read  free\n\z/, 'watch on a standby sees the end');
is((dlock('acquire', 'read', '--timeout=1s', @there))[0], 69, 'acquire does not work there');
is((dlock('ls', '-d', $conninfo))[2], '', 'of several servers, the primary is asked');

# A standby that has to confirm commits is gone.
$standby->stop;
my $stuck = start_dlock('exec', 'stuck', '--wait=1h', '--timeout=3s', '-d', $conninfo, '--', 'true');
wait_until('the standby is named', sub { $stuck->{h}->pump_nb; return $stuck->{err} =~ /the commit of process \d+ waits for a synchronous standby \(synchronous_standby_names is ".+"\)/ || !$stuck->{h}->pumpable; });
like($stuck->{err}, qr/the commit of process \d+ waits for a synchronous standby/, 'exec names what it waits for');
unlike($stuck->{err}, qr/an open transaction of process/, 'and blames nobody');
kill 'TERM', $stuck->{pid};
end_dlock($stuck);
$standby->start;
$primary->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'") or die 'the standby is not back';

# a long TTL, so that the promotion fits between the deadlines of two renewals
my $run = start_dlock('exec', 'job', '--ttl=30s', '-d', $conninfo, '--', $script, $file);
my $group = file_has($file, qr/^group (\d+)/m);
my ($version) = slurp($file) =~ /version (\d+)/;
my $waiter = start_dlock('exec', 'job', '--wait=forever', '-d', $conninfo, '--', 'sh', '-c', 'echo $DLOCK_VERSION');

$primary->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters WHERE key = 'job'")
  or die 'nobody waits';
$primary->kill9;
$standby->promote;
is($standby->safe_psql('postgres', "SELECT version FROM dlock_locks WHERE key = 'job'"), $version,
	'the promoted standby has the lock');
my $refreshed = $standby->safe_psql('postgres', "SELECT refreshed_at FROM dlock_locks WHERE key = 'job'");
ok($standby->poll_query_until('postgres', "SELECT refreshed_at <> '$refreshed' FROM dlock_locks WHERE key = 'job'"),
	'it is renewed there');
is($standby->safe_psql('postgres', "SELECT version FROM dlock_locks WHERE key = 'job'"), $version, 'with the same version');
cmp_ok(scalar group_members($group), '>', 0, 'the command runs');
ok($standby->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters WHERE key = 'job'"), 'the other one waits there');

append_to_file("$file.end", 'x');
my ($code, $out, $err) = end_dlock($run);
is("$code $err", '0 ', 'the command ends well');
unlike(slurp($file), qr/TERM/, 'and was not disturbed');
($code, $out, $err) = end_dlock($waiter);
is($code, 0, 'the other one follows');
like($err, qr/^(?:dlock: waiting for lock "job": .*\n)+dlock: got lock "job" after \S+( \S+)?\n\z/, 'and has told how it stood');
cmp_ok($out, '>', $version, 'with a higher version');
is($standby->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key = 'job'"), 0, 'both are released');

# a single call goes to the new primary
is((dlock('ls', '-d', $conninfo))[0], 0, 'ls');
is((dlock('acquire', 'k', '-d', $conninfo))[0], 0, 'acquire');

$standby->stop;
done_testing();
