# libdlock: every function, and its errors.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockClient;
use DlockTest;
use DlockWait;

client_build();

my $node = new_node('client');
$node->safe_psql(
	'postgres', q{
CREATE ROLE plain LOGIN;
CREATE DATABASE elsewhere;
CREATE DATABASE bare;});
$node->safe_psql('elsewhere', 'CREATE SCHEMA "My Locks"; CREATE EXTENSION dlock SCHEMA "My Locks"');

my $a = driver(conninfo($node));
my $b = driver(conninfo($node));
is($a->ask('ping')->{status}, 'ok', 'the server is there');

#
# Acquire, release
#

my $lock = $a->ask('acquire', 'k');
is($lock->{status}, 'ok', 'acquired');
is($lock->{ttl}, 20000, 'with the TTL of the server');
like($lock->{owner}, qr/^[0-9a-f]{32}$/, 'an owner was made up');
cmp_ok($lock->{left}, '<=', 18000, 'ours for nine tenths of it');
cmp_ok($lock->{left}, '>', 10000, 'not less');
is($node->safe_psql('postgres', "SELECT dlock_check('k', $lock->{version}, '$lock->{owner}')"),
	'held', 'and the server agrees');
is($a->ask('state', 'k')->{owner}, 1, 'is owner');
is($a->ask('check', 'k')->{status}, 'ok', 'checked');
is($a->ask('check_key', 'k', version => $lock->{version})->{status}, 'ok', 'checked by version');
is($b->ask('check_key', 'k', owner => $lock->{owner})->{status}, 'ok', 'checked by owner, by another client');
is($b->ask('check_key', 'k', owner => 'x')->{status}, 'held_by_other', 'by another owner');
is($b->ask('check_key', 'none', version => 1)->{status}, 'not_held', 'of another key');
is($b->ask('acquire', 'k')->{status}, 'busy', 'a try of another is busy');
my $busy = $b->ask('acquire', 'k', wait => 200);
is($busy->{status}, 'busy', 'a wait that is over is busy');
cmp_ok($busy->{ms}, '>=', 200, 'after its time');
is($a->ask('acquire', 'k')->{status}, 'busy', 'busy for the same handle too: each request has its owner');
is($a->ask('release', 'k')->{status}, 'ok', 'released');
is($a->ask('state', 'k')->{owner}, 0, 'is not the owner any more');
is($a->ask('release', 'k')->{status}, 'not_held', 'twice');
is($a->ask('check', 'k')->{status}, 'not_held', 'checked');
is($a->ask('refresh', 'k')->{status}, 'not_held', 'not to be refreshed');
is($a->ask('free', 'k')->{status}, 'ok', 'freed');

# Waiting
$lock = $a->ask('acquire', 'k', value => 'v1', ttl => 60000, priority => 3, cleanup => 1000);
$b->send('acquire', 'k', wait => 60000, priority => 2);
until_sql($node, "SELECT owner IS NOT NULL FROM dlock_waiters WHERE key = 'k'", 't', 'b waits');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND backend_type = 'client backend'"),
	'0', 'without a connection that waits');
my $waiters = $a->ask('waiters', '*');
is( join(' ', map { "$_=" . $waiters->{$_} } qw(status count first pid ticket priority position watches since until)),
	'status=ok count=1 first=k pid=0 ticket=1 priority=2 position=1 watches=0 since=1 until=1',
	'the queue');
is($a->ask('waiters', 'other*')->{count}, 0, 'by pattern');
is($a->ask('release', 'k')->{status}, 'ok', 'released');
my $next = $b->answer;
is($next->{status}, 'ok', 'the waiter has it');
cmp_ok($next->{version}, '>', $lock->{version}, 'with a higher version');
$a->ask('free', 'k');

# Info
is($a->ask('acquire', 'i', value => 'some_value', ttl => 60000, owner => 'me', priority => 7)->{status}, 'ok', 'acquired');
my $info = $b->ask('info', 'i');
is( join(' ', map { "$_=" . $info->{$_} } qw(status key info_owner value state priority ttl expires_in pid requestor)),
	'status=ok key=i info_owner=me value=some_value state=held priority=7 ttl=60000 expires_in=60000 pid=0 requestor=0/-/0/0',
	'info');
