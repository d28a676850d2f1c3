# dlock exec and dlock elect, as long as the lock is not lost.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockCli;

my $node = new_node('exec', conf => "max_connections = 40\n");
my $none = qr/^$/;

server_is($node);

sub held
{
	my ($key) = @_;

	return $node->safe_psql('postgres', "SELECT version FROM dlock_locks WHERE key = '$key'");
}

# The command and what it inherits.
my ($code, $out, $err) = dlock('exec', 'a', '--value=job', '--', 'sh', '-c', 'echo "$DLOCK_KEY $DLOCK_VERSION"; cat; echo oops >&2',
	{ stdin => "input\n" });
is($code, 0, 'exit code 0');
like($out, qr/^a [1-9][0-9]*\ninput\n$/, 'key, version and standard input');
is($err, "oops\n", 'standard error, and nothing of ours');
is(held('a'), '', 'released');
is((dlock('exec', 'a', 'echo', '-n', '--ttl'))[1], '--ttl', 'options of the command are its own');
is((dlock('exec', '--ttl=5s', 'a', '--', 'echo', '--', 'x'))[1], "-- x\n", 'a second -- is, too');
is((dlock('exec', '--', 'a', 'echo', 'x'))[1], "x\n", 'the key behind --');
is((dlock('exec', 'a', 'sh', '-c', 'exit 7'))[0], 7, 'its exit code');
is((dlock('exec', 'a', 'sh', '-c', 'kill -9 $$'))[0], 137, 'killed by a signal');
is((dlock('exec', 'a', 'sh', '-c', 'echo "[$PGCLIENTENCODING]"'))[1], "[]\n", 'the environment is as it was');
like((dlock('exec', 'a', 'sh', '-c', 'ps -o pgid= $$; echo $$'))[1], qr/^ *(\d+)\n\1\n$/, 'a process group of its own');
dlock_is([ 'exec', 'a', '/nonexistent' ], 127, $none, qr/could not execute "\/nonexistent": No such file/, 'not found');
dlock_is([ 'exec', 'a', '/etc/passwd' ], 126, $none, qr/could not execute "\/etc\/passwd": Permission denied/, 'not executable');
is(held('a'), '', 'released after all that');

# the command knows the lock
is((dlock('exec', 'a', dlock_program(), 'check'))[1], "held\n", 'check within exec');
is( (dlock('exec', 'a', '--ttl=40s', '--', 'sh', '-c', dlock_program() . ' info a --json'))[1] =~ /"ttl":40.000/,
	1, 'the TTL');

