# Linters, types, tests and distribution files of each client's package: what client/LANGUAGE/check says of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockConformance;
use DlockTest;

my $node = new_node('packages', conf => "listen_addresses = '127.0.0.1'\nmax_worker_processes = 40\nmax_connections = 200\n");

$ENV{PGHOST} = '127.0.0.1';
$ENV{PGPORT} = $node->port;
$ENV{PGUSER} = $node->safe_psql('postgres', 'SELECT current_user');
foreach my $package (packages())
{
	my ($name, $check, $folder) = @$package;
	my ($out, $err) = ('', '');

	$node->safe_psql('postgres', "CREATE DATABASE $name");
	add_extension_in($node, $name);
	local $ENV{PGDATABASE} = $name;
	IPC::Run::run([ $check, 'test', $folder ], '<', \undef, '>', \$out, '2>', \$err);
	is($?, 0, "$name: everything was run");
	ok($1 eq 'ok', "$name: $2") while $out =~ /^(ok|not ok) (.*)$/mg;
	note "$name: $_" foreach split /\n/, $err;
	diag($err) if $out =~ /^not ok/m || $?;
}

$node->stop;
done_testing();
