# libdlock: renewal, and what it reports when renewal fails.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use DlockClient;
use DlockTest;

client_build();

my $node = new_node('loss');

sub on_server
{
	my ($key) = @_;

	return $node->safe_psql('postgres', "SELECT version FROM dlock_locks WHERE key = '$key'");
}

#
# Renewal for ten TTLs of a lock that is renewed, and of none that is not
#

my $a = driver(conninfo($node));
my $b = driver(conninfo($node));
my $lock = $a->ask('acquire', 'long', ttl => 1500, renew => 1);
my $short = $a->ask('acquire', 'short', ttl => 1500);
my $start = time;
is($lock->{status}, 'ok', 'a lock with renewal');
is($short->{status}, 'ok', 'one without');
is($a->event('lost', 'short')->{reason}, 'deadline', 'that one is lost when its time is over');
cmp_ok(time - $start, '<', 15, 'long before the others are');
my $busy = $b->ask('acquire', 'long', wait => 15000);
is($busy->{status}, 'busy', 'ten TTLs later, the other one is still held');
cmp_ok(time - $start, '>=', 15, 'it was ten');
is(on_server('long'), $lock->{version}, 'with the same version');
is($a->ask('state', 'long')->{owner}, 1, 'and its holder knows');
is($a->events, '', 'without an event');
$a->ask('close');

# Closed: nothing renews it.
is($b->ask('acquire', 'long', wait => 60000)->{status}, 'ok', 'closing ends the renewal, not the lease');
is($b->ask('release', 'long')->{status}, 'ok', 'released');
$b->ask('free', 'long');

#
# A thousand locks are renewed in one statement
#

$node->append_conf('postgresql.conf', "log_statement = all");
$node->reload;
$a->ask('open', conninfo($node));
is($a->ask('many', 'm', count => 1000, ttl => 15000, renew => 1)->{status}, 'ok', 'a thousand locks');
my $offset = -s $node->logfile;
$node->poll_query_until('postgres',
	"SELECT count(*) = 1000 FROM dlock_locks WHERE key LIKE 'm%' AND refreshed_at > acquired_at")
  or die 'they are not renewed';
$offset = -s $node->logfile;
my $mark = $node->safe_psql('postgres', 'SELECT max(refreshed_at) FROM dlock_locks');
$node->poll_query_until('postgres',
	"SELECT count(*) = 1000 FROM dlock_locks WHERE key LIKE 'm%' AND refreshed_at > '$mark'")
  or die 'they are not renewed';
my @renewals = slurp_file($node->logfile, $offset) =~ /execute \S+: SELECT x\.i, x\.refreshed/g;
is(scalar @renewals, 1, 'one statement renews them all');
is($a->ask('owned')->{count}, 1000, 'all are ours');
is($a->events, '', 'no event');
$a->ask('close');
$node->append_conf('postgresql.conf', "log_statement = none");
$node->reload;

#
# A thousand releases race with renewals
#

$a->ask('open', conninfo($node));
my $race = $a->ask('race', 'race', count => 1000, ttl => 60, renew => 1);
is($race->{status}, 'ok', 'a thousand times');
is($race->{bad}, 0, 'nothing was left held');
cmp_ok($race->{expired}, '<', 1000, 'and they were released, as a rule');
is(on_server('race'), '', 'nothing is held now');
$a->events;

#
# The client is stopped for longer than the TTL
#

$lock = $a->ask('acquire', 'stopped', ttl => 1000, renew => 1);
$a->signal('STOP');
is($b->ask('acquire', 'stopped', wait => 60000, ttl => 60000)->{status}, 'ok', 'another one gets the lock');
# it was told to do this before it knew
$a->send('refresh', 'stopped');
$a->send('check', 'stopped');
$a->send('state', 'stopped');
$a->signal('CONT');
is($a->answer->{status}, 'lost', 'it wakes up, and a refresh does not succeed');
is($a->answer->{status}, 'lost', 'a check does not either');
is($a->answer->{owner}, 0, 'it is not the owner');
my $event = $a->event('lost', 'stopped');
is("$event->{reason} $event->{owner}", 'deadline 0', 'and the event comes');
is($a->ask('release', 'stopped')->{status}, 'held_by_other', 'the other one has it');
is($b->ask('check', 'stopped')->{status}, 'ok', 'and keeps it');
is($a->events, '', 'one event');
$b->ask('release', 'stopped');

# The same while it waits for a lock: a grant that it gets while stopped does not count.
$b->ask('acquire', 'sleep', ttl => 60000);
$a->send('acquire', 'sleep', wait => 60000, ttl => 1000);
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters") or die 'it does not wait';
$a->signal('STOP');
$b->ask('release', 'sleep');
my $granted = on_server('sleep');
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM dlock_locks WHERE key = 'sleep'")
  or die 'it does not expire';
