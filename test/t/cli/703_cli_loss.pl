# dlock exec when the lock is lost: no process of the command is left when the server
# gives the lock to another client, whatever happened to the server, the network or dlock
# itself.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockCli;

my $node = new_node('loss');
my $session = session($node);

server_is($node);

# A command with a child and with a grandchild that has lost its parent, all of which
# ignore SIGTERM.
my $stubborn = script_file(<<'SH');
trap 'echo TERM >>"$1"' TERM
(trap "" TERM; while :; do sleep 1; done) &
(trap "" TERM; (while :; do sleep 1; done) & ) &
sleep 0.1
echo "group $$ version $DLOCK_VERSION" >>"$1"
while :; do wait; sleep 1; done
SH

# A command that does not ignore it.
my $obedient = script_file(<<'SH');
trap 'echo TERM >>"$1"; exit 0' TERM
echo "group $$ version $DLOCK_VERSION" >>"$1"
while :; do sleep 0.1; done
SH

# Start one, and wait until its lock has been renewed, so that the deadline moves.
sub start_command
{
	my ($key, $script, @options) = @_;
	my $file = temp_file();
	my $run = start_dlock('exec', $key, @options, '--', $script, $file);
	my $group = file_has($file, qr/^group (\d+)/m);

	$node->poll_query_until('postgres', "SELECT refreshed_at > acquired_at FROM dlock_locks WHERE key = '$key'")
	  or die 'the lock is not renewed';
	cmp_ok(scalar group_members($group), '>', 0, 'the command runs');
	return ($run, $group, $file);
}