is($b->ask('info', 'none')->{status}, 'not_held', 'of a free key');
is($b->ask('list', '*')->{count}, 2, 'list');
is($b->ask('list', 'i*')->{first}, 'i', 'by pattern');
is($b->ask('list', '*', limit => 1)->{count}, 1, 'with a limit');

# By name
is($b->ask('refresh_key', 'i', owner => 'me', ttl => 90000)->{status}, 'ok', 'refreshed by owner');
is($b->ask('info', 'i')->{ttl}, 90000, 'with a new TTL');
is($b->ask('refresh_key', 'i', owner => 'you')->{status}, 'lost', 'not by another');
is($b->ask('release_key', 'i', owner => 'you')->{status}, 'held_by_other', 'and not released');
is($b->ask('release_key', 'i', owner => 'me')->{status}, 'ok', 'released by owner');
is($b->ask('release_key', 'i', owner => 'me')->{status}, 'not_held', 'twice');
is($a->ask('release', 'i')->{status}, 'not_held', 'so its holder has lost it');
is($a->ask('state', 'i')->{owner}, 0, 'and it knows');
$a->ask('free', 'i');

# Refresh
$lock = $a->ask('acquire', 'r', ttl => 60000);
is($a->ask('refresh', 'r')->{status}, 'ok', 'refreshed');
is($a->ask('refresh', 'r', ttl => 120000)->{status}, 'ok', 'for longer');
cmp_ok($a->ask('state', 'r')->{left}, '>', 60000, 'it is');
is($a->ask('refresh', 'r', ttl => 30000)->{status}, 'ok', 'for shorter');
cmp_ok($a->ask('state', 'r')->{left}, '<=', 27000, 'it is');
$node->safe_psql('postgres', "SELECT dlock_force_release('r', 'test')");
is($a->ask('refresh', 'r')->{status}, 'lost', 'lost');
is($a->ask('state', 'r')->{owner}, 0, 'for ever');
is($a->event('lost', 'r')->{version}, $lock->{version}, 'and the event comes');
is($a->ask('check', 'r')->{status}, 'lost', 'lost');
$node->safe_psql('postgres', "SELECT dlock_acquire('r', owner => '$lock->{owner}')");
is($a->ask('refresh', 'r')->{status}, 'lost', 'even if the owner has it again');
is($a->events, '', 'no second event');
$a->ask('free', 'r');

# What a policy leaves of a lease is all that the client counts on.
$node->safe_psql('postgres', "SELECT dlock_policy('max', NULL, max_hold => '1h')");
is($a->ask('acquire', 'max', ttl => 3_600_000)->{status}, 'ok', 'acquired for the longest time');
cmp_ok($a->ask('state', 'max')->{left}, '>', 3_000_000, 'all of which is ours');
$node->safe_psql('postgres', "UPDATE dlock.locks SET acquired_at = acquired_at - interval '59min' WHERE key = 'max'");
is($a->ask('refresh', 'max')->{status}, 'ok', 'refreshed');
cmp_ok($a->ask('state', 'max')->{left}, '<=', 54_000, 'until the end that the policy sets');
$node->safe_psql('postgres', "UPDATE dlock.locks SET acquired_at = acquired_at - interval '1min' WHERE key = 'max'");
is($a->ask('refresh', 'max')->{status}, 'lost', 'and not beyond');
is($a->event('lost', 'max')->{reason}, 'expired', 'which the program is told');
$a->ask('free', 'max');
$node->safe_psql('postgres', "SELECT dlock_force_release('max', 'test'), dlock_policy_drop('max', NULL)");

# A lock is renewed, whatever its TTL
$lock = $a->ask('default', 'renewed', ttl => 300);
until_sql($node, "SELECT count(*) FROM dlock_locks WHERE key = 'renewed' AND refreshed_at > acquired_at + interval '600 ms'", 1,
	'with a TTL, it is renewed');
is($a->ask('release_free', 'renewed')->{status}, 'ok', 'released and freed');
is($a->ask('release_free', 'renewed')->{what}, 'release_free', 'and forgotten');

