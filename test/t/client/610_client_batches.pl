# libdlock: many threads and many waits on one handle.  They share a few
# connections, and none of them suffers from another one's error or wait.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockClient;
use DlockTest;

client_build('tests');

my $node = new_node('batches', conf => "max_connections = 60\nlog_connections = on\n");

$node->safe_psql('postgres', "CREATE ROLE app LOGIN; SELECT dlock_policy('denied', 'app', false)");

# A client of its own name, so that the log tells its connections from others.
sub named
{
	my ($name, %more) = @_;

	return driver(conninfo($node, more => "user=app application_name=$name"), %more);
}

sub connections
{
	my ($name) = @_;
	my @found = slurp_file($node->logfile) =~ /connection authorized: .*application_name=\Q$name\E$/mg;

	return scalar @found;
}

sub waiting
{
	my ($count) = @_;

	$node->poll_query_until('postgres', "SELECT count(*) = $count FROM dlock_waiters") or die "there are not $count that wait";
	return;
}

# Release it, and forget it, because a driver knows its locks by their keys.
sub give_back
{
	my ($driver, $key, %options) = @_;
	my $status = $driver->ask('release', $key, %options)->{status};

	$driver->ask('free', $key);
	return $status;
}

my $holder = named('holder');
is($holder->ask('acquire', 'held', ttl => 600000)->{status}, 'ok', 'one key is held by another client');

#
# Threads: calls of all kinds, some of which fail
#

my $a = named('threads');
is($a->ask('flights', 'some', threads => 64, count => 6, ttl => 60000)->{bad}, 0,
	'64 threads: each gets the answer to its own call');
cmp_ok(connections('threads'), '<=', 4, 'on at most 4 connections');
is($a->ask('queue', 'one', threads => 64, count => 2, ttl => 60000, wait => 170000)->{counter}, 128, '64 threads wait for one key, and all get it');
cmp_ok(connections('threads'), '<=', 4, 'on at most 4 connections');

# a row that an open transaction is using holds up its own call alone
my $psql = session($node);
is($a->ask('acquire', 'row', ttl => 600000)->{status}, 'ok', 'acquired');
ask($psql, 'BEGIN');
like(ask($psql, "SELECT dlock_force_release('row', 'test')"), qr/^\d+$/, 'its row is in use');
$a->send('blocked', 'row', threads => 16, count => 5, ttl => 60000);
$a->event('done', 'beside');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'threads' AND wait_event_type = 'Lock'"),
	1, 'the others are done while the release waits');
ask($psql, 'ROLLBACK');
is($a->answer->{bad}, 0, 'and then it is released');
cmp_ok(connections('threads'), '<=', 4, 'on at most 4 connections');

#
# What needs no flush does not wait for what does
#

my $alone = new_node('alone', streaming => 1);

sub require_standby
{
	my ($names) = @_;

	$alone->safe_psql('postgres', "SET synchronous_commit = local; ALTER SYSTEM SET synchronous_standby_names = '$names'");
	$alone->reload;
	return;
}

my $unconfirmed = "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'unconfirmed' AND wait_event = 'SyncRep'";
my $u = driver(conninfo($alone, more => 'application_name=unconfirmed'));
is($u->ask('acquire', $_, ttl => 600000)->{status}, 'ok', "acquired $_") for 'first', 'next';
require_standby('nobody');
$alone->poll_query_until('postgres', "SELECT status = 'problem' FROM dlock_health() WHERE name = 'standbys'") or die 'no standby is required';
is($u->ask('begin', 'unconfirmed', ttl => 600000, timeout => 170000)->{bad}, 0, 'a thread acquires a key');
$alone->poll_query_until('postgres', $unconfirmed) or die 'the acquire does not wait';
is($u->ask('check', $_)->{status}, 'ok', "no standby confirms that, but $_ is checked") for 'first', 'next';
is(give_back($u, $_), 'ok', "and $_ is released") for 'first', 'next';
is($alone->safe_psql('postgres', $unconfirmed), 't', 'while the acquire waits');
require_standby('');
is($u->ask('end', '')->{bad}, 0, 'the acquire continues when it need not be confirmed');

