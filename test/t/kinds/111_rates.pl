# Permits of dlock_limit: many clients never get more than n in any window, one queue, open
# transactions, and a crash.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

# The reaper is off, so every permit leaves its row.
my $node = new_node('rates', conf => "deadlock_timeout = 60s\nmax_connections = 40\n");

#
# Many clients
#

sub race
{
	my ($name, $sql, @options) = @_;
	my $file = $node->basedir . "/$name.sql";

	append_to_file($file, $sql);
	$node->command_ok([ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-j', 2, @options, '-f', $file, 'postgres' ],
		"$name: clients ask for permits");
	return;
}

race('windows', "SELECT dlock_limit('windows', 5, '200ms');\n", '-c', 10, '-T', 4);
my ($given, $close) = split /\|/, $node->safe_psql('postgres', q{
SELECT count(*), count(*) FILTER (WHERE since < '200ms')
  FROM (SELECT acquired_at - lag(acquired_at, 5) OVER (ORDER BY acquired_at) AS since FROM dlock.locks WHERE key = 'windows') w});
cmp_ok($given, '>', 10, 'windows: permits were given');
is($close, 0, "windows: none of the $given is the sixth in a window");

race('waits', "SELECT dlock_limit('waits', 3, '100ms', wait => '10min');\n", '-c', 8, '-t', 5);
is( $node->safe_psql('postgres', q{
SELECT count(*), count(*) FILTER (WHERE since < '100ms')
  FROM (SELECT acquired_at - lag(acquired_at, 3) OVER (ORDER BY acquired_at) AS since FROM dlock.locks WHERE key = 'waits') w}),
	'40|0', 'those that wait all get one, three in a window');

race('hour', "SELECT dlock_limit('hour', 100, '1h');\n", '-c', 10, '-t', 30);
is($node->safe_psql('postgres', q{SELECT count(*), count(DISTINCT version) FROM dlock_locks WHERE key = 'hour'}),
	'100|100', 'of 300 calls in an hour, exactly 100 are given');

#
# The queue, and open transactions
#

my ($now, $a, $b) = map { client($node, $_) } qw(now a b);
my $full = sub { return $now->ask_it("SELECT dlock_limit('$_[0]', $_[1], '1h') > '0'") };

foreach my $n (1, 2)
{
	my $key = "queue $n";

	is($full->($key, $n), 'f', "$key: a permit is given") foreach 1 .. $n;
	$a->start("SELECT dlock_limit('$key', $n, '1h', wait => '1h')");
	until_waiting($node, $a, $key);
	$b->start("SELECT dlock_limit('$key', $n, '1h', wait => '1h', priority => 5)");
	until_queue($node, $key, 'b a');
	is($full->($key, $n), 't', "$key: a call that does not wait is refused");
	my @versions = split /\n/, $now->ask_it("SELECT version FROM dlock_get('$key') ORDER BY version");
	$now->ask_it("SELECT dlock_force_release('$key', 'test', $versions[0])");
	is($b->answer, '00:00:00', "$key: the higher priority gets what is free");
	until_waiting($node, $a, $key);
	@versions = split /\n/, $now->ask_it("SELECT version FROM dlock_get('$key') ORDER BY version");
	$now->ask_it("SELECT dlock_force_release('$key', 'test', $versions[0])");
	is($a->answer, '00:00:00', "$key: then the other");

	$key = "open $n";
	is($full->($key, $n), 'f', "$key: a permit is given") foreach 2 .. $n;
	is($a->ask_it("BEGIN; SELECT dlock_limit('$key', $n, '1h')"), '00:00:00', "$key: the last one, in an open transaction");
	is($now->ask_it("SELECT dlock_limit('$key', $n, '10min') = '10min', pg_current_xact_id_if_assigned() IS NULL"), 't|t',
		"$key: others are told to come back, and write nothing");
	$b->start("SELECT dlock_limit('$key', $n, '1h', wait => '1h')");
	until_waiting($node, $b, $key);
	$a->ask_it('ROLLBACK');
	is($b->answer, '00:00:00', "$key: what is rolled back is given to the next");
}

# With others in the queue, too, the answer is the first end of all places, of which there may
# be more than a waiter looks at.
$now->ask_it("SELECT dlock_limit('many', 40, '10min')");
$now->ask_it("SELECT count(dlock_limit('many', 40, '1h')) FROM generate_series(1, 39)");
$a->start("SELECT dlock_limit('many', 40, '1h', wait => '1h')");
until_waiting($node, $a, 'many');
is($now->ask_it("SELECT dlock_limit('many', 40, '1h') BETWEEN '1 s' AND '10min'"), 't', 'when to ask again, behind the queue');
$now->ask_it('SELECT pg_cancel_backend(' . $a->pid . ')');
is($a->answer, 'ERROR 57014', 'who waits can be cancelled');

#
# A crash: what was given counts for one window from then.
#

close_clients($now, $a, $b);
DlockWait::close_monitors();
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', q{SELECT dlock_limit('hour', 100, '1h') BETWEEN '59min' AND '1h', dlock_limit('queue 1', 1, '1h') BETWEEN '59min' AND '1h'}),
	't|t', 'after a crash the permits still count, for a window from the start');
is($node->safe_psql('postgres', q{SELECT dlock_limit('hour', 101, '1h'), dlock_limit('hour', 101, '1h') > '0'}), '00:00:00|t', 'all of them');
$node->stop;
done_testing();