# The fence, on a connection of the program
foreach my $db ('postgres', 'elsewhere')
{
	my $d = $db eq 'postgres' ? $a : driver(conninfo($node, dbname => $db));
	my $to = conninfo($node, dbname => $db) =~ s/\s+$//r;

	$d->ask('acquire', "it's \"f\"", ttl => 600000);
	my $fence = $d->ask('fence', "it's \"f\"", owner => $to);
	is("$fence->{status} $fence->{transaction}", 'ok 2', "$db: the fence passes");
	$fence = $d->ask('fence', "it's \"f\"", owner => $to, alone => 1);
	is($fence->{status}, 'invalid', "$db: not in autocommit");
	like($fence->{message}, qr/protects nothing outside a transaction block/, "$db: which says why");
	$node->safe_psql($db, q{SET search_path = "My Locks", public; SELECT dlock_force_release('it''s "f"', 'test')});
	$fence = $d->ask('fence', "it's \"f\"", owner => $to);
	is("$fence->{status} $fence->{sqlstate} $fence->{transaction}", 'lost LK001 3', "$db: the fence rejects");
	my $elsewhere = $d->ask('fence', "it's \"f\"", owner => conninfo($node, dbname => 'bare') =~ s/\s+$//r);
	like("$elsewhere->{status} $elsewhere->{message}", qr/^not_ready extension "dlock" is not installed in database "bare"/, "$db: not in another database");
	$d->ask('free', "it's \"f\"");
}

# The fence of a whole connection of the program
$node->safe_psql('postgres', 'CREATE TABLE journal (what text)');
{
	my $to = conninfo($node) =~ s/\s+$//r;
	my $key = 'a "key": 17 \\';

	is($a->ask('acquire', $key, ttl => 600000)->{status}, 'ok', 'a lock');
	my $fence = $a->ask('fence_connection', $key, owner => $to);
	is("$fence->{status} $fence->{written}", 'ok yes', 'what its connection writes is committed');
	$node->safe_psql('postgres', qq{SELECT dlock_force_release(key, 'test') FROM dlock_locks WHERE key LIKE 'a "key"%'});
	$fence = $a->ask('fence_connection', $key, owner => $to);
	is("$fence->{status} $fence->{written}", 'ok LK001', 'while it is ours');
	$fence = $a->ask('fence_connection', $key, owner => $to, off => 1);
	is("$fence->{status} $fence->{written}", 'ok yes', 'or the fence is taken off');
	$a->ask('free', $key);
}

# Held for at most so long: told in time, then lost
$lock = $a->ask('acquire', 'held', ttl => 5000, renew => 1, max_hold => 5000);
is($lock->{status}, 'ok', 'acquired with max_hold');
my $told = $a->event('preempted', 'held');
is($told->{reason}, 'max_hold', 'the program is told to release it');
is($told->{owner}, 1, 'while it is ours');
is($a->ask('refresh', 'held', ttl => 60000)->{status}, 'ok', 'a refresh of its own succeeds');
cmp_ok($a->ask('state', 'held')->{left}, '<=', 5000, 'but does not make it ours for longer');
is($a->event('lost', 'held')->{reason}, 'max_hold', 'and then it is lost');
$a->ask('free', 'held');
is($a->ask('acquire', 'held', ttl => 60000, max_hold => 1000)->{status}, 'invalid', 'max_hold below the TTL');
$node->safe_psql('postgres', "SELECT dlock_force_release('held', 'test')");

# Handover
$lock = $a->ask('acquire', 'blue', ttl => 600000, renew => 1);
is($a->ask('handover', 'blue')->{status}, 'invalid', 'a handover without a next owner');
is($a->ask('state', 'blue')->{owner}, 1, 'changes nothing');
my $green = $a->ask('handover', 'blue', owner => 'green', ttl => 300000);
is($green->{status}, 'ok', 'handed over');
cmp_ok($green->{version}, '>', $lock->{version}, 'with a new version');
is($a->ask('state', 'blue')->{owner}, 0, 'it is ours no more');
is($a->ask('release', 'blue')->{status}, 'not_held', 'so there is nothing to release');
is($a->ask('handover', 'blue', owner => 'red')->{status}, 'not_held', 'nor to hand over');
is($b->ask('adopt', 'blue', version => $green->{version}, owner => 'green')->{ttl}, 300000, 'the next one adopts it, with the new TTL');
is($b->ask('handover_key', 'blue', version => $lock->{version}, owner => 'red')->{status}, 'lost', 'the old version is worth nothing');
is($b->ask('handover_key', 'blue', version => $green->{version}, owner => 'red')->{status}, 'ok', 'the new one is');
is($b->ask('handover', 'blue', owner => 'late')->{status}, 'lost', 'once');
is($b->event('lost', 'blue')->{reason}, 'expired', 'and the program is told');
is($a->events, '', 'of what it has handed over it hears nothing');
$_->ask('free', 'blue') foreach $a, $b;
$a->ask('acquire', 'twice', reentrant => 1) foreach 1, 2;
is($a->ask('handover', 'twice', owner => 'x')->{status}, 'invalid', 'not of a lock that is acquired twice');
$a->ask('release_free', 'twice') foreach 1, 2;

# Rates
is($a->ask('limit', 'rate', n => 2, per => 3_600_000)->{status}, 'ok', "permit $_") foreach 1, 2;
my $used_up = $a->ask('limit', 'rate', n => 2, per => 3_600_000);
is($used_up->{status}, 'busy', 'the rate is used up');
cmp_ok($used_up->{again}, '>', 3_500_000, 'for the hour');
is($a->ask('limit', 'soon', per => 100)->{status}, 'ok', 'one in 100 ms');
is($a->ask('limit', 'soon', per => 100, wait => 60000)->{again}, 0, 'waited for');
is($a->ask('limit', 'rate', n => 0)->{status}, 'invalid', 'none at all is an error');

# A part of a millisecond is not "go ahead": who is told so has a permit.
$node->safe_psql('postgres', 'SELECT dlock_stats_reset()');
my $permits = grep { $a->ask('limit', 'fast', per => 10)->{status} eq 'ok' } 1 .. 500;
cmp_ok($permits, '>', 0, 'permits were given');
until_sql($node, 'SELECT grants FROM dlock_stats', $permits, 'and no more was said');

# Session locks
is($b->ask('acquire', 's', session => 1)->{status}, 'ok', 'a session lock');
is($a->ask('info', 's')->{pid}, 1, 'has a process');
is($b->ask('release', 's')->{status}, 'ok', 'released');
$b->ask('free', 's');
is($b->ask('acquire', 's', session => 1)->{status}, 'ok', 'again');
$b->ask('free', 's');
until_sql($node, "SELECT count(*) FROM dlock_locks WHERE key = 's'", 0, 'ends with its connection');
is($b->ask('acquire', 's', session => 1)->{status}, 'ok', 'again');
$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM dlock_locks WHERE key = 's'");
until_sql($node, "SELECT count(*) FROM dlock_locks WHERE key = 's'", 0, 'ends with its process');
is($b->ask('check', 's')->{status}, 'lost', 'and the client knows');
$b->ask('free', 's');

#
# Watch, elections
#

is($a->ask('watch', 'w', version => 0, wait => 0)->{status}, 'unchanged', 'nothing happens');
$a->send('watch', 'w', version => 0, wait => 60000);
until_sql($node, "SELECT count(*) FROM dlock_waiters WHERE key = 'w'", 1, 'a watches');
$lock = $b->ask('campaign', 'w', value => 'b');
is($lock->{status}, 'ok', 'b is elected');
is($a->answer->{version}, $lock->{version}, 'a sees it');
is($a->ask('observe', 'w')->{value}, 'b', 'and its name');
is($a->ask('observe', 'w', version => $lock->{version}, wait => 50)->{status}, 'unchanged', 'no other');
my $c = driver(conninfo($node));
$c->send('observe', 'w', version => $lock->{version});
$a->send('campaign', 'w', value => 'a');
until_sql($node, "SELECT count(*) FROM dlock_waiters WHERE key = 'w'", 2, 'a waits, c observes');
is($b->ask('resign', 'w')->{status}, 'ok', 'b resigns');
is($a->answer->{status}, 'ok', 'a is elected');
is($c->answer->{value}, 'a', 'c sees it');
is($a->ask('release', 'w')->{status}, 'ok', 'a resigns');
$a->ask('free', 'w');
$b->ask('free', 'w');

#
# Events
#

# asked to yield, and it yields
$lock = $a->ask('acquire', 'p', ttl => 600000, cleanup => 60000);
$b->send('acquire', 'p', wait => 50000, priority => 1, owner => 'urgent');
my $event = $a->event('preempted', 'p');
is($event->{version}, $lock->{version}, 'asked to yield');
cmp_ok($event->{left}, '<=', 50000, 'with the time that is left');
cmp_ok($event->{left}, '>', 10000, 'not less');
is($event->{owner}, 1, 'it is still ours');
is($a->ask('check', 'p')->{status}, 'preempting', 'checked');
$info = $c->ask('info', 'p');
is("$info->{state} $info->{requestor}", 'preempting 1/urgent/1/1', 'info shows the requestor');
is($a->ask('release', 'p')->{status}, 'ok', 'yields');
is($b->answer->{status}, 'ok', 'to the one that asked');
is($a->events, '', 'one event, and none after the release');
is($b->ask('release', 'p')->{status}, 'ok', 'released');
$_->ask('free', 'p') foreach $a, $b;

# asked, and it does not yield
$a->ask('acquire', 'q', ttl => 600000, cleanup => 60000);
is($b->ask('acquire', 'q', wait => 100, priority => 1)->{status}, 'refused', 'refused');
is($b->ask('acquire', 'q', wait => 100, priority => 1, force => 1)->{status}, 'ok', 'and by force');
is($a->event('lost', 'q')->{reason}, 'preempted', 'lost, for that reason') if $a->event('preempted', 'q');
is($a->ask('release', 'q')->{status}, 'held_by_other', 'it is another\'s');
$_->ask('free', 'q') foreach $a, $b;

# without notice
$a->ask('acquire', 'f', ttl => 600000);
is($b->ask('acquire', 'f', priority => 1)->{status}, 'ok', 'taken');
is($a->event('lost', 'f')->{reason}, 'forced', 'forced');
is($a->ask('acquire', 'g', ttl => 600000)->{status}, 'ok', 'held');
my $forced = $b->ask('force_release', 'g', reason => 'test');
is($forced->{status}, 'ok', 'an administrator takes it away');
is($forced->{version}, $a->event('lost', 'g')->{version}, 'and its holder is notified');
is($b->ask('force_release', 'g', reason => 'test')->{status}, 'not_held', 'it is free');
$_->ask('close') foreach $a, $b;
is($a->events, '', 'no more events');

#
# What a callback must not do
#

$a->ask('open', conninfo($node), nested => 1);
$a->ask('acquire', 'n', ttl => 600000);
$node->safe_psql('postgres', "SELECT dlock_force_release('n', 'test')");
is($a->event('lost', 'n')->{nested}, 'invalid', 'a callback that asks the server is told not to');
$a->ask('close');

#
# A lock that is in use does not delay the others
#

$a->ask('open', conninfo($node));
is($a->ask('many', 'u', count => 20, ttl => 4000, renew => 1)->{status}, 'ok', 'some locks');
my $psql = client($node, 'in use');
$psql->ask_it('BEGIN');
is($psql->ask_it("SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'u7'"), 'released', 'one is in use');
is($a->event('lost', 'u7')->{reason}, 'deadline', 'that one is lost by the clock');
is($a->ask('owned')->{count}, 19, 'the others are not');
is($a->ask('refresh', 'u8')->{status}, 'ok', 'not on the server either');
$psql->ask_it('ROLLBACK');
close_clients($psql);
$a->ask('close');

#
# Another schema
#

$a->ask('open', conninfo($node, dbname => 'elsewhere'));
is($a->ask('acquire', 'e', ttl => 900, renew => 1)->{status}, 'ok', 'the extension is in another schema');
is($a->ask('acquire', 'e', wait => 1000)->{status}, 'busy', 'and the lock is renewed');
is($a->ask('info', 'e')->{state}, 'held', 'info');
is($a->ask('release', 'e')->{status}, 'ok', 'released');
$a->ask('close');

#
# Errors
#

sub complains
{
	my ($what, $conninfo, $status, $message, %more) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $answer;

	$a->ask('open', $conninfo);
	$answer = $a->ask(@{ $more{command} // [ 'acquire', 'x', timeout => 60000 ] });
	is($answer->{status}, $status, "$what: $status");
	like($answer->{message}, $message, "$what: says so");
	is($answer->{sqlstate}, $more{sqlstate}, "$what: $more{sqlstate}") if $more{sqlstate};
	like($answer->{hint}, $more{hint}, "$what: says what to do") if $more{hint};
	$a->ask('close');
	return;
}

my $bad = $a->ask('open', 'nonsense=1');
is($bad->{status}, 'invalid', 'bad conninfo');
like($bad->{message}, qr/invalid connection option "nonsense"/, 'says what is wrong');
$bad = $a->ask('open', 'host=a,b,c port=1,2');
is($bad->{status}, 'invalid', 'hosts and ports');
like($bad->{message}, qr/could not match 2 port numbers to 3 hosts/, 'says what is wrong');

complains('no extension', conninfo($node, dbname => 'bare'),
	'not_ready', qr/extension "dlock" is not installed in database "bare"/, hint => qr/CREATE EXTENSION dlock/);
complains('no database', conninfo($node, dbname => 'none'), 'denied', qr/database "none" does not exist/, sqlstate => '3D000');
complains('no role', conninfo($node, more => 'user=nobody'), 'denied', qr/role "nobody" does not exist/, sqlstate => '28000');
complains(
	'no privilege', conninfo($node, more => 'user=plain'), 'denied', qr/permission denied for function dlock_force_release/,
	sqlstate => '42501',
	command => [ 'force_release', 'x', reason => 'why' ]);
complains('empty key', conninfo($node), 'invalid', qr/key/, command => [ 'acquire', '' ], sqlstate => '22023');
complains('TTL too long', conninfo($node), 'invalid', qr/ttl/, command => [ 'acquire', 'x', ttl => 90000000 ], sqlstate => '22023');
complains('negative priority', conninfo($node), 'invalid', qr/priority/, command => [ 'acquire', 'x', priority => -1 ], sqlstate => '22023');
complains('bad wait', conninfo($node), 'invalid', qr/wait_ms/, command => [ 'acquire', 'x', wait => -5 ]);
complains(
	'no server', 'host=' . PostgreSQL::Test::Utils::tempdir_short(), 'unreachable', qr/No such file or directory/,
	command => [ 'ping', '', timeout => 0 ]);
complains('no such host', 'host=no-such-host.invalid', 'unreachable', qr/could not translate host name "no-such-host.invalid"/,
	command => [ 'ping', '', timeout => 0 ]);

# a wrong password, and none
$node->safe_psql('postgres', "CREATE ROLE guarded LOGIN PASSWORD 'right'");
unlink $node->data_dir . '/pg_hba.conf';
$node->append_conf('pg_hba.conf', "local all guarded scram-sha-256\nlocal all all trust\n");
$node->reload;
complains('wrong password', conninfo($node, more => 'user=guarded password=wrong'),
	'denied', qr/password authentication failed for user "guarded"/, sqlstate => '28P01');
complains('no password', conninfo($node, more => 'user=guarded passfile=/nowhere/at/all'), 'denied', qr/no password supplied/);
$a->ask('open', conninfo($node, more => 'user=guarded password=right'));
is($a->ask('acquire', 'x')->{status}, 'ok', 'the right one');
$a->ask('close');

is($_->finish, '', 'nothing was printed') foreach $a, $b, $c;
DlockWait::close_monitors();

# without the preload
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
$a = driver(undef);
complains('no preload', conninfo($node), 'not_ready', qr/shared_preload_libraries/, sqlstate => '55000', hint => qr/shared_preload_libraries/);
complains('no preload', conninfo($node), 'not_ready', qr/shared_preload_libraries/, command => ['ping']);
is($a->finish, '', 'nothing was printed');
$node->stop;

done_testing();
