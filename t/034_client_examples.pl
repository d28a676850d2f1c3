# The example programs of client/examples, and the installed library.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";

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
# Installed, and used by a program through pkg-config
#

my $folder = PostgreSQL::Test::Utils::tempdir();
system_or_bail('cp', '-r', client_dir() . '/../dlock.control', client_dir(), $folder);
system_or_bail('make', '-s', '-C', "$folder/client", 'clean');
system_or_bail('make', '-s', '-C', "$folder/client", 'install', 'prefix=/somewhere', "DESTDIR=$folder/root");
my $root = "$folder/root/somewhere";
is( join(' ', sort map { s,^\Q$root\E/,,r } glob "$root/include/* $root/lib/* $root/lib/pkgconfig/* $root/share/man/man3/*"),
	'include/dlock.h lib/libdlock.a lib/libdlock.so lib/libdlock.so.1 lib/libdlock.so.1.0 lib/pkgconfig'
	  . ' lib/pkgconfig/libdlock.pc share/man/man3/libdlock.3',
	'what is installed');
system_or_bail('make', '-s', '-C', "$folder/client", 'all', 'prefix=' . $root);
system_or_bail('make', '-s', '-C', "$folder/client", 'install', 'prefix=' . $root);
{
	local $ENV{PKG_CONFIG_PATH} = "$root/lib/pkgconfig";
	local $ENV{LD_LIBRARY_PATH} = join ':', "$root/lib", $ENV{LD_LIBRARY_PATH} // ();
	my $flags = `pkg-config --cflags --libs libdlock`;

	system_or_bail("cc -o $folder/leader $examples/leader.c $flags");
	ok(run_log([ "$folder/leader", $conninfo, 'leader', 'linked', 1 ]), 'a program that is linked with the library');
}
ok(run_log([ client_dir() . '/test/symbols', "$root/lib/libdlock.so.1.0", client_dir() . '/libdlock.map', client_dir() . '/dlock.h' ]),
	'the library exports what the header declares');

$node->stop;
done_testing();
