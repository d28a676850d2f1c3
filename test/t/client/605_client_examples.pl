# The example programs of client/c/examples, and the installed library.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockClient;
use DlockTest;

client_build();

my $node = new_node('examples');
my $conninfo = conninfo($node);
my $examples = client_dir() . '/examples';

sub example
{
	my ($program, @args) = @_;
	my $out = '';
	my $err = '';

	IPC::Run::run([ "$examples/$program", @args ], '>', \$out, '2>', \$err);
	return ($? >> 8, $out . $err);
}

#
# cron_job
#

my $file = PostgreSQL::Test::Utils::tempdir() . '/ran';
my ($code, $out) = example('cron_job', $conninfo, 'job', "echo ran >>$file");
is($code, 0, 'cron_job: runs');
like($out, qr/^running with version \d+\nok\n$/, 'cron_job: with the lock');
is(slurp_file($file), "ran\n", 'cron_job: the command ran');
($code, $out) = example('cron_job', $conninfo, 'job', 'exit 7');
is($code, 1, 'cron_job: a command that fails');
$node->safe_psql('postgres', "SELECT dlock_acquire('job', '1h')");
($code, $out) = example('cron_job', $conninfo, 'job', "echo ran >>$file");
is($code, 0, 'cron_job: somebody else does it');
like($out, qr/^busy: /, 'cron_job: says so');
is(slurp_file($file), "ran\n", 'cron_job: the command did not run');
($code, $out) = example('cron_job', 'nonsense', 'job', 'true');
is($code, 2, 'cron_job: bad conninfo');

# the lock is taken away: the command and its children are killed
my $job = IPC::Run::start([ "$examples/cron_job", $conninfo, 'killed', 'sleep 1000 & wait' ], '>', \$out);
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_locks WHERE key = 'killed'") or die 'no lock';
$node->safe_psql('postgres', "SELECT dlock_force_release('killed', 'test')");
$job->finish;
is($job->result(0), 3, 'cron_job: lost');

#
# leader
#

my @candidates = map {
	my $said = '';
	{ said => \$said, run => IPC::Run::start([ "$examples/leader", $conninfo, 'leader', "node$_", 3 ], '>', \$said) }
} 1 .. 3;
$_->{run}->finish foreach @candidates;
is(join(' ', map { $_->{run}->result(0) } @candidates), '0 0 0', 'leader: all have led');
my %terms;
foreach my $candidate (@candidates)
{
	$terms{$2}{$1} = 1 while ${ $candidate->{said} } =~ /^(node\d) leads in term (\d+)$/mg;
}
is(scalar(keys %terms), 9, 'leader: three terms each');
is(scalar(grep { keys %$_ == 1 } values %terms), 9, 'leader: one leader a term');

#
# event_loop
#

($code, $out) = example('event_loop', $conninfo, 5, 200);
is($code, 0, 'event_loop: all requests come to their end');
is($out, "200 served, 0 failed\n", 'event_loop: all of them are served');

#
# fenced_writer
#

$node->safe_psql('postgres', 'CREATE TABLE journal (token bigint, what text)');
($code, $out) = example('fenced_writer', $conninfo, 'journal', 'first');
is($code, 0, 'fenced_writer: writes');
like($out, qr/^written with token \d+$/, 'fenced_writer: with its token');
($code, $out) = example('fenced_writer', $conninfo, 'journal', 'late', 1500);
is($code, 1, 'fenced_writer: too late');
is($out, "not written: LK001\n", 'fenced_writer: fenced off');
is($node->safe_psql('postgres', 'SELECT what FROM journal'), 'first', 'fenced_writer: what is written');
$node->safe_psql('postgres', "SELECT dlock_acquire('journal', '1h')");
($code, $out) = example('fenced_writer', $conninfo, 'journal', 'busy');
is($code, 2, 'fenced_writer: no lock');

#
# The scripts of client/cli/examples.  Each command notes when it begins and ends.
#

my $shell = client_dir() . '/../cli/examples';
my $notes = PostgreSQL::Test::Utils::tempdir() . '/notes';
my $command = 'echo "+$2" >>"$1"; while ! [ -e "$3" ]; do sleep 0.02; done; echo "-$2" >>"$1"';
local %ENV = (
	%ENV,
	PATH => client_dir() . "/../cli:$ENV{PATH}",
	PGHOST => $node->host,
	PGPORT => $node->port,
	PGDATABASE => 'postgres');

