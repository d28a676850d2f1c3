# libdlock: a failover while locks are held, and PgBouncer in between.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockBouncer;
use DlockClient;
use DlockTest;
use DlockWait;

client_build();

#
# The primary is killed, and a synchronous standby promoted
#

my $primary = new_node('primary', streaming => 1);
my $standby = new_standby($primary, 'standby');
make_synchronous($primary, $standby);

# the standby is first in the list: it must be skipped now and found later
my $both = conninfo($primary,
	host => $standby->host . ',' . $primary->host,
	port => $standby->port . ',' . $primary->port);
my $a = driver($both);
my $b = driver($both);
my $w = driver($both);
my $lock = $a->ask('acquire', 'kept', ttl => 20000, renew => 1, value => 'mine');
is($lock->{status}, 'ok', 'held');
my $unrenewed = $a->ask('acquire', 'unrenewed', ttl => 600000);
is($unrenewed->{status}, 'ok', 'held, too');
is($b->ask('acquire', 'kept')->{status}, 'busy', 'busy for another');
$w->send('acquire', 'kept', wait => -1, timeout => 100000);
until_sql($primary, 'SELECT count(*) FROM dlock_waiters', 1, 'a third one waits');
DlockWait::close_monitors();

# a demoted primary would answer 25006; a dead one does not answer
$primary->kill9;
# called while there is no server
$b->send('acquire', 'during', timeout => 100000, ttl => 60000);
$a->send('check', 'unrenewed', timeout => 100000);
$standby->promote;
my $during = $b->answer;
is($during->{status}, 'ok', 'an acquire that was begun without a server is granted');
is($during->{version}, $standby->safe_psql('postgres', "SELECT version FROM dlock_locks WHERE key = 'during'"),
	'the only grant');
is($a->answer->{status}, 'ok', 'what was held is held');
is($a->ask('state', 'kept')->{owner}, 1, 'it is still ours');
is($a->ask('refresh', 'kept', timeout => 100000)->{status}, 'ok', 'and the new server agrees');
is($standby->safe_psql('postgres', "SELECT version, value FROM dlock_locks WHERE key = 'kept'"),
	"$lock->{version}|mine", 'with the same token');
$standby->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters") or die 'nobody waits';
ok(1, 'the waiting client has moved over, too');
my $mark = $standby->safe_psql('postgres', 'SELECT clock_timestamp()');
$standby->poll_query_until('postgres',
	"SELECT count(*) = 1 FROM dlock_locks WHERE key = 'kept' AND refreshed_at > '$mark'")
  or die 'it is not renewed';
ok(1, 'the renewal continues');
is($b->ask('acquire', 'kept')->{status}, 'busy', 'nobody else can have it');
is($a->ask('check', 'unrenewed')->{status}, 'ok', 'also what is not renewed');
is($a->ask('release', 'kept')->{status}, 'ok', 'released');
is($w->answer->{status}, 'ok', 'and the waiting client has it');
unlike($a->events, qr/lost/, 'nothing was lost');
is($_->finish, '', 'nothing was printed') foreach $a, $b, $w;

#
# A restart, and broken connections
#

my $node = $standby;
$a = driver(conninfo($node));
$lock = $a->ask('acquire', 'restart', ttl => 60000, renew => 1);
cmp_ok(
	$node->safe_psql(
		'postgres', q{
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()}),
	'>', 0, 'connections are cut');
is($a->ask('check', 'restart')->{status}, 'ok', 'broken connections are made again');
$node->restart;
is($a->ask('refresh', 'restart', timeout => 100000)->{status}, 'ok', 'after a restart');
is($a->ask('state', 'restart')->{version}, $lock->{version}, 'the same grant');
$node->stop;
my $down = $a->ask('acquire', 'down', timeout => 500);
is($down->{status}, 'unreachable', 'no server: unreachable');
cmp_ok($down->{ms}, '<', 5500, 'in time');
$node->start;
is($a->ask('release', 'restart', timeout => 100000)->{status}, 'ok', 'released');
is($a->events, '', 'nothing was lost');
is($a->finish, '', 'nothing was printed');

#
# A commit whose wait for the synchronous standby was cancelled is reported as done, and a
# failover may undo it: it must not count as an answer
#

