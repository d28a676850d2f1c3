# Moving shards between clusters: step by step, interrupted at each of them and run again.
# The clusters are databases of one server; 804_cluster.pl has servers.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockCli;
use DlockRouter;
use DlockTest;
use DlockWait;

need_plproxy();

my $node = new_node('node', bare => 1, conf => "dlock.allow_direct_writes = off\n");
my $shard = 17;
my ($key, $second) = keys_of($shard, 2);
my $unmoved = key_of(18);
my @half = ('{[0,512)}', '{[512,1024)}');
my @connection = map { address($node, $_) } qw(a b);

server_is($node);

my %router = (env => { PGDATABASE => 'r1' });
my @both = ('--router', address($node, 'r2'));

foreach my $i (0, 1)
{
	my $database = ('a', 'b')[$i];

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	add_extension_in($node, $database);
	$node->safe_psql($database, "SELECT dlock_serve('$half[$i]')");

	# what another role may create beside the extension's functions must not be called
	$node->safe_psql($database, <<'END');
DO $do$
DECLARE
	call text;
BEGIN
	FOREACH call IN ARRAY ARRAY['dlock_advance(version integer)', 'dlock_advance(version numeric)',
		'dlock_shard(key varchar)', 'dlock_force_release(key text, reason varchar, version bigint)',
		'dlock_force_release(key text, reason text, version integer)']
	LOOP
		EXECUTE format('CREATE FUNCTION %s.%s RETURNS integer LANGUAGE plpgsql AS $f$ BEGIN RAISE ''caught''; END $f$',
			(SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'dlock'), call);
	END LOOP;
END $do$;
END
}
foreach my $router (qw(r1 r2))
{
	new_router($node, $router);
	set_clusters($node, $router, a => $half[0], $connection[0], b => $half[1], $connection[1]);
}

# The clusters that serve the shard: a, b, both or none.
sub servers
{
	return join '', grep { $node->safe_psql($_, "SELECT shards @> $shard FROM dlock_served") eq 't' } qw(a b);
}

# The clusters that the routers send it to.
sub mapped
{
	return join '', map { $node->safe_psql($_, "SELECT name FROM dlock_router.clusters WHERE shards @> $shard") } qw(r1 r2);
}

my $last = 0;

