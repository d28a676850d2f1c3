# dlock in a folder of its own, from PostgreSQL 18 on (docs/install.md): "make install" puts
# it there, and extension_control_path and dynamic_library_path find it.

use strict;
use warnings FATAL => 'all';

use FindBin;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../../..";
my $folder = PostgreSQL::Test::Utils::tempdir();
my $node = PostgreSQL::Test::Cluster->new('own_folder');

plan skip_all => 'there is no extension_control_path before PostgreSQL 18' if $node->pg_version < 18;

my ($pg_config) = run_command([ 'pg_config', '--bindir' ]);
command_ok(
	[
		'make', '-s', '-C', $root, "PG_CONFIG=$pg_config/pg_config", 'install',
		"datadir=$folder/share", "pkglibdir=$folder/lib"
	],
	'make install');
ok(-e "$folder/$_", "there is $_") foreach qw(lib/dlock.so share/extension/dlock.control);

# dlock is in the server's own folders, too, which come second.
$node->init;
$node->append_conf('postgresql.conf', qq{
extension_control_path = '$folder/share:\$system'
dynamic_library_path = '$folder/lib:\$libdir'
shared_preload_libraries = 'dlock'
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION dlock');
is($node->safe_psql('postgres', q{SELECT dlock_acquire('k')}), '1', 'the first lock');

my $pid = slurp_file($node->data_dir . '/postmaster.pid');
my @libraries = do { my %seen; grep { !$seen{$_}++ } slurp_file('/proc/' . ($pid =~ /(\d+)/)[0] . '/maps') =~ m{(/\S*/dlock\.so)$}mg };
is("@libraries", "$folder/lib/dlock.so", 'the library is the one of that folder');

# pg_upgrade loads the library by this name, and would not find $libdir/dlock.
is( $node->safe_psql(
		'postgres', q{
		SELECT DISTINCT probin FROM pg_proc, pg_depend
		WHERE classid = 'pg_proc'::regclass AND objid = pg_proc.oid AND deptype = 'e' AND probin IS NOT NULL
		AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dlock')}),
	'dlock', 'the functions name the library without a folder');
$node->stop;

done_testing();
