# Readers, writers and semaphores in one queue: its order, who is granted together, upgrades,
# and when waiters look again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use DlockTest;
use DlockWait;

# Only the test frees anything: the reaper is off.
my $node = new_node('queue_of_kinds', conf => "max_connections = 60\ndeadlock_timeout = 60s\n");
my $now = client($node, 'now');
my ($a, $b, $c, $d, $e) = map { client($node, $_) } qw(a b c d e);

my $key = 'k00';
sub fresh { $key++; return; }

my %kinds = (x => 'slots => 1', r => 'shared => true', map { $_ => "slots => $_" } 2, 3, 9);

sub acquire
{
	my ($kind, $args) = @_;

	return "SELECT dlock_acquire('$key', '1h', $kinds{$kind}" . ($args ? ", $args" : '') . ')';
}

sub take
{
	my ($kind, $args) = @_;

	return $now->ask_it(acquire($kind, $args));
}

sub give
{
	my ($client, $version) = @_;

	return $client->ask_it("SELECT dlock_release('$key', $version)");
}

# Start a client's wait in a transaction, and check that it sleeps.
sub waits
{
	my ($client, $kind, $args) = @_;

	$client->start('BEGIN; ' . acquire($kind, join(', ', "wait => '1h'", $args // ())));
	until_waiting($node, $client, $key);
	return;
}

# The client has it; its transaction stays open.
sub got
{
	my ($client, $before, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $version = $client->answer;

	like($version, qr/^\d+$/, "$what: $client->{name} has it");
	cmp_ok($version, '>', $before, "$what: with a higher version") if $version =~ /^\d+$/;
	return $version;
}

sub ends
{
	my ($client, $version) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$client->ask_it('COMMIT');
	is(give($client, $version), 'released', "$client->{name} gives it back");
	return;
}

#
# Order
#

# A reader behind a waiting writer waits; neighbours that fit are granted together, while the first
# of them has not committed.
fresh();
my $version = take('x');
waits($a, 'r');
waits($b, 'r');
waits($c, 'x');
waits($d, 'r');
until_queue($node, $key, 'a b c d');
is($node->safe_psql('postgres', "SELECT string_agg(coalesce(slots::text, 'r'), ' ' ORDER BY position) FROM dlock_waiters WHERE key = '$key'"),
	'r r 1 r', 'the view shows the kinds');
give($now, $version);
my %v;
$v{a} = got($a, $version, 'a writer goes');
$v{b} = got($b, $version, 'beside an open transaction');
until_queue($node, $key, 'c d');
is(take('r'), '', 'a reader does not overtake the writer that waits');
ends($a, $v{a});
until_queue($node, $key, 'c d', 'the writer waits for the other reader');
ends($b, $v{b});
$v{c} = got($c, $v{b}, 'both readers go');
until_queue($node, $key, 'd', 'the reader behind it waits for it');
ends($c, $v{c});
$v{d} = got($d, $v{c}, 'the writer goes');
ends($d, $v{d});

# As many as fit.
fresh();
my @held = map { take('2') } 1, 2;
waits($_, '2') foreach $a, $b, $c;
waits($d, '9');
until_queue($node, $key, 'a b c d', 'one that would fit waits behind those that do not');
is(take('9'), '', 'also if it only tries');
give($now, $held[0]);
$v{a} = got($a, $held[1], 'one place');
until_queue($node, $key, 'b c d');
give($now, $held[1]);
$v{b} = got($b, $v{a}, 'the next one');
until_queue($node, $key, 'c d');
$a->ask_it('ROLLBACK');
$v{c} = got($c, $v{b}, 'a rollback makes room');
$v{d} = got($d, $v{c}, 'and the next fits beside it, before it commits');
ends($b, $v{b});
ends($c, $v{c});
ends($d, $v{d});

# A limit that was lowered: nobody is revoked, and the next one waits for as many as it takes.
fresh();
@held = map { take('3') } 1 .. 3;
waits($a, '2');
give($now, $held[1]);
until_queue($node, $key, 'a', 'one place is not enough');
give($now, $held[0]);
$v{a} = got($a, $held[2], 'two are');
ends($a, $v{a});
give($now, $held[2]);

# A writer that gives up lets the readers behind it continue.
my %gives_up = (
	'a time-out' => sub { $b->start('BEGIN; ' . acquire('x', "wait => '700ms'")) },
	'a cancel' => sub { $b->start('BEGIN; ' . acquire('x', "wait => '1h'")) });
foreach my $how (sort keys %gives_up)
{
	fresh();
	$version = take('r');
	$gives_up{$how}->();
	until_waiting($node, $b, $key);
	waits($_, 'r') foreach $c, $d;
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($b->{pid})") if $how eq 'a cancel';
	like($b->answer, qr/^(ERROR 57014)?$/, "$how: the writer gives up");
	$b->ask_it('ROLLBACK');
	$v{c} = got($c, $version, $how);
	$v{d} = got($d, $version, $how);
	ends($c, $v{c});
	ends($d, $v{d});
	give($now, $version);
}

# A higher priority comes first, whatever its kind.
fresh();
$version = take('r', 'priority => 9');
waits($a, 'x');
waits($b, 'r');
is(take('r'), '', 'an equal one waits');
$v{c} = take('r', 'priority => 1');
like($v{c}, qr/^\d+$/, 'a higher one passes the waiting writer');
waits($c, 'x', 'priority => 1');
until_queue($node, $key, 'c a b');
give($now, $v{c});
give($now, $version);
$v{c} = got($c, $version, 'the higher one first');
ends($c, $v{c});
$v{a} = got($a, $v{c}, 'then in order');
ends($a, $v{a});
$v{b} = got($b, $v{a}, 'then in order');
ends($b, $v{b});

# CALL waits for a place without a snapshot.
fresh();
$version = take('x');
$a->start("CALL dlock_lock('$key', '1h', slots => 2)");
until_waiting($node, $a, $key);
is($node->safe_psql('postgres', "SELECT backend_xmin IS NULL FROM pg_stat_activity WHERE pid = $a->{pid}"), 't',
	'without a snapshot');
give($now, $version);
$v{a} = $a->answer;
cmp_ok($v{a}, '>', $version, 'CALL gets a place');
give($a, $v{a});

#
# Upgrade and downgrade
#

# An upgrade stands before everybody, keeps its place, and gets a new version when it is alone.
fresh();
my $mine = take('r', "owner => 'mine'");
my $yours = take('r', "owner => 'yours'");
waits($a, 'x');
waits($b, 'r');
waits($c, 'x', "owner => 'mine'");
until_queue($node, $key, 'c a b', 'an upgrade comes first');
is($now->ask_it("SELECT dlock_check('$key', $mine)"), 'held', 'it keeps its place');
isnt($now->ask_it("SELECT dlock_refresh('$key', $mine)"), '', 'and can refresh it');
is(take('x', "owner => 'yours'"), '', 'a second one that does not wait is busy');
is(take('x', "owner => 'yours', wait => '1h'"), 'ERROR 40P01', 'and a deadlock if it waits');
is($now->ask_it("SELECT dlock_check('$key', $yours)"), 'held', 'which does not cost the place');
give($now, $yours);
$v{c} = got($c, $yours, 'the upgrade');
is($now->ask_it("SELECT dlock_check('$key', $mine)"), 'held', 'until it commits, the place is held');
$c->ask_it('COMMIT');
is($now->ask_it("SELECT dlock_check('$key', $mine)"), 'held_by_other', 'then it is gone');
is($c->ask_it("SELECT dlock_release('$key', $v{c})"), 'released', 'and given back');
$v{a} = got($a, $v{c}, 'then the writer');
ends($a, $v{a});
$v{b} = got($b, $v{a}, 'then the reader');
ends($b, $v{b});

# An upgrade of the only holder does not wait, whoever does.
fresh();
$mine = take('2', "owner => 'mine'");
waits($a, 'x');
$version = take('x', "owner => 'mine'");
cmp_ok($version, '>', $mine, 'the only holder upgrades at once');
until_queue($node, $key, 'a', 'before one that waits');
# down again: the writer that waits comes before other readers
is(take('r', "owner => 'mine'"), $version, 'and downgrades at once, with the same version');
is(take('r'), '', 'a reader waits behind the writer');
give($now, $version);
$v{a} = got($a, $version, 'the writer');
ends($a, $v{a});

# An upgrade whose place expires is a request like all others.
fresh();
$yours = take('r');
$now->ask_it("SELECT dlock_acquire('$key', '3s', 'mine', shared => true)");
waits($a, 'x');
waits($b, 'x', "owner => 'mine'");
until_queue($node, $key, 'b a', 'an upgrade comes first');
until_queue($node, $key, 'a b', 'when its place has expired, it waits like all others');
give($now, $yours);
$v{a} = got($a, $yours, 'the writer that came first');
ends($a, $v{a});
$v{b} = got($b, $v{a}, 'then the other one');
ends($b, $v{b});

# An upgrade that gives up still has its place, and lets the others continue.
fresh();
$mine = take('r', "owner => 'mine'");
$yours = take('r');
$a->start('BEGIN; ' . acquire('x', "owner => 'mine', wait => '500ms'"));
until_waiting($node, $a, $key);
waits($b, 'r');
is($a->answer, '', 'an upgrade gives up');
$a->ask_it('ROLLBACK');
is($now->ask_it("SELECT dlock_check('$key', $mine)"), 'held', 'its place is held');
$v{b} = got($b, $yours, 'the next one continues');
ends($b, $v{b});
give($now, $_) foreach $mine, $yours;

# A downgrade lets those readers in that are first in line, when it commits.
fresh();
$version = take('x', "owner => 'mine'");
waits($a, 'r');
waits($b, '3');
waits($c, 'x');
is($now->ask_it("BEGIN; SELECT dlock_acquire('$key', '1h', 'mine', slots => 3)"), $version, 'a downgrade');
until_queue($node, $key, 'a b c', 'not before it commits');
$now->ask_it('COMMIT');
$v{a} = got($a, $version, 'downgraded');
$v{b} = got($b, $version, 'downgraded');
until_queue($node, $key, 'c', 'the writer waits');
ends($a, $v{a});
ends($b, $v{b});
give($now, $version);
$v{c} = got($c, $version, 'all readers go');
ends($c, $v{c});

#
# Time
#

# A writer gets in when the last of the leases is over, and is not kept out by a dead reader that
# has others beside it.
fresh();
my $dead = $now->ask_it("SELECT dlock_acquire('$key', '400ms', shared => true)");
my $alive = $now->ask_it("SELECT dlock_acquire('$key', '400ms', shared => true)");
for (1 .. 8)
{
	isnt($now->ask_it("SELECT dlock_refresh('$key', $alive) FROM pg_sleep(0.1)"), '', 'one refreshes');
}
is($now->ask_it("SELECT dlock_check('$key', $dead)"), 'held_by_other', 'the other one does not live on');
is($now->ask_it("SELECT count(*) FROM dlock_locks WHERE key = '$key'"), 1, 'nor in the view');
my $began = time;
$version = take('x', "wait => '1h'");
cmp_ok($version, '>', $alive, 'a writer gets in when the last lease is over');
cmp_ok(time - $began, '<', 5, 'and not much later');
give($now, $version);

# A semaphore's waiter needs only the first of the leases to end.
fresh();
$now->ask_it("SELECT dlock_acquire('$key', '1h', slots => 2)");
$now->ask_it("SELECT dlock_acquire('$key', '300ms', slots => 2)");
$began = time;
like(take('2', "wait => '1h'"), qr/^\d+$/, 'a place is free when one lease is over');
cmp_ok(time - $began, '<', 5, 'and not much later');

# Cooling: a waiter is granted at its end, not before.
foreach my $kind ('x', '2')
{
	fresh();
	$version = $now->ask_it("SELECT dlock_acquire('$key', '1h', $kinds{$kind}, at_least => '600ms')");
	my $other = $kind eq '2' ? take('2') : undef;
	give($now, $version);
	waits($a, $kind);
	$v{a} = got($a, $version, "$kind cools");
	$a->ask_it('COMMIT');
	is($now->ask_it("SELECT acquired_at >= (SELECT acquired_at + '600ms' FROM dlock.locks WHERE version = $version) FROM dlock_locks WHERE version = $v{a}"),
		't', 'not before') if $kind eq '2';
	is($now->ask_it("SELECT clock_timestamp() - acquired_at < '5s' FROM dlock_locks WHERE version = $v{a}"), 't', 'not much later');
	is(give($a, $v{a}), 'released', 'a gives it back');
	give($now, $other) if $other;
}

# A forced release of what cools wakes the waiter.
fresh();
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h', at_least => '1h')");
give($now, $version);
waits($a, 'x');
is($now->ask_it("SELECT dlock_force_release('$key', 'test')"), $version, 'the cooling is ended');
$v{a} = got($a, $version, 'at once');
ends($a, $v{a});

# So does a lapse: the next in line takes a lazy lock when its TTL is over.
fresh();
$version = $now->ask_it("SELECT dlock_acquire('$key', '300ms', lazy => true)");
$began = time;
$v{a} = take('x', "wait => '1h'");
cmp_ok($v{a}, '>', $version, 'a lazy lock goes to the one that waits');
cmp_ok(time - $began, '<', 5, 'when its TTL is over');

# A fence keeps a place that has expired, and its end wakes the waiter.
fresh();
$version = $now->ask_it("SELECT dlock_acquire('$key', '300ms', shared => true)");
$b->ask_it("BEGIN; SELECT dlock_fence('$key', $version)");
waits($a, 'x');
$now->ask_it('SELECT pg_sleep(0.4)');
until_queue($node, $key, 'a', 'a fence keeps an expired place');
$b->ask_it('COMMIT');
$v{a} = got($a, $version, 'when the fence goes');
ends($a, $v{a});

#
# A writer gets in while readers come and go
#

# Each reader that has not asked before the writer waits behind it, so that no more than one hold
# passes.  The versions tell: while the writer waits, at most those eight are drawn that were under
# way.
my $script = $node->basedir . '/reader.pgbench';
append_to_file($script, q{
SELECT dlock_acquire('busy', '1h', shared => true, wait => NULL) AS v \gset
\sleep 30 ms
SELECT dlock_release('busy', :v);
});
my ($out, $err) = ('', '');
my $readers = IPC::Run::start(
	[ 'pgbench', '-n', '-c', 8, '-j', 2, '-T', 60, '-h', $node->host, '-p', $node->port, '-f', $script, 'postgres' ],
	'>', \$out, '2>', \$err);
until_sql($node, "SELECT count(*) >= 4 FROM dlock_locks WHERE key = 'busy'", 't', 'readers come and go');
my $most = 0;
my $longest = 0;
for (1 .. 20)
{
	$began = time;
	$a->start("SELECT dlock_acquire('busy', '1h', wait => '1min')");
	# when the writer stands in line, or has got it already
	wait_until('the writer waits', sub {
		return $node->safe_psql('postgres',
			"SELECT count(*) > 0 FROM (SELECT FROM dlock_waiters WHERE pid = $a->{pid} UNION ALL SELECT FROM dlock_locks WHERE key = 'busy' AND slots = 1) x") eq 't';
	});
	my $last = $node->safe_psql('postgres', 'SELECT last_value FROM dlock.versions');
	my $granted = $a->answer;
	my $took = time - $began;

	last unless $granted =~ /^\d+$/;
	$most = $granted - $last if $granted - $last > $most;
	$longest = $took if $took > $longest;
	$a->ask_it("SELECT dlock_release('busy', $granted)");
}
note sprintf('longest wait %.3f s, most versions in between %d', $longest, $most);
cmp_ok($most, '<=', 9, 'a writer waits for no reader that came after it');
cmp_ok($longest, '<', 5, 'and not for long');
$readers->signal('TERM');
$readers->finish;
unlike($err, qr/ERROR/, 'no reader failed');

close_clients($now, $a, $b, $c, $d, $e);
DlockWait::close_monitors();
$node->stop;
done_testing();
