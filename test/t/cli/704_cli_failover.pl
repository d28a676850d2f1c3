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
is("$code $err", '0 ', 'the other one follows');
cmp_ok($out, '>', $version, 'with a higher version');
is($standby->safe_psql('postgres', 'SELECT count(*) FROM dlock_locks'), 0, 'both are released');

# a single call goes to the new primary
is((dlock('ls', '-d', $conninfo))[0], 0, 'ls');
is((dlock('acquire', 'k', '-d', $conninfo))[0], 0, 'acquire');

$standby->stop;
done_testing();