# the same, in one thread with an event loop
is($u->ask('keep', 'kept %', count => 4, ttl => 600000)->{bad}, 0, 'an event loop: locks are acquired');
require_standby('nobody');
$alone->poll_query_until('postgres', "SELECT status = 'problem' FROM dlock_health() WHERE name = 'standbys'") or die 'no standby is required';
is($u->ask('start_one', 'not confirmed', ttl => 600000, timeout => 170000)->{bad}, 0, 'an event loop: another acquire');
$alone->poll_query_until('postgres', $unconfirmed) or die 'the acquire does not wait';
is($u->ask('give_beside', '')->{bad}, 0, 'no standby confirms that, but the locks are released one by one');
is($alone->safe_psql('postgres', $unconfirmed), 't', 'while the acquire waits');
require_standby('');
is($u->ask('settle', '')->{counter}, 5, 'an event loop: the acquire continues, and is released');
$alone->stop;

#
# The bound: with two connections there is none for a call that waits
#

my $b = named('two', open => { connections => 2 });
is($b->ask('acquire', 'row', ttl => 600000)->{status}, 'ok', 'two connections: acquired');
ask($psql, 'BEGIN');
ask($psql, "SELECT dlock_force_release('row', 'test')");
$b->send('blocked', 'row', threads => 16, count => 5, ttl => 60000);
$b->event('done', 'beside');
ask($psql, 'ROLLBACK');
is($b->answer->{bad}, 0, 'two connections: the others do not wait for a row');
$b->send('watch', 'watched', version => 0, wait => 170000);
my $version = $holder->ask('acquire', 'watched', ttl => 600000)->{version};
is($b->answer->{version}, $version, 'two connections: watch');
$b->send('all', 'watched,x', wait => 170000, ttl => 600000);
is(give_back($holder, 'watched'), 'ok', 'released');
is($b->answer->{status}, 'ok', 'two connections: several locks, with a wait');
is($b->ask('release_all', 'watched,x')->{status}, 'ok', 'two connections: several are released');
cmp_ok(connections('two'), '<=', 2, 'on two connections');
is(driver(undef)->ask('open', conninfo($node), connections => 1)->{status}, 'invalid', 'one is not enough');

#
# Waits take no connection, and none from the renewals
#

my $c = named('waits');
is($c->ask('acquire', 'renewed', ttl => 3000, renew => 1)->{status}, 'ok', 'a lock that is renewed');
$c->send('started', 'held', count => 500, ttl => 60000, wait => 170000);
waiting(500);
$node->poll_query_until('postgres', "SELECT refreshed_at - acquired_at > '4 s' FROM dlock_locks WHERE key = 'renewed'")
  or die 'it is not renewed';
cmp_ok(connections('waits'), '<=', 4, '500 waits on at most 4 connections');
is(give_back($holder, 'held'), 'ok', 'released');
my $answer = $c->answer;
is("$answer->{bad} $answer->{counter}", '0 500', 'all of them get it');
is($c->ask('state', 'renewed')->{owner}, 1, 'and the other lock is still ours');
is($c->events, '', 'nothing was lost');
$answer = $c->ask('started', 'many%', count => 3000, ttl => 60000);
is("$answer->{bad} $answer->{counter}", '0 3000', 'one thread acquires and releases 3000 keys');

