# The client with several grants of one key: the command line shows a key once, with its
# oldest grant, and the library's statements do not take rows of a key for one row.  The
# view dlock_locks is replaced by one that has a second, later grant of each key.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockCli;
use DlockClient;
use DlockTest;

my $node = new_node('holders');
server_is($node);
$node->safe_psql(
	'postgres', q(
	SELECT format('CREATE OR REPLACE VIEW dlock_locks AS SELECT * FROM dlock_locks_shown() '
		'UNION ALL SELECT %s FROM dlock_locks_shown()',
		string_agg(CASE attname WHEN 'version' THEN 'version + 1000' WHEN 'remaining'
			THEN 'remaining / 2' ELSE quote_ident(attname) END, ', ' ORDER BY attnum))
	FROM pg_attribute WHERE attrelid = 'dlock_locks'::regclass AND attnum > 0 \gexec));

my (undef, $version) = dlock('acquire', 'a', '--ttl=10min');
chomp $version;
my (undef, $other) = dlock('acquire', 'b', '--ttl=9min');
chomp $other;
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks"), 4, 'two grants of each key');

is(join(' ', map { "$_->{key}=$_->{version}" } @{ dlock_json('ls', '--json') }), "a=$version b=$other",
	'ls: each key once, with its oldest grant');
is(join(' ', map { $_->{key} } @{ dlock_json('ls', '--json', '--sort=remaining') }), 'b a', 'ls: sorted');
is(dlock_json('info', 'a', '--json')->{version}, $version, 'info');
my $top = dlock_json('top', '--once', '--json');
is(scalar(@{ $top->{locks} }), 2, 'top: each key once');
is($top->{held}, 4, 'top: counts grants');
dlock_is([ 'acquire', 'a' ], 75, qr/^$/, qr/It is held with version $version /, 'the holder that a busy try names');

# a request to yield belongs to one grant
my $a = driver(conninfo($node));
my $b = driver(conninfo($node));
is($a->ask('info', 'a')->{version}, $version, 'dlock_get_info()');
is($a->ask('list', '%')->{count}, 4, 'dlock_list()');
is($a->ask('acquire', 'c', ttl => 60000, cleanup => 60000, renew => 1)->{status}, 'ok', 'acquire');
$b->send('acquire', 'c', wait => 60000, priority => 1);
ok($a->event('preempted', 'c'), 'a request to yield is told');
is($a->ask('release', 'c')->{status}, 'ok', 'release');
is($b->answer->{status}, 'ok', 'granted to the other');
$_->finish foreach $a, $b;

done_testing();
