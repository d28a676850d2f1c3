# libdlock and the command line on the portable edition, as a role without privileges installs
# it on a plain PostgreSQL: by psql -f, in a schema of its own.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockCli;
use DlockClient;
use DlockTest;

client_build();

my $node = PostgreSQL::Test::Cluster->new('plain');
$node->init;
$node->append_conf('postgresql.conf', "log_statement = all\n");
$node->start;
$node->safe_psql('postgres', 'CREATE ROLE app LOGIN; CREATE DATABASE app OWNER app; GRANT CREATE ON DATABASE postgres TO app; GRANT CREATE ON SCHEMA public TO app');
server_is($node);
$ENV{PGUSER} = 'app';

my $script = "$FindBin::RealBin/../../../portable/dlock_portable--1.0.sql";
my $conninfo = $node->connstr('app') . ' user=app';
my @to = ('-d', 'app', '--schema=Locks');

sub sql
{
	my ($query) = @_;

	return $node->safe_psql('app', "SET search_path = \"Locks\"; $query", extra_params => [ '-U', 'app' ]);
}

# Statements of the log since it had that size
sub logged
{
	my ($offset, $pattern) = @_;
	my @found = slurp_file($node->logfile, $offset) =~ /$pattern/g;

	return scalar @found;
}

dlock_is([ 'check', 'job', '1', @to ], 78, qr/^$/, qr/there is no schema "Locks" in database "app"/, 'nothing is installed');
sql('CREATE SCHEMA "Locks"');
dlock_is([ 'check', 'job', '1', @to ], 78, qr/^$/, qr/function .*dlock_check\(.*\) does not exist/, 'an empty schema');
$node->safe_psql('app', "SET search_path = \"Locks\"; \\i $script", extra_params => [ '-U', 'app' ]);
dlock_is([ 'check', 'job', '1', '-d', 'app' ], 78, qr/^$/, qr/extension "dlock" is not installed.*name the schema of the portable edition/s,
	'without an extension, the schema must be named');

#
# The command line
#

dlock_is([ 'exec', 'job', @to, '--', 'sh', '-c', 'echo "$DLOCK_KEY $DLOCK_VERSION"' ], 0, qr/^job 1$/, qr/^$/, 'dlock exec');
my $version = (dlock('acquire', 'job', '--ttl=1h', '--value=here', @to))[1];
like($version, qr/^2$/, 'dlock acquire');
dlock_is([ 'exec', 'job', @to, '--', 'echo', 'ran' ], 75, qr/^$/, qr/busy.*version 2/s, 'a key that is held is busy');
dlock_is([ 'ls', @to ], 0, qr/^job +2 +held/m, qr/^$/, 'dlock ls');
dlock_is([ 'ls', '--waiters', @to ], 0, qr//, qr/^$/, 'nobody is known to wait');
dlock_is([ 'info', 'job', @to ], 0, qr/here/, qr/^$/, 'dlock info');
dlock_is([ 'check', 'job', '2', @to ], 0, qr/^held$/, qr/^$/, 'dlock check');
dlock_is([ 'refresh', 'job', '2', @to ], 0, qr/^20/, qr/^$/, 'dlock refresh');
dlock_is([ 'health', @to ], 1, qr/portable/, qr/^$/, 'dlock health');
dlock_is([ 'watch', 'job', @to ], 78, qr//, qr/the portable edition of dlock does not support watching/, 'dlock watch is not there');
dlock_is([ $_, @to ], 78, qr/^$/, qr/the portable edition of dlock does not support statistics/, "dlock $_ is not there")
  foreach 'stats', 'top';
dlock_is([ 'exec', 'p', '--priority=1', @to, '--', 'true' ], 78, qr/^$/, qr/does not support priority/, 'nor are priorities');
dlock_is([ 'exec', 'p', '--priority=1', '--wait=1min', @to, '--', 'true' ], 78, qr/^$/, qr/does not support priority/, 'also with a wait');
dlock_is([ 'exec', 'f', '--fence', @to, '--', 'echo', 'ran' ], 78, qr/^$/, qr/does not support --fence/, 'a fence that would not be one is refused');
is(sql(q{SELECT count(*) FROM dlock_get('f')}), '0', 'and its lock released');

# a wait takes no connection
my $offset = -s $node->logfile;
my $run = start_dlock('exec', 'job', '--wait=1h', @to, '--', 'echo', 'came');
wait_until('the wait asks again and again', sub { return logged($offset, 'dlock_acquire\(key') >= 3; });
is(logged($offset, 'dlock_enqueue'), 0, 'without asking for a ticket');
dlock_is([ 'release', 'job', '2', @to ], 0, qr/^released$/, qr/^$/, 'dlock release');
is(join(' ', (end_dlock($run))[ 0, 1 ]), "0 came\n", 'and gets the lock');
dlock_is([ 'exec', 'job', '--and=other', '--wait=1min', @to, '--', 'sh', '-c', 'echo "$DLOCK_KEY $DLOCK_KEY_2"' ], 0, qr/^job other$/, qr/^$/, 'several keys');

#
# The library
#

my ($a, $b) = map { driver($conninfo, open => { schema => 'Locks' }) } 1 .. 2;

is($a->ask('acquire', 'lib', ttl => 600_000)->{status}, 'ok', 'granted');
is($b->ask('acquire', 'lib', wait => 300)->{status}, 'busy', 'a wait that ends');
$b->send('acquire', 'lib', wait => 3_600_000);
is($a->ask('fence', 'lib', owner => $conninfo)->{status}, 'ok', 'dlock_fence()');
is($a->ask('fence_connection', 'lib', owner => $conninfo)->{status}, 'not_ready', 'dlock_fence_connection() says that it would protect nothing');
is($a->ask('refresh', 'lib')->{status}, 'ok', 'dlock_refresh()');
is($a->ask('release', 'lib')->{status}, 'ok', 'dlock_release()');
is($b->answer->{status}, 'ok', 'who waits gets it');

my $old = $b->ask('handover', 'lib', owner => 'next');
is($old->{status}, 'ok', 'dlock_handover()');
is($a->ask('adopt', 'lib', version => $old->{version}, owner => 'next')->{status}, 'ok', 'to the next owner');
is($a->ask('limit', 'rate', per => 3_600_000)->{status}, 'ok', 'dlock_limit(): a permit');
is($a->ask('limit', 'rate', per => 3_600_000)->{status}, 'busy', 'dlock_limit(): none');
dlock_is([ 'exec', 'rate2', '--rate=1/h', @to, '--', 'echo', 'ran' ], 0, qr/^ran$/, qr/^$/, 'dlock exec --rate');

# the extension needs no name, and no superuser
$node->safe_psql('postgres', 'CREATE SCHEMA locks; CREATE EXTENSION dlock_portable SCHEMA locks', extra_params => [ '-U', 'app' ]);
dlock_is([ 'exec', 'job', '-d', 'postgres', '--', 'echo', 'ran' ], 0, qr/^ran$/, qr/^$/, 'the extension is found');

is(sql(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'no lock of PostgreSQL is left');
done_testing();
