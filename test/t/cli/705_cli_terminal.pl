# The command line on a terminal: colours, dlock top, commands that read from the
# terminal, completion, and the man page.

use strict;
use warnings FATAL => 'all';

use File::Basename qw(dirname);
use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockCli;
use DlockTerminal;

my $node = new_node('terminal');

server_is($node);

sub state_of
{
	my ($pid) = @_;

	return (slurp("/proc/$pid/stat") =~ /\) (\S)/)[0] // '';
}

#
# Colours and widths
#

dlock('acquire', 'job:1', '--ttl=1h', '--value=' . 'v' x 200);
dlock('acquire', 'job:2', '--ttl=1h', '--value=short');
my $t = on_terminal([ 'ls', 'job:1' ]);
is(ended($t), 0, 'ls');
like($t->{out}, qr/\033\[36mjob:1\033\[0m/, 'ls: coloured');
like($t->{out}, qr/v\xe2\x80\xa6v+\r\n/, 'ls: cut to the terminal');
$t = on_terminal([ 'ls', 'job:2' ], env => { NO_COLOR => 1 });
ended($t);
unlike($t->{out}, qr/\033/, 'ls: NO_COLOR');
like($t->{out}, qr/short\r\n/, 'ls: what fits is not cut');
$t = on_terminal([ 'check', 'job:1' ]);
is(ended($t), 64, 'an error');
like($t->{out}, qr/dlock: \033\[31merror: \033\[0mno version and no --owner given/, 'an error: coloured');

#
# top
#

$t = on_terminal([ 'top', '--interval=200ms' ]);
sees($t, qr/\033\[\?1049h.*dlock top  postgres on local:\d+  \d\d:\d\d:\d\d  order: waiters/s, 'top: the heading');
sees($t, qr/2 held\033\[0m, 0 waiting, next expiry in 59m/, 'top: the summary');
sees($t, qr/job:1.*job:2/s, 'top: the locks');
sees($t, qr/\xe2\x96\x88{1}/, 'top: a bar');
my $waiter = start_dlock('acquire', 'job:2', '--wait=1min');
sees($t, qr/1 waiting\S* \(the longest for .*HOT KEY.*job:2/s, 'top: a hot key');
kill 'TERM', $waiter->{pid};
end_dlock($waiter);
sees($t, qr/0 waiting/, 'top: it is gone');

# a key that comes
dlock('acquire', 'changing', '--ttl=1h');
sees($t, qr/changing/, 'top: a key comes');

type($t, 's');
sees($t, qr/order: busy/, 'top: s changes the order');
type($t, 's');
sees($t, qr/order: remaining/, 'top: and again');
type($t, 's');
sees($t, qr/order: held/, 'top: and again');
type($t, '+');
sees($t, qr/every 400ms/, 'top: + makes it slower');
type($t, '-');
sees($t, qr/every 200ms/, 'top: - makes it faster');
$t->{pty}->set_winsize(10, 60);
kill 'WINCH', $t->{pid};
sees($t, qr/order: held/, 'top: another size');
$node->stop;
sees($t, qr/\033\[31m[^\r]*(?:could not connect|connection)/i, 'top: the server is gone');
$node->start;
sees($t, qr/3 held/, 'top: it is back');
type($t, "\cZ");
sees($t, qr/\033\[\?7h\033\[\?25h\033\[\?1049l.*\033\[\?1049h.*3 held/s, 'top: Ctrl-Z gives the terminal back');
type($t, 'q');
is(ended($t), 0, 'top: q ends it');
like($t->{out}, qr/\033\[\?7h\033\[\?25h\033\[\?1049l$/, 'top: the terminal is as before');

$t = on_terminal([ 'top', '--interval=200ms' ], rows => 6);
sees($t, qr/ 1-2 of 3 /, 'top: more than fits');
kill 'TERM', $t->{pid};
is(ended($t), 143, 'top: a signal ends it');
like($t->{out}, qr/\033\[\?25h\033\[\?1049l$/, 'top: the terminal is as before');

$t = on_terminal([ 'top', '--once' ]);
is(ended($t), 0, 'top --once');
unlike($t->{out}, qr/\033\[\?1049h/, 'top --once: nothing is taken over');

#
# A person who waits is told so, and for whom
#

$node->safe_psql('postgres', "SELECT dlock_acquire('awaited', '10min', 'somebody')");
$t = on_terminal([ 'exec', 'awaited', '--wait=forever', '--', 'echo', 'at last' ]);
sees($t, qr/waiting for lock "awaited"/, 'exec: it says that it waits');
sees($t, qr/somebody/, 'exec: and for whom');
sees($t, qr/\rdlock: waiting for lock "awaited" \d[^\r\n]*, next; somebody has it\033\[K\rdlock: waiting for lock "awaited" /, 'exec: its place, in one line that is rewritten');
is(join(' ', grep { length > 79 } map { s/\033\[[0-9;?]*[a-zA-Z]//gr } split /[\r\n]+/, $t->{out}), '', 'exec: which fits');
$node->safe_psql('postgres', "SELECT dlock_release('awaited', owner => 'somebody')");
is(ended($t), 0, 'exec: it has had its turn');
like($t->{out}, qr/\r\033\[Kdlock: got lock "awaited" after \d.*at last/s, 'exec: says how long it took, and runs');
$node->safe_psql('postgres', "SELECT dlock_acquire('awaited', '10min', 'somebody')");
$t = on_terminal([ 'exec', 'awaited', '--wait=forever', '--quiet', '--', 'true' ]);
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters WHERE key = 'awaited' AND clock_timestamp() - since > '1 s'") or die 'it does not wait';
type($t, "\cC");
is(ended($t), 128 + 2, 'exec: Ctrl-C ends the wait');
unlike($t->{out}, qr/waiting/, 'exec --quiet: without a word');
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_waiters"), 0, 'exec: and it is not in the queue any more');
$node->safe_psql('postgres', "SELECT dlock_release('awaited', owner => 'somebody')");

#
# exec gives the terminal to its command
#

my $file = temp_file();
$t = on_terminal([ 'exec', 'tty', '--', 'sh', '-c', 'read a; echo "got $a"; read b; echo "got $b"; exit 3' ]);
type($t, "one\n");
sees($t, qr/got one/, 'exec: the command reads from the terminal');
type($t, "two\n");
is(ended($t), 3, 'exec: its exit code');
like($t->{out}, qr/got two/, 'exec: all of it');

$t = on_terminal([ 'exec', 'tty', '--', 'sh', '-c', 'trap "echo interrupted; exit 9" INT; echo ready; while :; do sleep 0.1; done' ]);
sees($t, qr/ready/, 'exec: it runs');
type($t, "\cC");
is(ended($t), 9, 'exec: Ctrl-C is for the command');
like($t->{out}, qr/interrupted/, 'exec: which decides');
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key = 'tty'"), 0, 'exec: released');

$t = on_terminal([ 'exec', 'tty', '--ttl=1h', '--', 'sh', '-c', 'echo "shell $$"; read a; echo "got $a"' ]);
wait_until('it runs', sub { pump($t); return $t->{out} =~ /shell (\d+)/; });
my ($shell) = $t->{out} =~ /shell (\d+)/;
type($t, "\cZ");
wait_until('both are stopped', sub { return state_of($shell) eq 'T' && state_of($t->{pid}) eq 'T'; });
pass('exec: Ctrl-Z stops both');
kill 'CONT', $t->{pid};
wait_until('both continue', sub { return state_of($shell) ne 'T' && state_of($t->{pid}) ne 'T'; });
type($t, "more\n");
is(ended($t), 0, 'exec: they continue');
like($t->{out}, qr/got more/, 'exec: with the terminal');

# Ctrl-C while it waits
dlock('acquire', 'held', '--ttl=1h');
$t = on_terminal([ 'exec', 'held', '--wait=forever', '--', 'true' ]);
$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM dlock_waiters');
type($t, "\cC");
is(ended($t), 130, 'exec: Ctrl-C ends a wait');

#
# Completion
#

my $root = "$FindBin::RealBin/../../..";

sub completes
{
	my ($expected, @words) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	local %ENV = (%ENV, dlock_env());
	my $script = 'set -eu; . "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dlock; printf "%s\n" "${COMPREPLY[@]}"';
	my ($out, $err) = ('', '');

	IPC::Run::run([ 'bash', '-c', $script, 'bash', "$root/client/cli/dlock.bash-completion", dlock_program(), @words ],
		'>', \$out, '2>', \$err);
	like($out, $expected, "completion of: dlock @words");
	is($err, '', "completion of: dlock @words: nothing else");
	return;
}

completes(qr/^acquire\n$/, 'acq');
completes(qr/^force-release\n$/, 'f');
completes(qr/^(?=.*^exec$)(?=.*^elect$)(?=.*^top$)(?=.*^--help$)/ms, '');
completes(qr/^top\n$/, 'help', 't');
completes(qr/^--ttl\n--timeout\n$/, 'exec', 'key', '--t');
completes(qr/^--kill-after\n$/, 'exec', 'key', '--k');
completes(qr/^--dbname\n$/, 'ls', '--d');
completes(qr/^remaining\n$/, 'ls', '--sort', 'r');
completes(qr/^remaining\n$/, 'ls', '--sort', '=', 'r');
completes(qr/^forever\n$/, 'exec', 'key', '--wait', 'f');
completes(qr/^sh\n/m, 'exec', 'key', '--', 'sh');
completes(qr/^changing\n$/, 'info', 'ch');
dlock('acquire', '$(touch${IFS}' . "$file)", '--ttl=1h');
dlock('acquire', '`touch${IFS}' . "$file`", '--ttl=1h');
completes(qr/^changing\nheld\n$/, 'info', '');
ok(!-e $file, 'a key is not executed');

SKIP:
{
	skip 'fish is not installed', 3 unless grep { -x "$_/fish" } split /:/, $ENV{PATH};
	local %ENV = (%ENV, dlock_env(), PATH => dirname(dlock_program()) . ":$ENV{PATH}");

	foreach ([ 'dlock ex', qr/^exec\t/m ], [ 'dlock exec key --tt', qr/^--ttl\t/m ], [ 'dlock info ch', qr/^changing$/m ])
	{
		my ($line, $expected) = @$_;
		my $found = '';

		IPC::Run::run([ 'fish', '-c', "source $root/client/cli/dlock.fish-completion; complete -C '$line'" ], '>', \$found, '2>&1');
		like($found, $expected, "completion in fish of: $line");
	}
}
SKIP:
{
	skip 'zsh is not installed', 1 unless grep { -x "$_/zsh" } split /:/, $ENV{PATH};
	is(system('zsh', '-n', "$root/client/cli/dlock.zsh-completion"), 0, 'completion in zsh can be read');
}

#
# The man page
#

my ($out, $err) = ('', '');
SKIP:
{
	skip 'groff is not installed', 2 unless grep { -x "$_/groff" } split /:/, $ENV{PATH};
	IPC::Run::run([ 'groff', '-man', '-ww', '-Tutf8', "$root/client/cli/dlock.1" ], '>', \$out, '2>', \$err);
	is($err, '', 'the man page has no mistakes');
	like($out, qr/fencing token/, 'the man page can be read');
}

# every option of --help and every exit code is in the man page and in the docs
my $man = slurp("$root/client/cli/dlock.1");
my $docs = slurp("$root/docs/cli.md");
$man =~ s/\\-/-/g;
my (%options, %codes);
foreach my $command ('--help', map { "$_ --help" } qw(exec elect acquire refresh release check handover info ls top watch force-release stats health shard))
{
	my $help = (dlock(split / /, $command))[1];

	$options{$_} = 1 foreach $help =~ /(?<![\w"])(--[a-z][a-z-]*)/g;
	$codes{$1} = 1 while $help =~ /^ *(\d+(?:\+n)?)  \S/mg;
}
cmp_ok(scalar keys %options, '>', 20, 'there are options');
cmp_ok(scalar keys %codes, '>', 8, 'there are exit codes');
foreach my $option (sort keys %options)
{
	like($man, qr/\Q$option\E\b/, "the man page has $option");
	like($docs, qr/\Q$option\E\b/, "docs/cli.md has $option");
}
foreach my $exit (sort keys %codes)
{
	like($man, qr/^\Q$exit\E$/m, "the man page has exit code $exit");
	like($docs, qr/^\| \Q$exit\E \|/m, "docs/cli.md has exit code $exit");
}

$node->stop;
done_testing();