$a->signal('CONT');
$lock = $a->answer;
is($lock->{status}, 'ok', 'acquired');
cmp_ok($lock->{version}, '>', $granted, 'not what it missed');
cmp_ok($lock->{left}, '>', 0, 'and it is not over');
$a->ask('close');
$b->ask('close');

#
# A server that no longer answers
#

my $proxy = proxy($node);
$a->ask('open', conninfo($node, host => $proxy->{host}, port => $proxy->{port}), timeout => 3000);
$lock = $a->ask('acquire', 'hole', ttl => 3000, renew => 1);
is($lock->{status}, 'ok', 'through a proxy');
$b->ask('open', conninfo($node));
$proxy->stop;
$start = time;
$event = $a->event('danger', 'hole');
is($event->{owner}, 1, 'in danger, and still ours');
cmp_ok($event->{left}, '>', 0, 'with some time left');
cmp_ok($event->{left}, '<=', 900, 'as much as is told');
is(on_server('hole'), $lock->{version}, 'and held on the server');
$event = $a->event('lost', 'hole');
is($event->{reason}, 'deadline', 'lost by the clock');
is($event->{owner}, 0, 'not ours');
is(on_server('hole'), $lock->{version}, 'before the server gives it away');
cmp_ok(time - $start, '<', 3 + 5, 'in time');
is($a->events, '', 'each event once');

