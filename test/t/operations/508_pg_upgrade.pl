# pg_upgrade from an older major version of PostgreSQL: locks and versions survive.
#
# OLD_PG_CONFIG names the older PostgreSQL, and PG_CONFIG the newer one.  scripts/test
# then installs dlock in a copy of each, and DLOCK_OLD_BINDIR names the programs of the
# older one.  test/t/operations/509_binary_upgrade.pl needs only one version.

use strict;
use warnings FATAL => 'all';

use File::Find;
use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;

my $bindir = $ENV{DLOCK_OLD_BINDIR}
  or plan skip_all => 'needs two versions of PostgreSQL; set OLD_PG_CONFIG and PG_CONFIG';
my $leap = 2**32;

# The two clusters must be of one kind; newer versions have other defaults.
sub initdb
{
	my ($program, $dir) = @_;
	my ($help) = run_command([ $program, '--help' ]);

	command_ok(
		[
			$program, '-D', $dir, '-U', 'postgres', '-A', 'trust', '-N', '-E', 'UTF8', '--no-locale',
			$help =~ /--no-data-checksums/ ? '--no-data-checksums' : ()
		],
		"$program");
	open my $conf, '>>', "$dir/postgresql.conf" or die "could not open postgresql.conf: $!";
	print $conf "shared_preload_libraries = 'dlock'\ndlock.reap_interval = 10ms\nfsync = off\n",
	  "listen_addresses = ''\nunix_socket_directories = '$PostgreSQL::Test::Utils::tmp_check'\n";
	close $conf;
	return;
}

my ($new_bindir) = run_command([ 'pg_config', '--bindir' ]);
my ($new_version) = run_command([ 'postgres', '--version' ]);
my ($old, $new) = map { "$PostgreSQL::Test::Utils::tmp_check/$_" } qw(old_cluster new_cluster);
my $socket = PostgreSQL::Test::Utils::tempdir_short();
my $port = PostgreSQL::Test::Cluster::get_free_port();

sub start
{
	my ($programs, $dir) = @_;

	command_ok(
		[
			"$programs/pg_ctl", '-w', '-s', '-D', $dir, '-l', "$dir.log",
			'-o', "-p $port -k $socket", 'start'
		],
		"start of $dir");
	return;
}

sub stop
{
	my ($programs, $dir) = @_;

	command_ok([ "$programs/pg_ctl", '-w', '-s', '-D', $dir, '-m', 'fast', 'stop' ], "stop of $dir");
	return;
}

sub ask_server
{
	my ($sql) = @_;
	my ($out, $err) = run_command(
		[ "$new_bindir/psql", '-XAtq', '-h', $socket, '-p', $port, '-U', 'postgres', '-d', 'postgres', '-c', $sql ]);

	die "$sql: $err" if $err =~ /ERROR|FATAL/;
	return $out;
}

END
{
	foreach my $cluster ([ $bindir, $old ], [ $new_bindir, $new ])
	{
		system("$cluster->[0]/pg_ctl", '-s', '-D', $cluster->[1], '-m', 'immediate', 'stop')
		  if defined $cluster->[1] && -e "$cluster->[1]/postmaster.pid";
	}
}

initdb("$bindir/initdb", $old);
start($bindir, $old);
ask_server('CREATE SCHEMA locks; CREATE EXTENSION dlock SCHEMA locks');
ask_server('ALTER DATABASE postgres SET search_path = public, locks');
ask_server('CREATE ROLE app; GRANT USAGE ON SCHEMA locks TO app');
my $held = ask_server(q{SET ROLE app; SELECT dlock_acquire('held', '1h', owner => 'o', value => 'v')});
my $last = ask_server(q{SELECT dlock_acquire('last', '1h')});
ask_server(q{SELECT count(dlock_acquire('expired' || n, '1s')) FROM generate_series(1, 1000) n});
my $oid = ask_server(q{SELECT 'dlock.locks'::regclass::oid});
stop($bindir, $old);

initdb("$new_bindir/initdb", $new);
{
	my $work = "$PostgreSQL::Test::Utils::tmp_check/pg_upgrade";

	mkdir $work or die "could not create $work: $!";
	chdir $work or die "could not change to $work: $!";
}
command_ok(
	[
		"$new_bindir/pg_upgrade", '-b', $bindir, '-B', $new_bindir, '-d', $old, '-D', $new,
		'-U', 'postgres', '-s', $socket, '-p', $port, '-P', $port
	],
	'pg_upgrade');
if (-d "$new/pg_upgrade_output.d")		# which it removes when it succeeds
{
	File::Find::find(
		sub { diag("$File::Find::name:\n" . slurp_file($_)) if /\.log$/ && slurp_file($_) =~ /error|fatal/i },
		"$new/pg_upgrade_output.d");
	done_testing();
	exit;
}

start($new_bindir, $new);
my $major = ask_server(q{SELECT current_setting('server_version_num')::int / 10000});
like($new_version, qr/\) $major\D/, "the server is version $major");
is(ask_server(q{SELECT 'dlock.locks'::regclass::oid}), $oid, 'the table is the same');
is(ask_server(q{SELECT version || owner || value || role FROM dlock_locks WHERE key = 'held'}),
	"${held}ovapp", 'a lock is held');
is(ask_server(qq{SET ROLE app; SELECT dlock_check('held', $held), dlock_acquire('held')}), 'held|', 'and is busy');
my $first = ask_server(q{SELECT dlock_acquire('first', '1h')});
cmp_ok($first, '>', $last + $leap / 2, 'versions have leapt');
cmp_ok(ask_server(q{SELECT dlock_acquire('second', '1h')}), '<', $first + 2000, 'once');
is(ask_server(qq{SET ROLE app; SELECT dlock_release('held', $held)}), 'released', 'it can be released');
wait_until('the reaper has removed what expired',
	sub { return ask_server(q{SELECT count(*) FROM dlock.locks WHERE key LIKE 'expired%'}) eq '0' });
is(ask_server(q{SELECT extversion = (SELECT default_version FROM pg_available_extensions WHERE name = 'dlock')
	FROM pg_extension WHERE extname = 'dlock'}), 't', 'the extension is of the newest version');
stop($new_bindir, $new);

done_testing();
