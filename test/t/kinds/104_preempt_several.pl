# Priority where several hold a key: a request for the whole key asks all lower holders to yield,
# each by its own cleanup; one for a place of a full semaphore asks the lowest, youngest holder.
# And session locks of several places.

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

my $node = new_node('preempt_several', conf => "deadlock_timeout = 60s\n");
my $now = client($node, 'now');
my $ear = client($node, 'ear');
my ($one, $two, $three) = map { client($node, $_) } qw(a b c);

$ear->ask_it('LISTEN dlock');

my $key = 'k00';
sub fresh { $key++; return; }

# A holder of a place, by default with a cleanup of one hour.
sub hold
{
	my (%params) = @_;
	my $kind = $params{slots} ? "slots => $params{slots}" : 'shared => true';
	my $priority = $params{priority} // 0;
	my $cleanup = $params{cleanup} // '1h';
	my $owner = $params{owner} ? ", owner => '$params{owner}'" : '';
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $version = $now->ask_it(
		"SELECT dlock_acquire('$key', '2h', $kind, priority => $priority, cleanup => '$cleanup'$owner)");

	like($version, qr/^\d+$/, 'held');
	return $version;
}

sub acquire { my ($args) = @_; return acquire_sql($key, $args); }
sub asks { my ($client, $args) = @_; return asks_for($node, $client, $key, $args); }

# What the holders hear, in the order of the versions.
sub states
{
	return join(' ', map { $now->ask_it("SELECT dlock_check('$key', $_)") } @_);
}

sub give
{
	return join(' ', map { $now->ask_it("SELECT dlock_release('$key', $_)") } @_);
}

# The versions that the listener has heard an event of.
sub heard
{
	my ($event) = @_;

	$ear->{heard} .= $ear->ask_it('SELECT 1') . "\n";
	my %heard = map { $_ => 1 } $ear->{heard} =~ /"event": "$event", "key": "$key", "version": (\d+)/g;
	return join(' ', sort { $a <=> $b } keys %heard);
}

sub until_heard
{
	my ($event, @versions) = @_;

	wait_until("event $event of @versions", sub { return heard($event) eq join(' ', sort { $a <=> $b } @versions) });
	pass("event $event of all, and of no others");
	return;
}

#
# The whole key
#

# All lower ones are asked, and all of them have to go.
fresh();
my @v = (hold(), hold(priority => 1), hold(priority => 1));
asks($one, "priority => 2, wait => '1h'");
until_sql($node, "SELECT string_agg(state, ' ' ORDER BY version) FROM dlock_locks WHERE key = '$key'", 'preempting preempting preempting',
	'all are asked, the view says');
is(states(@v), 'preempting preempting preempting', 'and so does the check');
until_heard('preempt', @v);
is(give(@v[ 0, 1 ]), 'released released', 'two yield');
until_queue($node, $key, 'a', 'that is not enough');
is(give($v[2]), 'released', 'the last one yields');
my $taken = $one->answer;
cmp_ok($taken, '>', $v[2], 'the requester has the key');
is(give($taken), 'released', 'and gives it back');
is(heard('forced'), '', 'nobody lost it');

# One that is not lower keeps it from the others, too, and then nobody is asked.
fresh();
@v = (hold(), hold(priority => 2));
asks($one, "priority => 2, wait => '1h'");
is(states(@v), 'held held', 'one of the holders is as high: nobody is asked');
is(give($v[1]), 'released', 'it goes');
until_sql($node, "SELECT state FROM dlock_locks WHERE key = '$key'", 'preempting', 'then the other one is asked');
is(give($v[0]), 'released', 'and goes');
$taken = $one->answer;
cmp_ok($taken, '>', $v[1], 'the requester has the key');
give($taken);

# Each has its own time.  With force, those whose time is up first wait for the others.
fresh();
@v = (hold(cleanup => '300ms'), hold(cleanup => '900ms'), hold(cleanup => '0'));
my $began = time;
$one->start(acquire("priority => 1, wait => '1h', force => true"));
until_sql($node, "SELECT string_agg(state, ' ' ORDER BY version) FROM dlock_locks WHERE key = '$key'", 'preempting preempting preempting',
	'one without cleanup is asked, too, as long as others have time');
$taken = $one->answer;
cmp_ok(time - $began, '>=', 0.9, 'the longest cleanup counts');
cmp_ok($taken, '>', $v[2], 'taken by force');
is(states(@v), 'held_by_other held_by_other held_by_other', 'all have lost it');
until_heard('forced', @v);
give($taken);

