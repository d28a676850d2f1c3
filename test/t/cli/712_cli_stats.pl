# dlock stats, dlock health, and looking at locks beside very many others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use DlockCli;
use DlockTest;

my $node = new_node('cli_stats', streaming => 1, conf => "fsync = on\n");
server_is($node);

# stats
my ($code, $out) = dlock('stats');
is($code, 0, 'stats');
like($out, qr/^grants +0\n/m, 'nothing has happened');
like($out, qr/^stats_reset +\d{4}-\d\d-\d\d /m, 'since when');
unlike($out, qr/wait_p99|CONTENDED/, 'no waits, no contended keys');
$node->safe_psql('postgres', "SELECT dlock_acquire('k', '1h')");
$node->safe_psql('postgres', "SELECT dlock_acquire('k') FROM generate_series(1, 5); SELECT dlock_acquire('k', wait => '30ms')");
$node->safe_psql('postgres', "SELECT dlock_acquire('other' || i, '1h') FROM generate_series(1, 3) i");
$node->safe_psql('postgres', "SELECT dlock_acquire('other' || i) FROM generate_series(1, 3) i");
($code, $out) = dlock('stats');
like($out, qr/^grants +4\n/m, 'grants');
like($out, qr/^busy +8\n.*^waits +1\n.*^timeouts +1\n/ms, 'busy, waits, timeouts');
like($out, qr/^wait_p99 +<= \d+/m, 'the percentile of the waits');
like($out, qr/^CONTENDED KEY +BUSY +WAITS +WAITED FOR +LOST\nk +5 +1 +\d+ms +0\nother1 +1 +0 +0ms +0\n/m, 'contended keys');
unlike((dlock('stats', '--limit=1'))[1], qr/other1/, '--limit');
my $json = decode_json((dlock('stats', '--json'))[1]);
is("$json->{grants} $json->{busy} $json->{waits} $json->{timeouts}", '4 8 1 1', '--json: counters');
cmp_ok($json->{wait_time}, '>=', 0.03, '--json: seconds');
like($json->{stats_reset}, qr/^\d{4}-\d\d-\d\dT.*Z$/, '--json: a time');
is(scalar @{ $json->{wait_times} }, 18, '--json: the histogram');
is($json->{wait_times}->[17]->{upper}, undef, '--json: its last bucket');
is($json->{wait_p50}, $json->{wait_p99}, '--json: of one wait, all percentiles are the same');
cmp_ok($json->{wait_p99}, '>=', 0.03, '--json: and at least as long as it');
is("$json->{contended}->[0]->{key} $json->{contended}->[0]->{busy} $json->{contended}->[0]->{lost}", 'k 5 0', '--json: contended keys');

# health: exit codes of a plugin
($code, $out) = dlock('health');
is($code, 1, 'health: a single server, but without a reaper');
like($out, qr/^dlock WARNING: grants survive a crash of this server, but not its loss, .*worth a look: reaper\n/, 'a warning');
$node->safe_psql('postgres', q{SELECT pg_create_physical_replication_slot('for_a_standby')});
($code, $out) = dlock('health');
is($code, 2, 'that no standby uses the slot is critical');
like($out, qr/^dlock CRITICAL: grants can be lost in a failover/, 'the verdict comes first');
like($out, qr/^problem  standbys: .*\n         Set up a standby/m, 'and then the checks, with a hint');
($code, $out) = dlock('health', '--json');
is($code, 2, 'health --json: the same exit code');
$json = decode_json($out);
is("$json->{status} $json->{checks}->[0]->{name}", 'problem failover', 'health --json');
$node->safe_psql('postgres', q{SELECT pg_drop_replication_slot('for_a_standby')});
my $standby = new_standby($node, 'standby');
make_synchronous($node, $standby);
($code, $out) = dlock('health');
is($code, 1, 'with a synchronous standby, but without a reaper');
like($out, qr/^dlock WARNING: .*^warning  reaper: /ms, 'a warning');
$node->safe_psql('postgres', 'ALTER SYSTEM SET dlock.reap_interval = 1000');
$node->reload;
wait_until('the reaper runs', sub { ($code, $out) = dlock('health'); return $code != 1 });
is($code, 0, 'all is well');
like($out, qr/^dlock OK: /, 'ok');
$standby->stop;
$node->safe_psql('postgres', "SET synchronous_commit = local; ALTER SYSTEM SET synchronous_standby_names = ''");
$node->reload;
($code, $out) = dlock('health', '-h', '/nowhere', '--timeout=1s');
is($code, 3, 'a server that cannot be reached is unknown');
like($out, qr/^dlock UNKNOWN: .*\n +Check that the server is running/, 'and says so, and what to do');
is(decode_json((dlock('health', '-h', '/nowhere', '--timeout=1s', '--json'))[1])->{status}, 'unknown', 'in JSON, too');
is((dlock('health', '-d', 'postgres', 'key'))[0], 64, 'health takes no key');
is((dlock('stats', 'key'))[0], 64, 'nor does stats');

# Beside very many locks: in a fraction of the time that the whole view takes.  The aim is
# 100 ms; the figures are in the output.
$node->safe_psql('postgres', "SET dlock.durable_grants = off; SET synchronous_commit = off; SELECT count(dlock_acquire('m:' || i, '1d')) FROM generate_series(1, 1000000) i");
my $waiter = session($node);
my $answer = background_answer($waiter, "SELECT dlock_acquire('other1', wait => NULL);");
$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM dlock_waiters');
my $whole = time;
$node->safe_psql('postgres', 'SELECT count(*) FROM dlock_locks');
$whole = 1000 * (time - $whole);
foreach my $args ([ 'ls', '--limit=5' ], [ 'ls', 'm:50000*' ], [ 'info', 'm:500000' ], [ 'top', '--once' ], ['stats'])
{
	my ($best, $is) = (1e9);

	foreach (1 .. 5)
	{
		my $began = time;

		($is, $out) = dlock(@$args);
		$best = 1000 * (time - $began) if 1000 * (time - $began) < $best;
	}
	is($is, 0, "dlock @$args");
	cmp_ok($best, '<', $whole / 2, sprintf 'dlock %s: %.0f ms, the whole view: %.0f ms', "@$args", $best, $whole);
}
like((dlock('top', '--once'))[1], qr/^other1 /m, 'top shows what is waited for, wherever it is');
is(scalar @{ decode_json((dlock('ls', 'm:50000*', '--json'))[1]) }, 11, 'ls with a prefix shows all of it');
is(scalar @{ decode_json((dlock('ls', '--limit=3', '--json'))[1]) }, 3, 'ls with a limit');
$node->safe_psql('postgres', "SELECT dlock_release(key, version) FROM dlock_get('other1')");
like($answer->(), qr/^\d+$/, 'the waiter gets it');
end_session($waiter);
$node->stop('immediate');
done_testing();