my $waiting = "wait_event = 'SyncRep'";
my $pid;
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'\n");
$node->reload;
$node->poll_query_until('postgres', "SHOW synchronous_standby_names", 'nobody') or die 'not reloaded';
# the checkpointer makes commits wait
$node->safe_psql('postgres', 'CHECKPOINT');
$a = driver(conninfo($node) . " options='-c client_min_messages=error'");
$a->send('acquire', 'unsure', ttl => 600000, timeout => 100000);
wait_until(
	'the commit waits',
	sub {
		$pid = $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE $waiting");
		return $pid ne '';
	});
$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
ok( $node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE $waiting AND pid <> $pid"),
	'a cancelled wait for the standby: asked again, not granted');
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''\n");
$node->reload;
my $sure = $a->answer;
is($sure->{status}, 'ok', 'granted when the standby has it');
is($node->safe_psql('postgres', "SELECT version FROM dlock_locks WHERE key = 'unsure'"),
	$sure->{version}, 'the only grant');
is($a->finish, '', 'nothing was printed');

#
# A try that had no answer and still waits for its commit blocks the next try: that is
# busy, and a late grant is released
#

my $proxy = proxy($node);
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'\n");
$node->reload;
$node->poll_query_until('postgres', "SHOW synchronous_standby_names", 'nobody') or die 'not reloaded';
$node->safe_psql('postgres', 'CHECKPOINT');
$a = driver(conninfo($node, host => "$proxy->{host}," . $node->host, port => "$proxy->{port}," . $node->port));
$a->send('acquire', 'own', ttl => 600000, timeout => 100000);
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE $waiting")
  or die 'the commit does not wait';
$proxy->leave;
is($a->answer->{status}, 'busy', 'the first try blocks');
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''\n");
$node->reload;
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock.locks WHERE key = 'own'")
  or die 'it is not granted';
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM dlock_locks WHERE key = 'own'"),
	'it was granted, and released');
is($a->finish, '', 'nothing was printed');

#
# PgBouncer in transaction mode: no statement needs the connection of the previous one
#

my $user = $node->safe_psql('postgres', 'SELECT current_user');
my $bouncer = DlockBouncer->new(
	user => $user,
	target => 'host=' . $node->host . ' port=' . $node->port,
	pool_size => 4);
my $through = conninfo($node, host => $bouncer->folder, port => $bouncer->port, more => "user=$user");
$a = driver($through);
$b = driver($through);
is($a->ask('ping', '', timeout => 60000)->{status}, 'ok', 'through PgBouncer');
$lock = $a->ask('acquire', 'p', ttl => 1500, renew => 1, cleanup => 60000);
is($lock->{status}, 'ok', 'acquired');
is($b->ask('acquire', 'p', wait => 4000)->{status}, 'busy', 'and renewed');
is($a->ask('check', 'p')->{status}, 'ok', 'held');
$b->send('acquire', 'p', wait => 50000, priority => 1);
is($a->event('preempted', 'p')->{version}, $lock->{version}, 'asked to yield: found when it is renewed');
is($a->ask('release', 'p')->{status}, 'ok', 'yields');
is($b->answer->{status}, 'ok', 'to the other one');
$a->send('watch', 'p', version => 0, wait => 60000);
cmp_ok($a->answer->{version}, '>', $lock->{version}, 'watched');
is($node->safe_psql('postgres', "SELECT dlock_force_release('p', 'test') IS NOT NULL"), 't', 'taken away');
is($b->ask('check', 'p')->{status}, 'lost', 'which is noticed');
is($a->ask('acquire', 'quick', ttl => 1500, renew => 1)->{status}, 'ok', 'acquired');
$node->safe_psql('postgres', "SELECT dlock_force_release('quick', 'test')");
is($a->event('lost', 'quick')->{reason}, 'expired', 'noticed without being asked');
my $work = $a->ask('work', '', threads => 3, count => 10);
is($work->{bad}, 0, 'threads that share a handle');
is($work->{counter}, 30, 'have all had their turns');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_listening_channels()"), 0, 'no LISTEN');
is($_->finish, '', 'nothing was printed') foreach $a, $b;
undef $bouncer;

$node->stop;
done_testing();