# Without force: one that does not yield in time is enough to be refused, and all keep it.
fresh();
@v = (hold(cleanup => '300ms'), hold());
is($one->ask_it(acquire("priority => 1, wait => '1h'")), 'ERROR 55P03', 'refused');
is(states(@v), 'held held', 'both keep it');
give(@v);

# Its own wait ends first.
fresh();
@v = (hold(), hold());
is($one->ask_it(acquire("priority => 1, wait => '200ms'")), 'ERROR 55P03', 'refused when its own wait is over');
cmp_ok($one->ask_it(acquire("priority => 1, wait => '200ms', force => true")), '>', $v[1], 'or, with force, granted then');
is(states(@v), 'held_by_other held_by_other', 'both have lost it');
$now->ask_it("SELECT dlock_force_release('$key', 'next')");

# One that is fenced is asked, and is not taken before the fence ends.
fresh();
@v = (hold(cleanup => '200ms'), hold(cleanup => '0'));
$two->ask_it("BEGIN; SELECT dlock_fence('$key', $v[1])");
asks($one, "priority => 1, wait => '1h', force => true");
$now->ask_it('SELECT pg_sleep(0.4)');
until_queue($node, $key, 'a', 'a fence keeps the key');
my $readers = $three->ask_it("SELECT dlock_acquire('$key', '1h', shared => true, priority => 1)");
is($readers, '', 'an equal reader waits behind it');
$two->ask_it('COMMIT');
$taken = $one->answer;
cmp_ok($taken, '>', $v[1], 'when the fence has gone, it is taken');
give($taken);

# A try that meets a fenced reader is busy, leaves nothing behind, and is in nobody's way.
fresh();
@v = (hold(cleanup => '0'));
$two->ask_it("BEGIN; SELECT dlock_fence('$key', $v[0])");
is($one->ask_it('BEGIN; ' . acquire('priority => 1')), '', 'a try is busy');
is($one->ask_it('SELECT pg_current_xact_id_if_assigned()'), '', 'it has written nothing');
like($three->ask_it("SELECT dlock_acquire('$key', '1h', shared => true)"), qr/^\d+$/, 'and keeps no reader out');
$one->ask_it('COMMIT');
$two->ask_it('COMMIT');
$now->ask_it("SELECT dlock_force_release('$key', 'next')");

# A still higher request replaces the one that has asked.
fresh();
@v = (hold(), hold());
asks($one, "priority => 1, wait => '1h'");
until_sql($node, "SELECT DISTINCT requestor_priority FROM dlock_locks WHERE key = '$key'", '1', 'the first one asks');
asks($two, "priority => 2, wait => '1h'");
until_sql($node, "SELECT DISTINCT requestor_priority FROM dlock_locks WHERE key = '$key'", '2', 'a higher one asks instead');
give(@v);
$taken = $two->answer;
cmp_ok($taken, '>', $v[1], 'it has the key');
give($taken);
$taken = $one->answer;
cmp_ok($taken, '>', $v[1], 'then the first one');
give($taken);

# An upgrade does not ask itself.
fresh();
@v = (hold(owner => 'me'), hold());
asks($one, "owner => 'me', priority => 1, wait => '1h'");
until_sql($node, "SELECT string_agg(state, ' ' ORDER BY version) FROM dlock_locks WHERE key = '$key'", 'held preempting', 'only the other one is asked');
is(states(@v), 'held preempting', 'as the check says');
is(give($v[1]), 'released', 'it yields');
$taken = $one->answer;
cmp_ok($taken, '>', $v[1], 'upgraded');
is(states($v[0]), 'held_by_other', 'the place has gone');
is(heard('forced'), '', 'and nobody lost anything');
give($taken);

# A reader that wants the key of a lower writer asks it.
fresh();
@v = (hold(slots => 1));
asks($one, "shared => true, priority => 1, wait => '1h'");
until_heard('preempt', @v);
give(@v);
$taken = $one->answer;
cmp_ok($taken, '>', $v[0], 'a reader preempts a writer');
give($taken);

#
# One of several places
#

fresh();
@v = (hold(slots => 4, priority => 1), hold(slots => 4), hold(slots => 4), hold(slots => 4, priority => 2));
asks($one, "slots => 4, priority => 2, wait => '1h'");
until_sql($node, "SELECT string_agg(state, ' ' ORDER BY version) FROM dlock_locks WHERE key = '$key'", 'held held preempting held',
	'the lowest, youngest one is asked');