# --fence: the connections of the command are fenced, whatever the key is
$node->safe_psql('postgres', 'CREATE TABLE written (what text)');
foreach my $key ('a', q{ an odd\\ key: "\t\xc3\xbc'})
{
	my @psql = ('psql', '-XAtq', '-v', 'VERBOSITY=sqlstate', '-c');
	# exec may notice at once that the lock is lost, and ends the command
	my $late = q{trap '' TERM; } . dlock_program() . q{ release && psql -XAtq -v VERBOSITY=sqlstate -c "INSERT INTO written VALUES ('late')"; echo $?};

	local $ENV{PGOPTIONS} = '-c work_mem=12345kB';
	dlock_is([ 'exec', $key, '--fence', '--', @psql, "INSERT INTO written VALUES ('ours'); SHOW work_mem" ],
		0, qr/^12345kB$/, $none, "\"$key\": with the lock the command writes, and the other options stay");
	dlock_is([ 'exec', $key, '--fence', '--', 'sh', '-c', $late ], 76, qr/^1$/m, qr/ERROR:  LK001/, "\"$key\": without it nothing");
}
is($node->safe_psql('postgres', q{SELECT string_agg(what, ' ') FROM written}), 'ours ours', 'what was written');

# --rate: a permit instead of a lock
dlock_is([ 'exec', 'api', '--rate=2/h', '--', 'sh', '-c', 'echo "[$DLOCK_VERSION]"; exit 7' ], 7, qr/^\[\]$/, $none, 'a permit: the command runs, without a lock');
dlock_is([ 'exec', 'api', '--rate=2/60min', '--quiet', '--', 'cat', { stdin => "input\n" } ], 0, qr/^input$/, $none, 'another permit');
dlock_is([ 'exec', 'api', '--rate=2/h', '--', 'echo', 'x' ], 75, $none,
	qr/^dlock: error: the rate of "api" is used up\ndlock: detail: A permit is to be had in .*\.\ndlock: hint: Use --wait to queue\.$/, 'no permit');
dlock_is([ 'exec', 'api', '--rate=2/h', '--wait=10ms', '--quiet', '--', 'echo', 'x' ], 75, $none, qr/^dlock: error: [^\n]*$/, 'no permit after a wait');
dlock_is([ 'exec', 'soon', '--rate=1/200ms', '--wait=1min', '--', 'echo', $_ ], 0, qr/^$_$/, $none, "permit $_ in time") foreach 1, 2;
dlock_is([ 'exec', 'soon', '--rate=1/200ms', '--wait=1min', '--', '/nonexistent' ], 127, $none, qr/could not execute/, 'a permit for nothing');
foreach my $bad ([ '--rate=10', 'write 10/min' ], [ '--rate=0/s', 'number of --rate' ], [ '--rate=1/0s', 'greater than 0' ], [ '--rate=1/', 'write 10/min' ], [ '--rate=1/x', 'invalid duration' ])
{
	dlock_is([ 'exec', 'api', $bad->[0], '--', 'echo', 'x' ], 64, $none, qr/$bad->[1]/, $bad->[0]);
}
dlock_is([ 'exec', 'api', '--rate=1/s', '--ttl=1min', '--', 'echo', 'x' ], 64, $none, qr/--rate takes no lock/, '--rate and --ttl');
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_get('api')"), 2, 'two permits count');

# --max-hold ends the command, however often the lock is renewed
dlock_is([ 'exec', 'm', '--ttl=20s', '--max-hold=20s', '--on-preempt=none', '--', 'sleep', '1h' ], 76, $none,
	qr/^dlock: error: lock "m" has been held for --max-hold: ending the command$/, '--max-hold');
is(held('m'), '', 'released');
dlock_is([ 'exec', 'm', '--ttl=20s', '--max-hold=10s', '--', 'true' ], 64, $none, qr/--max-hold must not be shorter than --ttl/, '--max-hold below the TTL');
my $terms = temp_file();
my $elect = start_dlock('elect', 'm', '--ttl=20s', '--max-hold=20s', '--', 'sh', '-c', 'echo $DLOCK_VERSION >>"$1"; sleep 1h', 'sh', $terms);
file_has($terms, qr/^\d+\n\d+$/m);
kill 'TERM', $elect->{pid};
end_dlock($elect);
my @terms = split /\n/, slurp($terms);
cmp_ok($terms[1], '>', $terms[0], 'elect: the next term is another one');

# busy
my $version = (dlock('acquire', 'b', '--ttl=1h'))[1] + 0;
my $never = temp_file();
dlock_is([ 'exec', 'b', '--', 'touch', $never ], 75, $none, qr/lock "b" is busy/, 'busy');
dlock_is([ 'exec', 'b', '--wait=50ms', '--', 'touch', $never ], 75, $none, qr/lock "b" is busy/, 'busy after a wait');
ok(!-e $never, 'the command was not run');

# waiting
my $run = start_dlock('exec', 'b', '--wait=forever', '--', 'sh', '-c', 'echo $DLOCK_VERSION');
$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM dlock_waiters');
dlock('release', 'b', $version);
($code, $out) = end_dlock($run);
is($code, 0, 'waited');
cmp_ok($out, '>', $version, 'and got it');

# a signal while it waits
$version = (dlock('acquire', 'b', '--ttl=1h'))[1] + 0;
$run = start_dlock('exec', 'b', '--wait=forever', '--', 'touch', $never);
$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM dlock_waiters');
kill 'TERM', $run->{pid};
is((end_dlock($run))[0], 143, 'ended while it waited');
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM dlock_waiters'), 'and left the queue');
dlock('release', 'b', $version);
is(held('b'), '', 'nobody has it');
ok(!-e $never, 'the command was not run');

# Signals are passed on, to the group.
my $script = script_file(<<'SH');
out=$1
for s in HUP INT QUIT TERM USR1 USR2 WINCH; do
	trap "echo $s >>$out" $s
done
trap "echo end >>$out; kill \$!; exit 3" TERM
sleep 1000 &
echo ready >>$out
while :; do wait; done
SH
my $file = temp_file();
$run = start_dlock('exec', 'c', '--', $script, $file);
file_has($file, qr/(ready)/);
foreach my $signal (qw(USR1 USR2 WINCH HUP INT QUIT))
{
	# some of them kill the shell's background process; the shell waits again
	kill $signal, $run->{pid};
	is(file_has($file, qr/^($signal)$/m), $signal, "$signal is passed on");
}
kill 'TERM', $run->{pid};
is((end_dlock($run))[0], 3, 'SIGTERM: the command decides what comes of it');
like(slurp($file), qr/^end$/m, 'it had it');
is(held('c'), '', 'released');

$run = start_dlock('exec', 'c', '--', 'sleep', '1000');
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_locks WHERE key = 'c'");
wait_until('the command runs', sub { return `ps -o comm= --ppid $run->{pid}` =~ /^sleep$/m; });
kill 'TERM', $run->{pid};
is((end_dlock($run))[0], 143, 'a command that SIGTERM ends');
is(held('c'), '', 'released');

# Processes that the command leaves in its group end with it.
$file = temp_file();
($code, $out, $err) = dlock('exec', 'd', '--', 'sh', '-c', 'sleep 1000 >/dev/null 2>&1 & echo $$ >"$1"; exit 4', 'sh', $file);
is($code, 4, 'the exit code is the command\'s');
like($err, qr/^dlock: warning: the command has left processes behind: ending them$/, 'with a warning');
is_deeply([ group_members(slurp($file) + 0) ], [], 'they are gone');
is(held('d'), '', 'released');

# even if they ignore signals
$file = temp_file();
($code, $out, $err) = dlock('exec', 'd', '--kill-after=100ms', '--',
	script_file(<<'SH'), $file);
(trap "" TERM; echo started >>"$1"; exec >/dev/null 2>&1; while :; do sleep 1; done) &
while ! grep -q started "$1"; do sleep 0.01; done
echo $$ >"$1"
SH
is($code, 0, 'the exit code is the command\'s');
is_deeply([ group_members(slurp($file) + 0) ], [], 'they are gone');

# Renewed for longer than its TTL.
$file = temp_file();
my $go_on = temp_file();
$run = start_dlock('exec', 'e', '--ttl=1s', '--', 'sh', '-c', 'while ! [ -e "$1" ]; do sleep 0.1; done; echo done', 'sh', $go_on);
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_locks WHERE key = 'e'");
$version = held('e');
ok($node->poll_query_until('postgres', "SELECT refreshed_at - acquired_at > '3s' FROM dlock_locks WHERE key = 'e'"),
	'renewed over three TTLs');
is(held('e'), $version, 'with the same version');
append_to_file($go_on, 'x');
($code, $out) = end_dlock($run);
is("$code $out", "0 done\n", 'and undisturbed');
is(held('e'), '', 'released');

#
# Preemption
#

sub preempt
{
	my ($key, @options) = @_;
	my $f = temp_file();
	my $holder = start_dlock('exec', $key, @options, '--', 'sh', '-c',
		'for s in TERM USR1; do trap "echo $s >>\"$1\"; exit 0" $s; done; echo $$ >>"$1"; while :; do sleep 0.1; done', 'sh', $f);
	my $group = file_has($f, qr/^(\d+)$/m);
	my $other = start_dlock('exec', $key, '--priority=1', '--wait=1min', '--', 'sh', '-c', 'echo mine');

	return ($holder, $other, $f, $group);
}

my ($holder, $other, $f) = preempt('p', '--ttl=1min', '--cleanup=30s');
($code, $out, $err) = end_dlock($holder);
is($code, 76, 'yielded: exit code');
like($err, qr/^dlock: asked to yield lock "p": ending the command$/m, 'yielded: message');
like(slurp($f), qr/^TERM$/m, 'by SIGTERM');
is((end_dlock($other))[1], "mine\n", 'the other one has it');

($holder, $other, $f) = preempt('p', '--ttl=1min', '--cleanup=30s', '--on-preempt=USR1', '--quiet');
($code, $out, $err) = end_dlock($holder);
is($code, 76, '--on-preempt');
unlike($err, qr/dlock/, '--quiet');
like(slurp($f), qr/^USR1$/m, 'by the signal that was chosen');
is((end_dlock($other))[1], "mine\n", 'the other one has it');

# a command that does not end is killed in time, so that no force is needed
$file = temp_file();
$holder = start_dlock('exec', 'p', '--ttl=1min', '--cleanup=2s', '--', 'sh', '-c',
	'trap "" TERM; echo $$ >"$1"; while :; do sleep 1; done', 'sh', $file);
my $group = file_has($file, qr/^(\d+)$/m);
$other = start_dlock('exec', 'p', '--priority=1', '--wait=1min', '--', 'sh', '-c', 'echo mine');
is((end_dlock($holder))[0], 76, 'yielded by force of SIGKILL');
is_deeply([ group_members($group) ], [], 'nothing is left of it');
($code, $out) = end_dlock($other);
is("$code $out", "0 mine\n", 'the other one was not refused');

# a command that does not want to be told
($holder, $other, $f, $group) = preempt('p', '--ttl=1min', '--cleanup=300ms', '--on-preempt=none');
($code, $out, $err) = end_dlock($other);
is($code, 75, 'not yielded');
like($err, qr/did not yield/, 'not yielded: message');
cmp_ok(scalar group_members($group), '>', 0, 'it runs on');
kill 'TERM', $holder->{pid};
is((end_dlock($holder))[0], 0, 'until its end');

#
# elect
#

($code, $out, $err) = dlock('elect', 'leader', '--', 'sh', '-c', 'echo term $DLOCK_VERSION; exit 5');
is($code, 5, 'elect: the exit code of the command');
like($out, qr/^term \d+$/, 'elect: the term');
like($err, qr/^dlock: elected for "leader", term \d+$/, 'elect: message');
is(held('leader'), '', 'elect: resigned');

$file = temp_file();
my @candidates;
foreach my $name (1, 2)
{
	push @candidates,
	  start_dlock('elect', 'leader', "--value=node-$name", '--ttl=1min', '--', 'sh', '-c',
		'echo "$2 leads $DLOCK_VERSION" >>"$1"; exec sleep 1000', 'sh', $file, $name);
	$node->poll_query_until('postgres',
		"SELECT count(*) = $name FROM (SELECT key FROM dlock_locks UNION ALL SELECT key FROM dlock_waiters) x WHERE key = 'leader'");
}
my $observer = start_dlock('elect', 'leader', '--observe', '--count=2');
my $term = file_has($file, qr/^1 leads (\d+)$/m);
wait_until('the observer has seen it',
	sub { IPC::Run::pump_nb($observer->{h}); return $observer->{out} =~ /version $term .*node-1/; });

# the leadership is taken away: the other one leads, the first one campaigns
dlock('force-release', 'leader', '--reason=test');
my $next = file_has($file, qr/^2 leads (\d+)$/m);
cmp_ok($next, '>', $term, 'elect: the next one leads');
($code, $out) = end_dlock($observer);
is($code, 0, 'observe ends after its lines');
like($out, qr/version $term .*value node-1\n.*version $next .*value node-2\n$/, 'observe: the leader');
ok($node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters WHERE key = 'leader'"),
	'elect: the first one stands again');

# it leads again when the other one ends
kill 'TERM', $candidates[1]{pid};
is((end_dlock($candidates[1]))[0], 143, 'elect: ended by a signal');
my $last = file_has($file, qr/^1 leads \d+\n(?:.*\n)*1 leads (\d+)$/m);
cmp_ok($last, '>', $next, 'elect: it leads again');
kill 'TERM', $candidates[0]{pid};
($code, $out, $err) = end_dlock($candidates[0]);
is($code, 143, 'elect: ended by a signal');
like($err, qr/lock "leader" is lost: it was taken away/, 'elect: said why');
is(held('leader'), '', 'elect: resigned');

# a signal while it campaigns, and --once
$run = start_dlock('elect', 'leader', '--once', '--', 'sleep', '1000');
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_locks WHERE key = 'leader'");
$other = start_dlock('elect', 'leader', '--', 'touch', $never);
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters WHERE key = 'leader'");
kill 'INT', $other->{pid};
is((end_dlock($other))[0], 130, 'elect: a campaign ends by a signal');
dlock('force-release', 'leader', '--reason=test');
is((end_dlock($run))[0], 76, 'elect --once ends when it is lost');
ok(!-e $never, 'the command was not run');
is((dlock('elect', 'leader', '--wait=50ms', '--', 'true'))[0], 0, 'elect with a limit: it was free');
dlock('acquire', 'leader', '--ttl=1h');
is((dlock('elect', 'leader', '--wait=50ms', '--', 'touch', $never))[0], 75, 'elect with a limit: busy');

is( $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dlock%' AND backend_type = 'client backend'"),
	0, 'no connection is left');
$node->stop;
done_testing();
