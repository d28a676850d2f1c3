# The command line when standard input, output or error is closed, full, or not read.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockCli;

my $node = new_node('output');

server_is($node);

# Run it with redirections of the shell: exit code, stdout, stderr.
sub redirected
{
	my ($files, @args) = @_;
	my ($out, $err) = ('', '');
	local %ENV = (%ENV, dlock_env());
	local $SIG{PIPE} = 'DEFAULT';
	my $h = IPC::Run::start([ 'sh', '-c', "exec \"\$@\" $files", 'sh', dlock_program(), @args ],
		'<', \'', '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

	IPC::Run::finish($h);
	my $status = $h->full_result(0);
	return ($status & 127 ? 128 + ($status & 127) : $status >> 8, $out, $err);
}

sub held
{
	my ($key) = @_;

	return $node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key = '$key'");
}

#
# The command runs, and finds its descriptors as they were.
#

my $command = script_file(<<'SH');
there=
for fd in 0 1 2; do
	[ ! -e "/proc/$$/fd/$fd" ] || there="$there$fd"
done
echo "$DLOCK_KEY:$there" >"$1"
exit 3
SH
my %there = (
	'0<&-' => '12',
	'>&-' => '02',
	'2>&-' => '01',
	'0<&- >&-' => '2',
	'0<&- 2>&-' => '1',
	'>&- 2>&-' => '0',
	'0<&- >&- 2>&-' => '',
	'' => '012');
foreach my $files (sort keys %there)
{
	foreach my $run ([ 'exec', 'run' ], [ 'elect', 'run' ], [ 'exec', 'run', '--wait=1min' ])
	{
		my $file = temp_file();
		my ($code, $out, $err) = redirected($files, @$run, '--', $command, $file);

		is($code, 3, "@$run $files: the exit code of the command");
		is(slurp($file), "run:$there{$files}\n", "@$run $files: the command ran, with these files");
		unlike($err, qr/error|warning/, "@$run $files: no complaint");
		is(held('run'), 0, "@$run $files: released");
	}
}

# a command that cannot be executed is reported if stderr is open
my ($code, $out, $err) = redirected('0<&- >&-', 'exec', 'run', '/nonexistent');
is($code, 127, 'not found');
like($err, qr/^dlock: error: could not execute "\/nonexistent": No such file/, 'not found: message');

#
# Output that cannot be written
#

my %error = ('>&-' => 'Bad file descriptor');
$error{'>/dev/full'} = 'No space left on device' if -e '/dev/full';
dlock('acquire', 'there', '--owner=me', '--ttl=1h');

# more than what is written at once
$node->safe_psql('postgres', "SELECT count(dlock_acquire('many:' || i, '1h')) FROM generate_series(1, 500) i");
foreach my $files (sort keys %error)
{
	foreach my $args (
		['ls'], [ 'ls', '--json' ], [ 'ls', '--waiters' ],
		[ 'info', 'there' ], [ 'info', 'there', '--json' ],
		['top'], [ 'top', '--json' ],
		[ 'watch', 'there' ], [ 'watch', 'there', '--json' ], [ 'elect', 'there', '--observe' ],
		[ 'check', 'there', '--owner=me' ], [ 'check', 'there', '--owner=me', '--json' ],
		[ 'refresh', 'there', '--owner=me' ], [ 'refresh', 'there', '--owner=me', '--json' ],
		[ 'acquire', 'new' ], [ 'acquire', 'new', '--json' ],
		['--help'], ['--version'], [ 'help', 'ls' ], [ 'ls', '--help' ])
	{
		($code, $out, $err) = redirected($files, @$args);
		is($code, 71, "@$args $files: exit code");
		like($err, qr/^dlock: error: could not write to standard output: $error{$files}$/m, "@$args $files: why");
		is(() = $err =~ /error:/g, 1, "@$args $files: once");
	}

	# the version is lost, so nobody would own the lock
	is(held('new'), 0, "acquire $files: not held");
	like((redirected($files, 'acquire', 'new'))[2], qr/^dlock: detail: Lock "new" was released again\.$/m, "acquire $files: said so");
	is((redirected($files, 'acquire', 'named', '--owner=me', '--ttl=1h'))[0], 71, "acquire --owner $files: exit code");
	is(held('named'), 1, "acquire --owner $files: its owner has it");

	# what was done stays done, and a failure keeps its exit code
	($code, $out, $err) = redirected($files, 'release', 'named', '--owner=me');
	is($code, 71, "release $files: exit code");
	is(held('named'), 0, "release $files: released");
	($code, $out, $err) = redirected($files, 'release', 'named', '--owner=me');
	is($code, 76, "release again $files: exit code");
	like($err, qr/could not write to standard output: $error{$files}$/m, "release again $files: why");
	dlock('acquire', 'named', '--ttl=1h');
	is((redirected($files, 'force-release', 'named', '--reason=x'))[0], 71, "force-release $files: exit code");
	is(held('named'), 0, "force-release $files: released");
}

# nothing is printed, so nothing is lost
is((redirected('>&-', 'acquire', 'there'))[0], 75, 'busy without standard output');
is((redirected('2>&-', 'acquire', 'there'))[0], 75, 'busy without standard error');
is((redirected('>&-', 'nonsense'))[0], 64, 'usage without standard output');
is((redirected('2>&-', 'ls'))[0], 0, 'ls without standard error');
is((redirected('0<&-', 'ls'))[0], 0, 'ls without standard input');

#
# A reader that has gone
#

sub unread
{
	my ($signal, @args) = @_;
	my $err = '';
	local %ENV = (%ENV, dlock_env());
	local $SIG{PIPE} = $signal;

	pipe my $reader, my $writer or die "could not create a pipe: $!";
	close $reader;
	my $h = IPC::Run::start([ dlock_program(), @args ], '<', \'', '>', $writer, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	close $writer;
	IPC::Run::finish($h);
	my $status = $h->full_result(0);
	return ($status & 127 ? 128 + ($status & 127) : $status >> 8, $err);
}

foreach my $args (['ls'], [ 'ls', '--json' ], [ 'info', 'there' ], ['top'], [ 'watch', 'there' ], ['--help'])
{
	is(join(' ', unread('DEFAULT', @$args)), '141 ', "@$args: ended by SIGPIPE, quietly");
	is(join(' ', unread('IGNORE', @$args)), '0 ', "@$args: ends quietly where that is ignored");
}
($code, $err) = unread('DEFAULT', 'acquire', 'new');
is($code, 71, 'acquire: nobody has read the version');
like($err, qr/could not write to standard output: Broken pipe\ndlock: detail: Lock "new" was released again/, 'acquire: message');
is(held('new'), 0, 'acquire: not held');

$node->stop;
done_testing();
