# Five hundred clients wait for one key, which is handed over one by one.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $CLIENTS = 500;

my $node = new_node(
	'many', conf => qq{
max_connections = @{[$CLIENTS + 20]}
shared_buffers = 16MB
fsync = off
deadlock_timeout = 10min
});
my $now = client($node, 'now');

$node->safe_psql('postgres', 'CREATE TABLE got (n serial, pid int, version bigint, at timestamptz DEFAULT clock_timestamp())');
my $script = $node->basedir . '/many.pgbench';
append_to_file($script, q{
BEGIN;
SELECT dlock_acquire('many', '1h', wait => NULL) AS v \gset
INSERT INTO got (pid, version) VALUES (pg_backend_pid(), :v);
SELECT dlock_release('many', :v);
COMMIT;
});

my $version = $now->ask_it("SELECT dlock_acquire('many', '1h')");
my ($out, $err) = ('', '');
my $run = IPC::Run::start(
	[
		'pgbench', '-n', '-c', $CLIENTS, '-j', 2, '-t', 1,
		'-h', $node->host, '-p', $node->port, '-f', $script, 'postgres'
	],
	'<', \undef, '>', \$out, '2>', \$err);
until_sql($node, "SELECT count(*) FROM dlock_waiters", $CLIENTS, 'all of them wait');
$now->ask_it('CREATE TABLE line AS SELECT pid, position FROM dlock_waiters');
is($now->ask_it('SELECT count(DISTINCT position), min(position), max(position) FROM line'),
	"$CLIENTS|1|$CLIENTS", 'each has a place');
is($now->ask_it("SELECT dlock_acquire('many')"), '', 'and nobody overtakes');

is($now->ask_it("SELECT dlock_release('many', $version)"), 'released', 'released');
ok($run->finish, 'all came through') or diag($err);
is( $now->ask_it(
		"SELECT count(*), bool_and(got.place = line.position), bool_and(version > $version)"
		  . ' FROM (SELECT pid, version, row_number() OVER (ORDER BY n) AS place FROM got) AS got JOIN line USING (pid)'),
	"$CLIENTS|t|t",
	'in the order in which they stood');
is( $now->ask_it('SELECT count(*) FROM (SELECT version - lag(version) OVER (ORDER BY n) AS d FROM got) AS s WHERE d <= 0'),
	0, 'versions rise');
is($now->ask_it('SELECT count(*) FROM dlock_waiters'), 0, 'nobody is left');
note $now->ask_it('SELECT max(at) - min(at) FROM got');

$now->leave;
DlockWait::close_monitors();
$node->stop;
done_testing();