# No call hangs longer than its timeout.
foreach my $call (
	[ 'refresh', 'hole' ],
	[ 'ping' ],
	[ 'acquire', 'hole2' ],
	[ 'acquire', 'hole3', wait => 200 ],
	[ 'acquire', 'hole4', wait => -1 ],
	[ 'watch', 'hole', wait => 100 ],
	[ 'observe', 'hole' ],
	[ 'info', 'hole' ],
	[ 'list', '*' ],
	[ 'release', 'hole' ])
{
	$start = time;
	my $answer = $a->ask($call->[0], $call->[1], timeout => 500, @{$call}[ 2 .. $#$call ]);
	like($answer->{status}, qr/^(lost|timeout|unreachable)$/, "$call->[0]: $answer->{status}");
	cmp_ok(time - $start, '<', 3 + 5, "$call->[0]: back in time");
}
$proxy->go;
is($a->ask('acquire', 'hole2', wait => 60000, timeout => 60000)->{status}, 'ok', 'and it recovers');
is($a->ask('release', 'hole2')->{status}, 'ok', 'released');
$a->ask('free', 'hole');

# A grant that may have been made without an answer is released.
is($a->ask('acquire', 'doubt0', wait => 60000, timeout => 60000)->{status}, 'ok', 'a lock that is renewed');
# the renewal thread has a connection, so there is another one for the call
$node->poll_query_until('postgres',
	"SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'libdlock' AND query LIKE '%x.refreshed%'")
  or die 'the renewal thread has no connection';
is($a->ask('check', 'doubt0')->{status}, 'ok', 'there is an open connection');
my $drawn = $node->safe_psql('postgres', 'SELECT last_value FROM dlock.versions');
$proxy->stop;
# long enough to send the request on a busy machine, too: what is not sent is not granted
is($a->ask('acquire', 'doubt', ttl => 600000, timeout => 3000)->{status}, 'timeout', 'no answer');
$proxy->go;
$node->poll_query_until('postgres', "SELECT last_value > $drawn FROM dlock.versions")
  or die 'it is not granted';
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM dlock_locks WHERE key = 'doubt'")
  or die 'it is not released';
ok(1, 'what nobody knows of does not stay');

# A waiting client notices that the server is gone, although TCP does not.
$b->ask('acquire', 'hang', ttl => 600000);
$a->send('acquire', 'hang', wait => -1, timeout => 1000);
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters") or die 'it does not wait';
$proxy->stop;
is($a->answer->{status}, 'unreachable', 'a wait without limit ends without a server');
$proxy->leave;
$a->ask('close');

#
# A refresh to a shorter TTL gets no answer: the lease may end that soon after it was sent
#

$proxy = proxy($node);
$a->ask('open', conninfo($node, host => $proxy->{host}, port => $proxy->{port}), timeout => 60000);
is($a->ask('acquire', 'shorter', ttl => 600000)->{status}, 'ok', 'acquired');
$proxy->stop;
$a->send('refresh', 'shorter', ttl => 1000, timeout => 60000);
is($a->answer->{status}, 'lost', 'refreshed to a shorter TTL, no answer: lost with that');
is($a->event('lost', 'shorter')->{reason}, 'deadline', 'and there is an event');
$proxy->go;
$proxy->leave;
$a->ask('close');

#
# The answer arrives before its commit, and then the server is gone: nothing has been
# granted
#

foreach my $case ([ 'dlock_acquire', 0 ], [ 'dlock_lock', 60000 ])
{
	my ($function, $wait) = @$case;

	$proxy = proxy($node, cut => qr/$function/);
	$a->ask('open', conninfo($node, host => $proxy->{host}, port => $proxy->{port}), timeout => 60000);
	$lock = $a->ask('acquire', $function, ttl => 600000, wait => $wait);
	is($lock->{status}, 'ok', "$function: asked again, and granted");
	is(on_server($function), $lock->{version}, "$function: what was granted, not what was answered first");
	$proxy->leave;
	$a->ask('close');
}

$proxy = proxy($node, cut => qr/dlock_refresh/);
$a->ask('open', conninfo($node, host => $proxy->{host}, port => $proxy->{port}), timeout => 60000);
$lock = $a->ask('acquire', 'cut', ttl => 600000);
is($a->ask('refresh', 'cut', ttl => 1200000)->{status}, 'ok', 'refreshed');
is($node->safe_psql('postgres', "SELECT ttl FROM dlock_locks WHERE key = 'cut'"), '00:20:00', 'and that is so');
$proxy->leave;
$a->ask('close');

#
# A caller that repeats a request under the name of one that had no answer wants to keep
# the lock, so the library does not release it in the background.  It releases at growing
# intervals; another request without an answer shows when.
#

$proxy = proxy($node, swallow => qr/dlock_acquire.*(?:again|clock)/s, times => 2);
$a->ask('open', conninfo($node, host => $proxy->{host}, port => $proxy->{port}), timeout => 60000);
foreach my $key ('again', 'clock')
{
	like($a->ask('acquire', $key, owner => $key, adopt => 1, ttl => 600000, timeout => 100)->{status},
		qr/^(timeout|unreachable)$/, "$key: no answer");
}
$lock = $a->ask('acquire', 'again', owner => 'again', ttl => 600000);
is($lock->{status}, 'ok', 'asked again, and granted');
$node->safe_psql('postgres', "SELECT dlock_acquire('clock', '10 min', owner => 'clock')");
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM dlock_locks WHERE key = 'clock'")
  or die 'nothing is released';
is(on_server('again'), $lock->{version}, 'and kept');

# A name that the program chose may be that of another request, whose grant is not released.
my $losing = proxy($node, swallow => qr/dlock_acquire.*(?:mine|clock2)/s, times => 2);
my $owned = driver(conninfo($node));
my $c = driver(conninfo($node, host => $losing->{host}, port => $losing->{port}));
$lock = $owned->ask('acquire', 'mine', owner => 'me', ttl => 600000);
foreach my $key ('mine', 'clock2')
{
	like($c->ask('acquire', $key, owner => $key eq 'mine' ? 'me' : $key, adopt => $key eq 'mine' ? 0 : 1, ttl => 600000, timeout => 100)->{status},
		qr/^(timeout|unreachable)$/, "$key: no answer");
}
$node->safe_psql('postgres', "SELECT dlock_acquire('clock2', '10 min', owner => 'clock2')");
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM dlock_locks WHERE key = 'clock2'")
  or die 'nothing is released';
is(on_server('mine'), $lock->{version}, 'the grant of another request of that name is kept');
is($c->ask('acquire', 'mine', owner => 'me', ttl => 600000)->{status}, 'busy', 'which is busy');
is($c->ask('acquire', 'mine', owner => 'me', ttl => 600000, adopt => 1)->{version}, $lock->{version}, 'unless it is adopted');
is($a->ask('release', 'again')->{status}, 'ok', 'until it is released');
$proxy->leave;
$a->ask('close');

#
# A handover whose answer is lost is asked for again, and finds that it has been done.
#

my $lost = 0;
$proxy = proxy($node, change => sub {
	my ($server, $bytes) = @_;

	return $bytes if $bytes !~ /dlock_handover/ || $lost++;
	shutdown $server, 2;
	return '';
});
$a->ask('open', conninfo($node, host => $proxy->{host}, port => $proxy->{port}), timeout => 60000);
$lock = $a->ask('acquire', 'blue', ttl => 600000);
my $handed = $a->ask('handover', 'blue', owner => 'green');
is($handed->{status}, 'ok', 'a handover without an answer, asked again');
cmp_ok($handed->{version}, '>', $lock->{version}, 'is told the version');
is($node->safe_psql('postgres', q{SELECT version, owner FROM dlock_get('blue')}), "$handed->{version}|green", 'that the next owner has');
$proxy->leave;
$a->ask('close');

is($_->finish, '', 'nothing was printed') foreach $a, $b;
$node->stop;

done_testing();
