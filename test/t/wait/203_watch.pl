# dlock_watch: follow a lock without polling.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node('watch', conf => "deadlock_timeout = 60s\n");
my $now = client($node, 'now');
my @watchers = map { client($node, "w$_") } 1 .. 5;

my $key = 'k00';
sub fresh { $key++; return; }

# All of them watch that version.
sub watch
{
	my ($version) = @_;

	foreach my $client (@watchers)
	{
		$client->start("SELECT coalesce(dlock_watch('$key', $version, '1h')::text, 'free')");
		until_waiting($node, $client, $key);
	}
	until_queue($node, $key, 'w1 w2 w3 w4 w5');
	return;
}

sub all_see
{
	my ($expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(join(' ', map { $_->answer } @watchers), join(' ', ($expected) x @watchers), $what);
	return;
}

# Calls that do not wait.
is($now->ask_it("SELECT coalesce(dlock_watch('$key', 7, '1h')::text, 'free')"), 'free', 'free is not version 7');
is($now->ask_it("SELECT coalesce(dlock_watch('$key', NULL, '10ms')::text, 'free')"), 'free', 'time is up: still free');
is($now->ask_it("SELECT coalesce(dlock_watch('$key', NULL, '0')::text, 'free')"), 'free', 'no time at all');
my $version = $now->ask_it("SELECT dlock_acquire('$key', '1h')");
is($now->ask_it("SELECT dlock_watch('$key', NULL, '1h')"), $version, 'held already');
is($now->ask_it("SELECT dlock_watch('$key', 0, '1h')"), $version, 'another version');
is($now->ask_it("SELECT dlock_watch('$key', $version, '10ms')"), $version, 'time is up: the same version');
is($now->ask_it("SELECT dlock_watch('$key', $version, '0')"), $version, 'no time at all');
is($now->ask_it('SELECT count(*) FROM dlock_waiters'), 0, 'nobody is left');

# What SQL does to the table wakes all, when it commits.
watch($version);
$now->ask_it('BEGIN; TRUNCATE dlock.locks; ROLLBACK; TRUNCATE dlock.locks');
all_see('free', 'TRUNCATE');
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h')");
$watchers[0]->start("SELECT dlock_acquire('$key', '1h', wait => NULL)");
until_waiting($node, $watchers[0], $key);
$now->ask_it('DELETE FROM dlock.locks');
like($watchers[0]->answer, qr/^\d+$/, 'a waiter after DELETE');
$version = $now->ask_it("SELECT version FROM dlock_locks WHERE key = '$key'");
watch($version);
$now->ask_it('DROP EXTENSION dlock');
all_see('ERROR 42704', 'DROP EXTENSION');
$now->ask_it('CREATE EXTENSION dlock');
fresh();
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h')");

# What the view shows.
watch($version);
is( $now->ask_it(
		"SELECT DISTINCT owner IS NULL, priority IS NULL, position IS NULL, until - since = '1h' FROM dlock_waiters"),
	't|t|t|t',
	'a watcher has no place in line');
is($now->ask_it("SELECT dlock_check('$key', $version)"), 'held', 'and is in nobody\'s way');

# What does not change the version does not wake them.
isnt($now->ask_it("SELECT dlock_refresh('$key', $version, '2h')"), '', 'refreshed');
$now->ask_it("BEGIN; SELECT dlock_release('$key', $version); ROLLBACK");
$now->ask_it("BEGIN; SELECT dlock_fence('$key', $version); COMMIT");
until_queue($node, $key, 'w1 w2 w3 w4 w5', 'a refresh, a fence and a rollback change nothing');

# A release, visible when it commits.
$now->ask_it("BEGIN; SELECT dlock_release('$key', $version)");
until_queue($node, $key, 'w1 w2 w3 w4 w5', 'an open release changes nothing');
$now->ask_it('COMMIT');
all_see('free', 'a release');

# A new grant, on a key with a row and on one without.
foreach my $what ('a grant', 'the first grant of a key')
{
	watch('NULL');
	$now->ask_it('BEGIN');
	$version = $now->ask_it("SELECT dlock_acquire('$key', '1h')");
	like($version, qr/^\d+$/, 'watchers do not prevent a grant');
	until_queue($node, $key, 'w1 w2 w3 w4 w5', 'an open grant changes nothing');
	$now->ask_it('COMMIT');
	all_see($version, $what);
	fresh();
}

# A new value: the version stays, and they return when it commits.
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h', value => 'here')");
watch($version);
isnt($now->ask_it("SELECT dlock_refresh('$key', $version, '2h')"), '', 'refreshed without a value');
$now->ask_it("BEGIN; SELECT dlock_refresh('$key', $version, value => 'nowhere'); ROLLBACK");
$now->ask_it("BEGIN; SELECT dlock_refresh('$key', $version, value => 'there')");
until_queue($node, $key, 'w1 w2 w3 w4 w5', 'a value that is rolled back or not committed changes nothing');
$now->ask_it('COMMIT');
all_see($version, 'a new value');
is($watchers[0]->ask_it("SELECT value FROM dlock_get('$key')"), 'there', 'which they find then');
fresh();

# Expiry, while nothing else happens.  A watcher that comes later sees the same.
$version = $now->ask_it("SELECT dlock_acquire('$key', '2s')");
$_->start("SELECT coalesce(dlock_watch('$key', $version, '1h')::text, 'free')") foreach @watchers;
all_see('free', 'expiry');

# A shortened lease.
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h')");
watch($version);
$now->ask_it("SELECT dlock_refresh('$key', $version, '100ms')");
all_see('free', 'expiry of a TTL made shorter');

# A prolonged lease: they continue to watch after the first expiry.
$version = $now->ask_it("SELECT dlock_acquire('$key', '5s')");
watch($version);
my $expiry = $now->ask_it("SELECT expires_at FROM dlock_locks WHERE key = '$key'");
isnt($now->ask_it("SELECT dlock_refresh('$key', $version, '1h')"), '', 'prolonged');
until_sql($node, "SELECT clock_timestamp() > '$expiry'", 't', 'the first expiry has passed');
until_queue($node, $key, 'w1 w2 w3 w4 w5', 'they continue to watch');

# Force and takeover.
is($now->ask_it("SELECT dlock_force_release('$key', 'test')"), $version, 'forced');
all_see('free', 'a forced release');
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h')");
watch($version);
my $taken = $now->ask_it("SELECT dlock_acquire('$key', '1h', priority => 1)");
cmp_ok($taken, '>', $version, 'taken over');
all_see($taken, 'a takeover');

# With a waiter in the queue, a release may hand over before they look, so either answer is
# right; in the end they know the new holder.
my $waiter = client($node, 'waiter');
watch($taken);
$waiter->start("SELECT dlock_acquire('$key', '1h', wait => '1h')");
until_waiting($node, $waiter, $key);
until_queue($node, $key, 'waiter w1 w2 w3 w4 w5');
is($now->ask_it("SELECT position FROM dlock_waiters WHERE pid = $waiter->{pid}"), 1, 'watchers do not count');
$now->ask_it("SELECT dlock_release('$key', $taken)");
$version = $waiter->answer;
cmp_ok($version, '>', $taken, 'handed over');
foreach my $client (@watchers)
{
	my $seen = $client->answer;

	$seen = $client->ask_it("SELECT dlock_watch('$key', NULL, '1h')") if $seen eq 'free';
	is($seen, $version, "$client->{name} sees the new holder");
}

# A session lock ends.
$waiter->ask_it("SELECT dlock_release('$key', $version)");
$version = $waiter->ask_it("SELECT dlock_acquire('$key', '1h', session => true)");
watch($version);
$waiter->vanish;
all_see('free', 'the end of a session');

# Leaving.
$watchers[0]->start("SELECT dlock_watch('$key')");
until_waiting($node, $watchers[0], $key);
is($now->ask_it('SELECT until IS NULL FROM dlock_waiters'), 't', 'no limit');
$now->ask_it("SELECT pg_cancel_backend($watchers[0]->{pid})");
is($watchers[0]->answer, 'ERROR 57014', 'cancelled');
$watchers[0]->start("SELECT dlock_watch('$key')");
until_waiting($node, $watchers[0], $key);
$watchers[0]->vanish;
until_gone($node, $watchers[0]->pid, 'a client that vanished');
is($now->ask_it('SELECT count(*) FROM dlock_waiters'), 0, 'nobody is left');

# Any isolation level, read only, and in a transaction that holds the lock itself.
foreach my $mode ('ISOLATION LEVEL REPEATABLE READ', 'ISOLATION LEVEL SERIALIZABLE, READ ONLY')
{
	my $w = $watchers[1];

	$w->ask_it("BEGIN $mode; SELECT 1 FROM pg_class LIMIT 1");
	$w->start("SELECT dlock_watch('$key')");
	until_waiting($node, $w, $key);
	$version = $now->ask_it("SELECT dlock_acquire('$key', '1h')");
	is($w->answer, $version, "in $mode");
	$w->ask_it('COMMIT');
	$now->ask_it("SELECT dlock_release('$key', $version)");
}

# A leader and its standbys, as in the manual.
fresh();
my ($leader, $second) = @watchers[1, 2];
$version = $leader->ask_it("SELECT dlock_acquire('$key', '1h', value => 'one', session => true)");
$second->start("CALL dlock_lock('$key', '1h', value => 'two', session => true)");
until_waiting($node, $second, $key);
$watchers[3]->start("SELECT dlock_watch('$key', $version)");
until_waiting($node, $watchers[3], $key);
$leader->leave;
cmp_ok($second->answer, '>', $version, 'the second is the leader now');
$watchers[3]->answer;
is($watchers[3]->ask_it("SELECT value FROM dlock_locks WHERE key = '$key'"), 'two', 'and all know');

# Errors.
is($now->ask_it("SELECT dlock_watch(NULL)"), 'ERROR 22004', 'no key');
is($now->ask_it("SELECT dlock_watch('')"), 'ERROR 22023', 'empty key');
is($now->ask_it("SELECT dlock_watch('$key', 1, '-1s')"), 'ERROR 22023', 'negative timeout');

close_clients($now, $second, $watchers[3], $watchers[4]);
DlockWait::close_monitors();
$node->stop;
done_testing();