# A script with a command called $name, which ends when the file $until is there.
sub start_script
{
	my ($script, $what, $name, $until) = @_;

	return IPC::Run::start([ "$shell/$script", $what, 'sh', '-c', $command, 'sh', $notes, $name, $until ],
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
}

sub noted { return -e $notes ? slurp_file($notes) : ''; }

# at most three workers for each tenant
my @workers = map { start_script('tenant_worker', 7, "w$_", "$notes.go") } 1 .. 5;
wait_until('three work', sub { return noted() =~ /^(\+w\d\n){3}$/; });
$node->poll_query_until('postgres', "SELECT count(*) = 2 FROM dlock_waiters WHERE key = 'tenant:7'") or die 'the others do not wait';
push @workers, start_script('tenant_worker', 8, 'w6', "$notes.go");
wait_until('another tenant has workers of its own', sub { return noted() =~ /^\+w6$/m; });
unlike(noted(), qr/^-/m, 'tenant_worker: three of five work');
append_to_file("$notes.go", 'x');
$_->finish foreach @workers;
is(join(' ', map { $_->result(0) } @workers), '0 0 0 0 0 0', 'tenant_worker: all have worked');
my ($now, $most) = (0, 0);
foreach my $note (grep { !/w6/ } split /\n/, noted())
{
	$now += $note =~ /^\+/ ? 1 : -1;
	$most = $now if $now > $most;
}
is("$now $most", '0 3', 'tenant_worker: never more than three');

# readers and a migration
unlink $notes;
my @readers = map { start_script('with_schema', 'read', "r$_", "$notes.read") } 1 .. 3;
wait_until('three read', sub { return noted() =~ /^(\+r\d\n){3}$/; });
my $migration = start_script('with_schema', 'migrate', 'm', "$notes.migrate");
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters WHERE key = 'schema'") or die 'the migration does not wait';
my $late = start_script('with_schema', 'read', 'r4', "$notes.read");
$node->poll_query_until('postgres', "SELECT count(*) = 2 FROM dlock_waiters WHERE key = 'schema'") or die 'the late reader does not wait';
append_to_file("$notes.read", 'x');
wait_until('the migration runs', sub { return noted() =~ /^\+m$/m; });
append_to_file("$notes.migrate", 'x');
$_->finish foreach @readers, $migration, $late;
like(noted(), qr/^(\+r[123]\n){3}(-r[123]\n){3}\+m\n-m\n\+r4\n-r4\n$/, 'with_schema: the migration runs alone, after those before it');

# once a minute, on ten machines
unlink $notes;
append_to_file("$notes.at once", 'x');
foreach my $minute (1, 2)
{
	my @machines;

	local $ENV{AT_LEAST} = '3s';
	# some start at the same time, some when the job has ended
	push @machines, map { start_script('every_minute', 'minutely', "$minute", "$notes.at once") } 1 .. 5;
	$_->finish foreach @machines;
	push @machines, map { start_script('every_minute', 'minutely', "$minute", "$notes.at once") } 6 .. 10;
	$_->finish foreach @machines[ 5 .. 9 ];
	is(join(' ', map { $_->result(0) } @machines), '0 0 0 0 0 0 0 0 0 0', "every_minute, $minute: no machine complains");
	is(noted() =~ tr/+//, $minute, "every_minute, $minute: one has run it");
	$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM dlock_locks WHERE key = 'minutely'") or die 'the key stays busy';
}
is(system("$shell/every_minute", 'failing', 'sh', '-c', 'exit 3') >> 8, 3, 'every_minute: the exit code of the job');

#
# Installed, and used by a program through pkg-config
#

my $folder = client_copy();
system_or_bail('make', '-s', '-C', $folder, 'install', 'prefix=/somewhere', "DESTDIR=$folder/root");
my $root = "$folder/root/somewhere";
is( join(' ', sort map { s,^\Q$root\E/,,r } glob "$root/include/* $root/lib/* $root/lib/pkgconfig/* $root/share/man/man3/*"),
	'include/dlock.h lib/libdlock.a lib/libdlock.so lib/libdlock.so.1 lib/libdlock.so.1.0 lib/pkgconfig'
	  . ' lib/pkgconfig/libdlock.pc share/man/man3/libdlock.3',
	'what is installed');
system_or_bail('make', '-s', '-C', $folder, 'all', 'prefix=' . $root);
system_or_bail('make', '-s', '-C', $folder, 'install', 'prefix=' . $root);
{
	local $ENV{PKG_CONFIG_PATH} = "$root/lib/pkgconfig";
	local $ENV{LD_LIBRARY_PATH} = join ':', "$root/lib", $ENV{LD_LIBRARY_PATH} // ();
	my $flags = `pkg-config --cflags --libs libdlock`;

	system_or_bail("cc -o $folder/leader $examples/leader.c $flags");
	ok(run_log([ "$folder/leader", $conninfo, 'leader', 'linked', 1 ]), 'a program that is linked with the library');
}
ok(run_log([ client_dir() . '/../../test/lib/client/symbols', "$root/lib/libdlock.so.1.0", client_dir() . '/libdlock.map', client_dir() . '/dlock.h' ]),
	'the library exports what the header declares');

$node->stop;
done_testing();