# what is not wanted any more leaves the queue
is($holder->ask('acquire', 'held', ttl => 600000)->{status}, 'ok', 'held again');
is($c->ask('cancelled', 'held', count => 100, ttl => 60000, wait => -1)->{bad}, 0, 'cancelled');
$c->send('closed', 'held', count => 100, ttl => 60000, wait => -1);
is($c->answer->{bad}, 0, 'closed while calls are under way');
waiting(0);
is($node->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key LIKE 'many%'"), 0, 'nothing is left');

#
# How a wait ends
#

my $d = named('ends');
$answer = $d->ask('acquire', 'held', wait => 300);
is($answer->{status}, 'busy', 'the time is over: busy');
waiting(0);
$holder->ask('acquire', 'yield', ttl => 600000, cleanup => 300);
$answer = $d->ask('acquire', 'yield', wait => 170000, priority => 1);
is("$answer->{status} $answer->{sqlstate}", 'refused 55P03', 'the holder does not yield: refused');
$d->send('acquire', 'held 2', wait => 170000, ttl => 600000) if $holder->ask('acquire', 'held 2', ttl => 600000)->{status} eq 'ok';
waiting(1);
$node->safe_psql('postgres', "SELECT dlock_policy('held 2', 'app', false)");
give_back($holder, 'held 2');
$answer = $d->answer;
is("$answer->{status} $answer->{sqlstate}", 'denied 42501', 'a policy denies it when its turn comes: denied');

# forged events: nothing comes of them
$d->send('acquire', 'held', wait => 170000, ttl => 600000);
waiting(1);
$node->safe_psql('postgres', <<'END');
SELECT pg_notify('dlock', json_build_object('event', e, 'key', key, 'ticket', ticket, 'version', 1, 'code', 'XX000', 'reason', n)::text)
FROM dlock_waiters, unnest(ARRAY['granted', 'missed']) AS e, generate_series(1, 100) AS n
END
waiting(1);
is(give_back($holder, 'held'), 'ok', 'released');
is($d->answer->{status}, 'ok', 'and it is granted');
is(give_back($d, 'held'), 'ok', 'and released');

# a client that is gone when its turn comes delays the next one for a moment
is($holder->ask('acquire', 'held', ttl => 600000)->{status}, 'ok', 'held');
my $gone = named('gone');
$gone->send('acquire', 'held', wait => -1, ttl => 600000);
waiting(1);
$d->send('acquire', 'held', wait => 170000, ttl => 600000);
waiting(2);
$gone->signal('KILL');
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'gone'") or die 'it is not gone';
is(give_back($holder, 'held'), 'ok', 'released');
is($d->answer->{status}, 'ok', 'the next one gets it');

# A client that stood still finds its connection closed by the first statement that it sends: the
# question about its ticket.  It also has a request without an answer, which it wants to take back.
my $still = named('still', open => { timeout => 6000 });
is($holder->ask('acquire', 'still', ttl => 600000)->{status}, 'ok', 'held');
is($still->ask('acquire', 'still', ttl => 60000)->{status}, 'busy', 'busy');
my @sessions = split ' ', $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE application_name = 'still'");
kill 'STOP', @sessions;
is($still->ask('acquire', 'still', ttl => 60000, timeout => 300)->{status}, 'timeout', 'no answer');
kill 'CONT', @sessions;
$still->send('acquire', 'still', wait => 170000, ttl => 600000);
waiting(1);
my $since = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
$still->signal('STOP');
$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'still'");
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'still'") or die 'its sessions do not end';
$node->poll_query_until('postgres', "SELECT clock_timestamp() - '$since' > '3.5 s'") or die 'the time does not pass';
$still->signal('CONT');
is(give_back($holder, 'still'), 'ok', 'released');
is($still->answer->{status}, 'ok', 'a client that stood still gets it');
is(give_back($still, 'still'), 'ok', 'and gives it back');

# a server that crashes forgets the queue, and the client asks again
is($holder->ask('acquire', 'crash', ttl => 600000)->{status}, 'ok', 'held');
$b->send('acquire', 'crash', wait => 170000, timeout => 100000);
waiting(1);
$node->stop('immediate');
$node->start;
waiting(1);
is(give_back($holder, 'crash', timeout => 100000), 'ok', 'released after a crash');
is($b->answer->{status}, 'ok', 'the one that waited gets it');

end_session($psql);
is($_->finish, '', 'nothing was printed') foreach $a, $b, $c, $d, $still, $holder;
$node->stop;
done_testing();