# A new grant of the key has a higher version than all before.
sub grant_rises
{
	my ($what, $ttl) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $version = $node->safe_psql('r1', "SELECT dlock_acquire('$key', '" . ($ttl // '1ms') . "')");

	cmp_ok($version, '>', $last, "$what: a grant, and its version is higher");
	$last = $version if $version ne '';
	return $version;
}

sub until_gone_all
{
	until_sql($node, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock shard'}, 0, 'the command and its sessions are gone');
	return;
}

# The whole way, and what it leaves.
sub moves
{
	my ($from, $to, $what, @options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($code, $out, $err) = dlock('shard', 'move', $shard, $from, $to, @both, @options, \%router);

	is($code, 0, "$what: moved from $from to $to") or diag $err;
	is(servers(), $to, "$what: only $to serves the shard");
	is(mapped(), "$to$to", "$what: both routers know");
	grant_rises($what);
	return $err;
}

#
# A move that nothing disturbs
#

grant_rises('at the start');
my ($code, $out, $err) = dlock('shard', 'list', \%router);
is($code, 0, 'dlock shard list');
like($out, qr/^a +512 +ok +0-511\b.*^b +512 +ok +512-1023\b/ms, 'shows the clusters');
$err = moves('a', 'b', 'undisturbed');
like($err, qr/cluster "a" has stopped serving shards 17\n.*cluster "b" serves shards 17, with versions above \d+\n.*router "r1" sends shards 17 to cluster "b"/s,
	'it says what it does');
like(moves('a', 'b', 'again'), qr/^dlock: router "r1"[^\n]*\n[^\n]*router "[^\n]*r2"[^\n]*\n$/, 'has nothing left to do');
($code, $out) = dlock('shard', 'list', '--json', @both, \%router);
like($out, qr/"shards": ?"\{\[0,17\),\[18,512\)\}"/, 'dlock shard list --json');
is($node->safe_psql('a', "SELECT dlock_acquire('$unmoved', '1ms') IS NOT NULL"), 't', 'other shards stay');
moves('b', 'a', 'back', '--quiet');
($code, $out, $err) = dlock('shard', 'move', '0-15,17,20-31', 'a', 'b', @both, \%router);
is($code, 0, 'several shards');
is($node->safe_psql('b', 'SELECT shards FROM dlock_served'), '{[0,16),[17,18),[20,32),[512,1024)}', 'all of them');
is($node->safe_psql('r2', q{SELECT shards FROM dlock_router.clusters WHERE name = 'a'}), '{[16,17),[18,20),[32,512)}', 'on the map, too');
dlock('shard', 'move', '0-31', 'b', 'a', @both, \%router);
is(servers(), 'a', 'a range of which some are there already');

#
# What is refused, before anything changes
#

foreach my $case (
	[ 64, qr/needs shards and two clusters/, 'move', 17, 'a' ],
	[ 64, qr/clusters are the same/, 'move', 17, 'a', 'a' ],
	[ 64, qr/invalid shards/, 'move', 1024, 'a', 'b' ],
	[ 64, qr/invalid shards/, 'move', '5-3', 'a', 'b' ],
	[ 64, qr/invalid shards/, 'move', '5,', 'a', 'b' ],
	[ 64, qr/invalid shards/, 'move', '-1', 'a', 'b' ],
	[ 64, qr/no cluster "c"/, 'move', 17, 'a', 'c' ],
	[ 64, qr/followed by "list" or "move"/, 'remove' ],
	[ 69, qr/r3/, 'move', 17, 'a', 'b', '--router', address($node, 'r3') ],
	[ 78, qr/extension "dlock_router" is not installed/, 'list', '-d', 'a' ])
{
	my ($expected, $pattern, @args) = @$case;

	# a number that begins with a minus is no option
	@args = ('--', @args) if grep { $_ eq '-1' } @args;
	($code, $out, $err) = dlock('shard', @args, \%router);
	is($code, $expected, "@args: exit code");
	like($err, $pattern, "@args: says why");
}
$node->safe_psql('b', "SELECT dlock_serve('{[17,18),[512,1024)}')");
($code, $out, $err) = dlock('shard', 'list', \%router);
is($code, 75, 'dlock shard list tells by its exit code');
like($out, qr/^b +512 +differs +512-1023 +17, 512-1023/m, 'that a cluster serves other shards');
($code, $out, $err) = dlock('shard', 'move', $shard, 'a', 'b', @both, \%router);
is($code, 78, 'clusters that both serve it');
like($err, qr/"a" and "b" both serve shards 17\n/, 'named');
$node->safe_psql('b', "SELECT dlock_serve('$half[1]')");
$node->safe_psql('r2', "INSERT INTO dlock_router.clusters VALUES ('c', '{}', 'dbname=c');
	UPDATE dlock_router.clusters SET shards = CASE name WHEN 'a' THEN '{[0,17),[18,512)}' WHEN 'c' THEN '{[17,18)}' ELSE shards END::int4multirange");
($code, $out, $err) = dlock('shard', 'move', $shard, 'a', 'b', @both, \%router);
is($code, 64, 'a router that sends it elsewhere');
like($err, qr/sends shards 17 to other clusters/, 'named');
$node->safe_psql('r2', "BEGIN; DELETE FROM dlock_router.clusters WHERE name = 'c';
	UPDATE dlock_router.clusters SET shards = '$half[0]' WHERE name = 'a'; COMMIT");
my $mover = client($node, 'mover', database => 'b');
$mover->ask_it('SELECT pg_advisory_lock(1684828003, 1836021349)');
($code, $out, $err) = dlock('shard', 'move', $shard, 'a', 'b', @both, \%router);
is($code, 75, 'a cluster that another command is working on');
$mover->ask_it('SELECT pg_advisory_unlock_all()');
close_clients($mover);
is(servers() . mapped(), 'aaa', 'nothing has changed');
grant_rises('after all that');

#
# Grants that are there: waited for, or ended by force.
#

my $held = grant_rises('a long one', '1h');
($code, $out, $err) = dlock('shard', 'move', $shard, 'a', 'b', @both, '--wait=1ms', \%router);
is($code, 75, 'a grant is there, and the time is up');
like($err, qr/1 grants of shards 17 are left on cluster "a"/, 'which it says');
is(servers(), '', 'nobody serves the shard');
is(mapped(), 'aa', 'and the holder finds its lock where it was');
fails_with($node, "SELECT dlock_acquire('$second')", 'LK002', [], 'nobody else gets one', database => 'r1');
is($node->safe_psql('r1', "SELECT dlock_check('$key', $held), dlock_refresh('$key', $held) IS NOT NULL"), 'held|t', 'it keeps it');
($code, $out, $err) = dlock('shard', 'move', $shard, 'b', 'a', @both, \%router);
is($code, 0, 'given up');
is(servers() . mapped(), 'aaa', 'everything is as before');
is($node->safe_psql('r1', "SELECT dlock_check('$key', $held)"), 'held', 'the grant, too');

# killed while it waits
my $run = start_dlock('shard', 'move', $shard, 'a', 'b', @both, \%router);
wait_until('it waits for the grant', sub { $run->{h}->pump_nb; return $run->{err} =~ /waiting for 1 grants on cluster "a"/ });
$run->{h}->signal('KILL');
end_dlock($run);
until_gone_all();
is(servers() . mapped(), 'aa', 'killed: nobody serves the shard');
like(moves('a', 'b', 'forced', '--force'), qr/has stopped serving/, 'by force');
is($node->safe_psql('r1', "SELECT dlock_check('$key', $held), dlock_refresh('$key', $held) IS NULL"), 'not_held|t', 'the old grant is gone');
is($node->safe_psql('a', "SELECT dlock_check('$key', $held)"), 'not_held', 'also where it was');
moves('b', 'a', 'back');

# a lapsed grant belongs to its holder only as long as nobody wants the key
$last = $node->safe_psql('r1', "SELECT dlock_acquire('$key', '1ms', 'lazy', lazy => true)");
until_sql($node, "SELECT state FROM dlock_get('$key')", 'lapsed', 'a lapsed grant', database => 'r1');
moves('a', 'b', 'lapsed');

#
# Expired grants: a restart of the source must not bring them back.
#

# long enough that it would still be held for a while after the restart
my $expired = $node->safe_psql('b', "SELECT dlock_acquire('$second', '4s')");
until_sql($node, "SELECT dlock_check('$second', $expired)", 'not_held', 'an expired grant', database => 'b');
moves('b', 'a', 'expired');
$held = $node->safe_psql('r1', "SELECT dlock_acquire('$second', '1h')");
DlockWait::close_monitors();
$node->stop('immediate');
$node->start;
is($node->safe_psql('b', "SELECT dlock_check('$second', $expired)"), 'not_held', 'it is not held after a restart');
is($node->safe_psql('r1', "SELECT dlock_check('$second', $held), dlock_release('$second', $held)"), 'held|released', 'the new one is');

#
# Interrupted at every step, and run again
#

# Start a move, see that the sub has made it wait, kill it, and let go.
sub interrupted
{
	my ($from, $to, $what, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $blocker = client($node, "blocks $what", database => $params{database});

	$blocker->ask_it($_) foreach @{ $params{block} };
	my $run = start_dlock('shard', 'move', $shard, $from, $to, @both, \%router);
	until_sql($node, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock shard' AND wait_event_type = 'Lock'}, 1,
		"$what: it waits");
	is(servers(), $params{servers}, "$what: who serves the shard");
	$run->{h}->signal('KILL');
	end_dlock($run);
	$blocker->ask_it('ROLLBACK');
	until_gone_all();
	is(servers(), $params{servers}, "$what: and afterwards");
	is(mapped(), $params{mapped} // "$from$from", "$what: the maps");
	like($node->safe_psql('r1', "SELECT dlock_acquire('$second', '1ms')"), qr/^\d+$/, "$what: and grants")
	  if $params{servers} eq $from;
	fails_with($node, "SELECT dlock_acquire('$second', '1ms')", 'LK002', [], "$what: in between", database => 'r1')
	  if $params{servers} ne $from && !$params{mapped};
	close_clients($blocker);
	moves($from, $to, "$what: run again");
	return;
}

interrupted('a', 'b', 'before the source stops', database => 'a', servers => 'a',
	block => [ 'BEGIN', 'LOCK TABLE dlock.served IN SHARE ROW EXCLUSIVE MODE' ]);
interrupted('b', 'a', 'while the source settles', database => 'b', servers => '',
	block => [ 'BEGIN', "SELECT dlock_acquire('" . key_of(1000) . "')" ]);
grant_rises('a row to clear');
interrupted('a', 'b', 'while the source clears', database => 'a', servers => '',
	block => [ 'BEGIN', 'LOCK TABLE dlock.locks IN SHARE MODE' ]);
interrupted('b', 'a', 'before the target serves', database => 'a', servers => '',
	block => [ 'BEGIN', 'LOCK TABLE dlock.served IN SHARE ROW EXCLUSIVE MODE' ]);
interrupted('a', 'b', 'before the first router', database => 'r1', servers => 'b',
	block => [ 'BEGIN', q{SELECT FROM dlock_router.clusters WHERE name = 'a' FOR UPDATE} ]);
interrupted('b', 'a', 'before the second router', database => 'r2', servers => 'a', mapped => 'ab',
	block => [ 'BEGIN', q{SELECT FROM dlock_router.clusters WHERE name = 'a' FOR UPDATE} ]);

# while it waits for a grant, a fence keeps it waiting beyond the TTL
my $writer = client($node, 'writer', database => 'a');
$held = $writer->ask_it("SELECT dlock_acquire('$key', '200ms')");
$writer->ask_it('BEGIN');
is($writer->ask_it("SELECT dlock_fence('$key', $held)"), '', 'a fence');
$run = start_dlock('shard', 'move', $shard, 'a', 'b', @both, \%router);
until_sql($node, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock shard' AND wait_event_type = 'Lock'}, 1, 'the move waits for the fence');
until_sql($node, "SELECT count(*) FROM dlock_get('$key') WHERE state = 'held'", 0, 'also when the grant has expired', database => 'a');
is(servers(), '', 'nobody serves the shard meanwhile');
$writer->ask_it('COMMIT');
($code, $out, $err) = end_dlock($run);
is($code, 0, 'it continues when the transaction ends') or diag $err;
is(servers(), 'b', 'and the target serves the shard');
$last = $held if $held > $last;
grant_rises('after the fence');
close_clients($writer);
moves('b', 'a', 'to where it was');

#
# A stale map: refused, never granted twice.
#

($code, $out, $err) = dlock('shard', 'move', $shard, 'a', 'b', \%router);
is($code, 0, 'a move that one router does not learn of');
fails_with($node, "SELECT dlock_acquire('$key')", 'LK002', [qr/Shard 17 is not served here/], 'through that router', database => 'r2');
$held = grant_rises('through the other', '1h');
fails_with($node, "SELECT dlock_acquire('$key')", 'LK002', [], 'still', database => 'r2');
fails_with($node, "SELECT dlock_check('$key', $held)", 'LK002', [], 'and it does not call the grant of the other cluster not held', database => 'r2');
($code, $out) = dlock('shard', 'list', '-d', 'r2', \%router);
is($code, 75, 'dlock shard list');
$node->safe_psql('r1', "SELECT dlock_release('$key', $held)");
moves('a', 'b', 'told again');

#
# Standbys that may be promoted without the change
#

my $primary = new_node('primary', streaming => 1);
my $standby = new_standby($primary, 'standby');
$primary->safe_psql('postgres', "SELECT dlock_serve('{}')");
$node->safe_psql($_, "INSERT INTO dlock_router.clusters VALUES ('c', '{}', '" . address($primary) . "')") foreach qw(r1 r2);
($code, $out, $err) = dlock('shard', 'move', $shard, 'b', 'c', @both, \%router);
is($code, 78, 'an asynchronous standby');
like($err, qr/has standbys that its commits do not wait for/, 'is named');
is(servers(), 'b', 'and nothing was done');
($code, $out, $err) = dlock('shard', 'move', $shard, 'b', 'c', @both, '--asynchronous', \%router);
is($code, 0, 'unless it does not matter');
make_synchronous($primary, $standby);
cut_off($standby);

# first a grant: the router passes on the warning that it is not confirmed, and libdlock hears it
$run = start_dlock('acquire', $key, '--ttl=1s', '--timeout=2s', \%router);
until_sync_waits($primary, 1, q{backend_type = 'client backend'});
$primary->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'});
($code, $out, $err) = end_dlock($run);
is($code, 69, 'a grant through the router that no standby has confirmed is not reported') or diag "$out$err";

$run = start_dlock('shard', 'move', $shard, 'c', 'b', @both, \%router);
until_sync_waits($primary, 1, q{application_name = 'dlock shard'});
$primary->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'dlock shard' AND wait_event = 'SyncRep'});
($code, $out, $err) = end_dlock($run);
is($code, 69, 'a standby that does not confirm');
like($err, qr/no standby has confirmed the change/, 'is not overlooked');
is($primary->safe_psql('postgres', "SELECT shards @> $shard FROM dlock_served") . servers(), 'f', 'nobody serves the shard');
reconnect($standby);
($code, $out, $err) = dlock('shard', 'move', $shard, 'c', 'b', @both, \%router);
is($code, 0, 'it confirms when it is back') or diag $err;
is(servers() . mapped(), 'bbb', 'moved');

$standby->stop;
$primary->stop;
$node->stop;
done_testing();