until_heard('preempt', $v[2]);
# any that goes makes room
is(give($v[0]), 'released', 'another one goes');
$taken = $one->answer;
cmp_ok($taken, '>', $v[3], 'the requester has a place');
is(states(@v[ 1 .. 3 ]), 'held held held', 'the one that was asked keeps it');
give(@v[ 1 .. 3 ], $taken);

# By force, and no other loses it.
fresh();
@v = (hold(slots => 2, cleanup => '200ms'), hold(slots => 2, cleanup => '200ms'));
is($one->ask_it(acquire("slots => 2, priority => 1, wait => '1h'")), 'ERROR 55P03', 'without force it is refused');
is(states(@v), 'held held', 'both keep it');
$taken = $one->ask_it(acquire("slots => 2, priority => 1, wait => '1h', force => true"));
cmp_ok($taken, '>', $v[1], 'with force it has the place of the youngest');
is(states(@v), 'held held_by_other', 'and no other');
until_heard('forced', $v[1]);
give($v[0], $taken);

# A lower number asks as many as it takes.
fresh();
@v = map { hold(slots => 5) } 1 .. 5;
asks($one, "slots => 2, priority => 1, wait => '1h'");
until_sql($node, "SELECT string_agg(state, ' ' ORDER BY version) FROM dlock_locks WHERE key = '$key'",
	'held preempting preempting preempting preempting', 'all but one are asked');
give(@v[ 1 .. 3 ]);
until_queue($node, $key, 'a', 'three are not enough');
give($v[4]);
$taken = $one->answer;
cmp_ok($taken, '>', $v[4], 'four are');
give($v[0], $taken);

#
# Sessions with several places
#

fresh();
my $holder = client($node, 'holder');
my @mine = map { $holder->ask_it("SELECT dlock_acquire('$key', '1h', slots => 3, session => true)") } 1, 2;
my $other = hold(slots => 3);
is($now->ask_it("SELECT count(*) FROM dlock_locks WHERE key = '$key' AND pid = $holder->{pid}"), 2, 'a session has two places');
is($holder->ask_it("SELECT dlock_release('$key', $mine[0])"), 'released', 'it gives one back');
is($holder->ask_it("SELECT dlock_check('$key', $mine[1])"), 'held', 'and has the other');
push @mine, $holder->ask_it("SELECT dlock_acquire('$key', '1h', slots => 3, session => true, owner => 'me')");
asks($one, "wait => '1h'");
$holder->vanish;
until_gone($node, $holder->{pid});
until_queue($node, $key, 'a');
is($now->ask_it("SELECT string_agg(version::text, ' ') FROM dlock_locks WHERE key = '$key'"), $other,
	'with the connection its places go, and no other');
give($other);
$taken = $one->answer;
cmp_ok($taken, '>', $other, 'then the next one has the key');
give($taken);

# A place with a delay cools when its session goes, and keeps the others out for that long.
fresh();
$holder = client($node, 'holder');
$holder->ask_it("SELECT dlock_acquire('$key', '1h', shared => true, session => true, delay => '1h')");
$holder->ask_it("SELECT dlock_acquire('$key', '1h', shared => true, session => true)");
$holder->leave;
until_gone($node, $holder->{pid});
until_sql($node, "SELECT string_agg(state, ' ') FROM dlock_locks WHERE key = '$key'", 'cooling', 'one cools, the other is gone');
is($one->ask_it(acquire('priority => 9')), '', 'it keeps a writer out');
like($one->ask_it(acquire('shared => true')), qr/^\d+$/, 'but no reader');
$now->ask_it("SELECT dlock_force_release('$key', 'done')");
like($one->ask_it(acquire('priority => 9')), qr/^\d+$/, 'until it is ended');

# The same for a head, killed hard: nobody says goodbye.
fresh();
$holder = client($node, 'holder');
my $gone = $holder->ask_it("SELECT dlock_acquire('$key', '1h', session => true, delay => '1h')");
$node->safe_psql('postgres', "SELECT pg_terminate_backend($holder->{pid})");
until_gone($node, $holder->{pid});
$holder->lost;
until_sql($node, "SELECT state FROM dlock_locks WHERE key = '$key'", 'cooling', 'it cools');
is($one->ask_it("SELECT remaining > '59 min' FROM dlock_locks WHERE key = '$key'"), 't', 'for its delay');
is($one->ask_it("SELECT dlock_check('$key', $gone)"), 'not_held', 'nobody holds it');

close_clients($now, $ear, $one, $two, $three);
DlockWait::close_monitors();
$node->stop;
done_testing();