# A client that waits for the key gets it when it has expired.  At that moment the process
# group is empty.
sub is_gone_at_expiry
{
	my ($key, $group, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $answer = ask($session, "SELECT dlock_acquire('$key', '1h', wait => '1min') IS NOT NULL");
	my @left = group_members($group);

	is($answer, 't', "$what: the next one has the lock");
	is("@left", '', "$what: and nothing of the command is left");
	return;
}

# A black hole: the connection exists, but nothing is answered.
my ($proxy, $dir) = start_proxy($node);
my ($run, $group, $file) = start_command('hole', $stubborn, '--ttl=4s', '-h', $dir);
kill 'STOP', $proxy;
is_gone_at_expiry('hole', $group, 'black hole');
my ($code, $out, $err) = end_dlock($run);
is($code, 76, 'black hole: exit code');
like($err, qr/^dlock: error: lock "hole" cannot be renewed: ending the command$/m, 'black hole: message');
like(slurp($file), qr/^TERM$/m, 'black hole: SIGTERM came first');
kill 'CONT', $proxy;

# from the start
kill 'STOP', $proxy;
($code, $out, $err) = dlock('exec', 'never', '--timeout=500ms', '-h', $dir, '--', 'echo', 'ran');
is("$code $out", '69 ', 'black hole from the start: unreachable');
like($err, qr/^(?:dlock: waiting for lock "never": .*\n)?dlock: error: ./, 'black hole from the start: message');
kill 'CONT', $proxy;

# A short interruption does no harm.
($run, $group, $file) = start_command('short', $obedient, '--ttl=12s', '-h', $dir);
$node->restart;
$session = session($node);
ok($node->poll_query_until('postgres', "SELECT refreshed_at > pg_postmaster_start_time() FROM dlock_locks WHERE key = 'short'"),
	'renewed after a restart of the server');
cmp_ok(scalar group_members($group), '>', 0, 'the command still runs');
kill 'TERM', $run->{pid};
is((end_dlock($run))[0], 0, 'it ends when it wants to');
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key = 'short'"), 0, 'released');

# dlock is stopped: its guard acts.
($run, $group, $file) = start_command('stopped', $stubborn, '--ttl=4s');
kill 'STOP', $run->{pid};
is_gone_at_expiry('stopped', $group, 'dlock stopped');
like(slurp($file), qr/^TERM$/m, 'dlock stopped: SIGTERM came first');
kill 'CONT', $run->{pid};
($code, $out, $err) = end_dlock($run);
is($code, 76, 'dlock stopped: exit code');
like($err, qr/lock "stopped" is lost/, 'dlock stopped: message');

# the command ended meanwhile: nobody can say whether in time
$file = temp_file();
$run = start_dlock('exec', 'stopped2', '--ttl=2s', '--', 'sh', '-c',
	'echo $$ >"$1"; while ! [ -e "$1.go" ]; do sleep 0.1; done', 'sh', $file);
file_has($file, qr/(\d+)\n/);
kill 'STOP', $run->{pid};
append_to_file("$file.go", 'x');
is(ask($session, "SELECT dlock_acquire('stopped2', '1h', wait => '1min') IS NOT NULL"), 't', 'another has the lock');
kill 'CONT', $run->{pid};
is((end_dlock($run))[0], 76, 'dlock stopped, command ended: lost');

# dlock is killed: its guard ends the command at once, and then exits.
$file = temp_file();
$run = start_dlock('exec', 'killed', '--ttl=1h', '--', $obedient, $file);
$group = file_has($file, qr/^group (\d+)/m);
my ($guard) = `ps -o pid=,comm= --ppid $run->{pid}` =~ /^ *(\d+) dlock-guard$/m;
ok($guard, 'there is a guard');
kill 'KILL', $run->{pid};
is((end_dlock($run))[0], 137, 'dlock killed');
wait_until('the command is gone', sub { return !group_members($group); });
like(slurp($file), qr/^TERM$/m, 'dlock killed: the command got SIGTERM');
wait_until('the guard is gone', sub { return !group_members($guard); });
pass('dlock killed: the guard is gone, too');

($run, $group, $file) = start_command('killed2', $stubborn, '--ttl=4s');
kill 'KILL', $run->{pid};
end_dlock($run);
is_gone_at_expiry('killed2', $group, 'dlock killed');

# if nothing goes wrong, the guard exits, too
$run = start_dlock('exec', 'guard', '--', 'cat');
wait_until('there is a guard', sub { ($guard) = `ps -o pid=,comm= --ppid $run->{pid}` =~ /^ *(\d+) dlock-guard$/m; return $guard; });
is((end_dlock($run))[0], 0, 'a command ends');
is_deeply([ group_members($guard) ], [], 'and the guard with it');

# The lock is taken away.
foreach my $script ($obedient, $stubborn)
{
	my $what = $script eq $obedient ? 'obedient' : 'stubborn';

	($run, $group, $file) = start_command("forced-$what", $script, '--ttl=2s', '--kill-after=300ms');
	dlock('force-release', "forced-$what", '--reason=test');
	($code, $out, $err) = end_dlock($run);
	is($code, 76, "taken away, $what: exit code");
	like($err, qr/^dlock: error: lock "forced-$what" is lost: it was taken away by role "\w+": \w+$/m, "taken away, $what: message");
	like(slurp($file), qr/^TERM$/m, "taken away, $what: SIGTERM");
	is_deeply([ group_members($group) ], [], "taken away, $what: nothing is left");
}

# By a higher priority, without notice.
($run, $group, $file) = start_command('priority', $obedient, '--ttl=2s', '--cleanup=0');
is((dlock('acquire', 'priority', '--priority=1', '--ttl=1h'))[0], 0, 'a higher priority takes it');
($code, $out, $err) = end_dlock($run);
is($code, 76, 'preempted: exit code');
like($err, qr/lock "priority" is lost/, 'preempted: message');
is_deeply([ group_members($group) ], [], 'preempted: nothing is left');

# The command itself has released the lock.
($code, $out, $err) = dlock('exec', 'self', '--ttl=2s', '--', 'sh', '-c', dlock_program() . ' release; exit 0');
is($code, 76, 'released by the command itself: that is lost, too');

# The server is gone for good.
end_session($session);
($run, $group, $file) = start_command('server', $stubborn, '--ttl=3s');
$node->stop('immediate');
($code, $out, $err) = end_dlock($run);
is($code, 76, 'server gone: exit code');
like($err, qr/lock "server" cannot be renewed/, 'server gone: message');
is_deeply([ group_members($group) ], [], 'server gone: nothing is left');
is((dlock('exec', 'server', '--timeout=300ms', '--', 'true'))[0], 69, 'server gone: unreachable');

# a candidate waits for it
$file = temp_file();
$run = start_dlock('elect', 'server', '--timeout=300ms', '--ttl=3s', '--', 'sh', '-c', 'echo leads >"$1"', 'sh', $file);
wait_until('it has tried',
	sub { IPC::Run::pump_nb($run->{h}); return $run->{err} =~ /^dlock: warning: .*; trying again$/m; });
$node->start;
is((end_dlock($run))[0], 0, 'elect waits for the server');
is(slurp($file), "leads\n", 'and leads');

$node->stop;
done_testing();
