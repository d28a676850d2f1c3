# Tickets: requests that wait without a connection.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockTicket;
use DlockWait;

my $node = new_node(
	'tickets', conf => q{
deadlock_timeout = 100ms
log_lock_waits = on
max_prepared_transactions = 2
});
$node->safe_psql('postgres', 'CREATE ROLE alice; CREATE ROLE bob');

my $now = client($node, 'now');
my $ear = client($node, 'ear');
my ($a, $b, $c) = map { client($node, $_) } qw(a b c);
$ear->ask_it('LISTEN dlock');

# A new key for each part.
my $key = 'k0';
sub fresh { return $key++ && $key; }
sub take { return $now->ask_it("SELECT dlock_acquire('$key', '1h', 'holder'" . ($_[0] ? ", $_[0]" : '') . ')'); }
sub give { return $now->ask_it("SELECT dlock_release('$key', owner => '$_[0]')"); }

# The clients and owners that wait for the key, in order.
sub line
{
	return "SELECT coalesce(string_agg(coalesce(owner, application_name), ' ' ORDER BY position), '')"
	  . " FROM dlock_waiters LEFT JOIN pg_stat_activity USING (pid) WHERE key = '$key'";
}

#
# A free key
#

fresh();
my $t = enqueue($now, $key, 'me', "ttl => '1h', value => 'here', priority => 3, cleanup => '7s'");
like($t, qr/^\d{13,16}$/, 'a ticket is a number that a double can hold');
until_state($node, $t, 'granted', 'a free key is granted');
my $version = version_of($now, $t);
hears($ear, qr/"\{"event": "granted", "key": "$key", "version": $version, "ticket": $t\}"/, 'the event');
is( $now->ask_it("SELECT version || owner || value || priority || ttl || role FROM dlock_locks WHERE key = '$key'"),
	"${version}mehere301:00:00" . $now->ask_it('SELECT current_role'),
	'the grant is as it was asked for');
is($now->ask_it("SELECT dlock_acquire('$key', '1h', 'me')"), $version, 'its owner gets at it');
is($now->ask_it("SELECT dlock_fence('$key', $version)"), '', '... and can fence it');
is($now->ask_it("SELECT dlock_dequeue($t)"), 'f', 'a request that was granted is not withdrawn');
is(give('me'), 'released', 'and released');
is(state_of($now, $t), 'granted', 'the ticket remains what it was');
is(state_of($now, $t + 1_000_000), '', 'a ticket that never was');

#
# A key that is held
#

fresh();
take();
$t = enqueue($now, $key, 'me');
until_state($node, $t, 'waiting 1', 'it waits');
until_sql($node, "SELECT pid IS NULL, ticket = $t, owner, position FROM dlock_waiters WHERE key = '$key'",
	't|t|me|1', 'the view shows it');
is($a->ask_it("SELECT dlock_acquire('$key')"), '', 'a try stands behind it');
give('holder');
until_state($node, $t, 'granted', 'a release passes it on');
is($now->ask_it("SELECT owner FROM dlock_locks WHERE key = '$key'"), 'me', 'to the owner');
is($now->ask_it("SELECT count(*) FROM dlock_waiters WHERE key = '$key'"), 0, 'the queue is empty');

fresh();
$now->ask_it("SELECT dlock_acquire('$key', '200ms')");
$t = enqueue($now, $key, 'me');
until_state($node, $t, 'granted', 'an expiry passes it on');

fresh();
$now->ask_it("SELECT dlock_acquire('$key', '1h', 'holder', at_least => '1h'); SELECT dlock_release('$key', owner => 'holder')");
$t = enqueue($now, $key, 'me');
until_state($node, $t, 'waiting 1', 'a key that cools is waited for');
$now->ask_it("SELECT dlock_force_release('$key', 'test')");
until_state($node, $t, 'granted', 'the end of cooling passes it on');

fresh();
$a->ask_it("BEGIN; SELECT dlock_acquire('$key', '1h')");
$t = enqueue($now, $key, 'me');
until_state($node, $t, 'waiting 1', 'an open transaction is waited for');
$a->ask_it('ROLLBACK');
until_state($node, $t, 'granted', 'its rollback passes it on');

#
# The end of the wait
#

fresh();
take();
$t = enqueue($now, $key, 'me', "wait => '50ms'");
until_state($node, $t, 'missed', 'a wait that is over');
hears($ear, qr/"\{"event": "missed", "key": "$key", "ticket": $t, "reason": "timeout"\}"/, 'the event');
isnt(my $again = enqueue($now, $key, 'me', "wait => '0'"), $t, 'asking again after a miss gives another ticket');
until_state($node, $again, 'missed', 'a wait of nothing');
is(version_of($now, $again), '', 'without a version');

$t = enqueue($now, $key, 'me');
$again = enqueue($now, $key, 'you');
until_state($node, $again, 'waiting 2', 'two wait');
is($now->ask_it("SELECT dlock_dequeue($t)"), 't', 'the first one is withdrawn');
is(state_of($now, $t), '', 'nothing is known of it');
is($now->ask_it("SELECT dlock_dequeue($t)"), 'f', 'it cannot be withdrawn twice');
until_state($node, $again, 'waiting 1', 'the other one goes up');
$now->ask_it("BEGIN; SELECT dlock_dequeue($again); ROLLBACK");
is(state_of($now, $again), '', 'a rollback does not bring it back');

#
# The transaction of the enqueue
#

fresh();
$a->ask_it('BEGIN');
$t = enqueue($a, $key, 'me');
is(state_of($a, $t), 'waiting', 'its own transaction sees it');
is(state_of($b, $t), '', 'others do not');
is($b->ask_it("SELECT dlock_dequeue($t)"), 'f', '... and cannot withdraw it');
is(enqueue($a, $key, 'me'), $t, 'asking again gives the same one');
is($a->ask_it("SELECT xid IS NULL FROM pg_current_xact_id_if_assigned() xid"), 't', 'it takes no transaction id');
$version = $b->ask_it("SELECT dlock_acquire('$key', '1h', 'b')");
isnt($version, '', 'before the commit it is in nobody\'s way');
$a->ask_it('COMMIT');
until_state($node, $t, 'waiting 1', 'the commit puts it into the queue');
$b->ask_it("SELECT dlock_release('$key', $version)");
until_state($node, $t, 'granted', 'and it is granted');

fresh();
$a->ask_it('BEGIN');
$t = enqueue($a, $key, 'me');
$a->ask_it('ROLLBACK');
is(state_of($a, $t), '', 'a rollback forgets it');
isnt(enqueue($a, $key, 'me'), $t, 'asking again gives another one');

fresh();
take();
$a->ask_it('BEGIN');
my $kept = enqueue($a, $key, 'kept');
$a->ask_it('SAVEPOINT s');
my $lost = enqueue($a, $key, 'lost');
$a->ask_it('SAVEPOINT inner_one');
my $inner = enqueue($a, $key, 'inner');
$a->ask_it('RELEASE inner_one; ROLLBACK TO s');
my $later = enqueue($a, $key, 'later');
my $withdrawn = enqueue($a, $key, 'withdrawn');
is($a->ask_it("SELECT dlock_dequeue($withdrawn)"), 't', 'its own transaction can withdraw it');
$a->ask_it('COMMIT');
until_sql($node, line(), 'kept later', 'a rollback to a savepoint forgets what came after it');
is(state_of($now, $_), '', 'forgotten') foreach $lost, $inner, $withdrawn;
$now->ask_it("SELECT dlock_dequeue($_)") foreach $kept, $later;

is($a->ask_it('BEGIN; ' . "SELECT dlock_enqueue('$key', NULL, 'me')" . "; PREPARE TRANSACTION 'p'"),
	'ERROR 0A000', 'PREPARE TRANSACTION is refused');
$a->ask_it('ROLLBACK');
is($now->ask_it(line()), '', 'nothing is left of it');
is($a->ask_it("BEGIN READ ONLY; SELECT dlock_enqueue('$key', NULL, 'me')"), 'ERROR 25006', 'a read-only transaction');
$a->ask_it('ROLLBACK');
is($a->ask_it("BEGIN READ ONLY; SELECT count(*) FROM dlock_ticket(1)"), 0, '... can ask');
$a->ask_it('ROLLBACK');

#
# The same request again
#

fresh();
take();
$t = enqueue($a, $key, 'me');
is(enqueue($b, $key, 'me', "priority => 5"), $t, 'the same ticket while it waits');
give('holder');
until_state($node, $t, 'granted', 'granted');
is(enqueue($b, $key, 'me'), $t, '... and while it is held');
isnt(enqueue($b, "x$key", 'me'), $t, 'not for another key');
isnt(enqueue($b, $key, 'you'), $t, 'not for another owner');
until_sql($node, line(), 'you', 'that one waits');
give('me');
until_sql($node, line(), '', 'it was passed on');
isnt($again = enqueue($b, $key, 'me'), $t, 'another ticket when it is no longer held');
$now->ask_it("SELECT dlock_dequeue($again)");

fresh();
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h', 'me')");
$t = enqueue($a, $key, 'me');
until_state($node, $t, 'granted', 'an owner that has it already');
is(version_of($now, $t), $version, '... gets the same version');

#
# Other roles
#

fresh();
take();
$a->ask_it('SET ROLE alice');
$t = enqueue($a, $key, 'me');
is(state_of($now, $t), '', 'another role sees nothing');
is($now->ask_it("SELECT dlock_dequeue($t)"), 'f', '... and withdraws nothing, not even a superuser');
$b->ask_it('SET ROLE bob');
isnt(enqueue($b, $key, 'me'), $t, 'the same owner of another role is another one');
is($b->ask_it("SELECT owner FROM dlock_waiters WHERE ticket = $t"), '', 'its owner is not shown');
is($b->ask_it("SELECT role FROM dlock_waiters WHERE ticket = $t"), 'alice', 'its role is');
is(state_of($a, $t), 'waiting 1', 'its own role sees it');
give('holder');
until_sql($node, "SELECT role FROM dlock_locks WHERE key = '$key'", 'alice', 'granted to the role');
is($b->ask_it("SELECT dlock_release('$key', owner => 'me')"), 'held_by_other', 'and to no other');
is($a->ask_it("SELECT dlock_release('$key', owner => 'me')"), 'released', 'which releases it');
$_->ask_it('RESET ROLE') foreach $a, $b;

#
# The order
#

fresh();
take('priority => 100');
my $first = enqueue($now, $key, 't1');
$a->start("SELECT dlock_acquire('$key', '1h', wait => NULL)");
until_waiting($node, $a, $key);
my $second = enqueue($now, $key, 't2');
$b->start("SELECT dlock_acquire('$key', '1h', wait => NULL, priority => 7)");
until_waiting($node, $b, $key);
my $third = enqueue($now, $key, 't3', 'priority => 7');
until_sql($node, line(), 'b t3 t1 a t2', 'tickets and sessions stand in one queue');
is(state_of($now, $second), 'waiting 5', 'the position counts all');
give('holder');
$version = $b->answer;
until_sql($node, line(), 't3 t1 a t2', 'the first is a session');
$b->ask_it("SELECT dlock_release('$key', $version)");
until_state($node, $third, 'granted', 'then a ticket');
cmp_ok(version_of($now, $third), '>', $version, 'versions rise in this order');
give('t3');
until_state($node, $first, 'granted', 'and another');
give('t1');
$version = $a->answer;
cmp_ok($version, '>', version_of($now, $first), 'then a session');
is(state_of($now, $second), 'waiting 1', 'the last one still waits');
$a->ask_it("SELECT dlock_release('$key', $version)");
until_state($node, $second, 'granted', 'it gets it, too');

# a session that gives up passes the turn on
fresh();
take();
$a->start("SELECT dlock_acquire('$key', '1h', wait => NULL)");
until_waiting($node, $a, $key);
$t = enqueue($now, $key, 'me', "shared => true");
until_state($node, $t, 'waiting 2', 'behind a session');
$now->ask_it("SELECT pg_cancel_backend($a->{pid})");
is($a->answer, 'ERROR 57014', 'the session is cancelled');
until_state($node, $t, 'waiting 1', 'its ticket has the turn');
$now->ask_it("SELECT dlock_acquire('$key', '1h', 'holder', shared => true)");
until_state($node, $t, 'granted', 'a downgrade lets it in');

#
# Several places
#

fresh();
take();
my @t = map { enqueue($now, $key, "s$_", 'slots => 3') } 1 .. 4;
push @t, enqueue($now, $key, 'writer');
push @t, enqueue($now, $key, 'reader', 'shared => true');
until_state($node, $t[-1], 'waiting 6', 'six wait');
until_granter_sleeps($node);
give('holder');
until_state($node, $t[$_], 'granted', "place $_") foreach 0 .. 2;
until_state($node, $t[3], 'waiting 1', 'the fourth one waits');
is($now->ask_it("SELECT count(DISTINCT xmin::text) FROM dlock.locks WHERE key = '$key' AND held"),
	1, 'neighbours that fit are granted in one transaction');
is(state_of($now, $t[5]), 'waiting 3', 'a reader waits behind the writer');
give("s$_") foreach 1 .. 3;
until_state($node, $t[3], 'granted', 'the fourth one');
give('s4');
until_state($node, $t[4], 'granted', 'the writer');
give('writer');
until_state($node, $t[5], 'granted', 'the reader');

# an upgrade stands before all others; a second one is a deadlock
fresh();
$now->ask_it("SELECT dlock_acquire('$key', '1h', '$_', shared => true)") foreach 'x', 'y';
$t = enqueue($now, $key, 'other', 'priority => 0');
until_state($node, $t, 'waiting 1', 'a writer waits');
my $upgrade = enqueue($now, $key, 'x');
until_sql($node, line(), 'x other', 'an upgrade comes first');
$again = enqueue($now, $key, 'y');
hears($ear, qr/"event": "missed", "key": "$key", "ticket": $again, "code": "40P01", "reason": "deadlock"/, 'a second upgrade is a deadlock');
give('y');
until_state($node, $upgrade, 'granted', 'it is upgraded');
$now->ask_it("SELECT dlock_dequeue($t)");

# one whose place is gone does not come before the others any more
fresh();
$now->ask_it("SELECT dlock_acquire('$key', '1h', '$_', shared => true, priority => 9)") foreach 'x', 'y';
$t = enqueue($now, $key, 'other', 'priority => 1');
$upgrade = enqueue($now, $key, 'x');
until_sql($node, line(), 'x other', 'an upgrade comes first');
is(give('x'), 'released', 'its place is given back');
until_sql($node, line(), 'other x', 'then the priority counts');
give('y');
until_state($node, $t, 'granted', 'the one that is first now is granted');
give('other');
until_state($node, $upgrade, 'granted', 'then the other one');
give('x');

# also if the place was granted by ticket: that one is not the answer
fresh();
my $place = enqueue($now, $key, 'x', 'shared => true');
until_state($node, $place, 'granted', 'a place by ticket');
is(enqueue($now, $key, 'x', 'shared => true'), $place, 'asked again: the same ticket');
$now->ask_it("SELECT dlock_acquire('$key', '1h', 'y', shared => true)");
$upgrade = enqueue($now, $key, 'x');
isnt($upgrade, $place, 'the whole key: another ticket');
until_state($node, $upgrade, 'waiting 1', 'it waits for the other place');
give('y');
until_state($node, $upgrade, 'granted', 'it is upgraded');
cmp_ok(version_of($now, $upgrade), '>', version_of($now, $place), 'with a new version');
my $downgrade = enqueue($now, $key, 'x', 'shared => true');
until_state($node, $downgrade, 'granted', 'and downgraded');
is($now->ask_it("SELECT slots IS NULL FROM dlock_locks WHERE key = '$key'"), 't', 'to a place');
is(version_of($now, $downgrade), version_of($now, $upgrade), 'with the same version');

#
# Preemption
#

fresh();
take("cleanup => '1h'");
$t = enqueue($now, $key, 'boss', "priority => 5");
until_sql($node, "SELECT dlock_check('$key', owner => 'holder')", 'preempting', 'the holder is asked to yield');
is($now->ask_it("SELECT requestor_owner, requestor_priority FROM dlock_locks WHERE key = '$key'"), 'boss|5', 'the view says by whom');
hears($ear, qr/"event": "preempt", "key": "$key"/, 'the holder is told');
give('holder');
until_state($node, $t, 'granted', 'it yields');

fresh();
take();
$t = enqueue($now, $key, 'boss', 'priority => 5');
until_state($node, $t, 'granted', 'a holder without cleanup loses it at once');

fresh();
take("cleanup => '1h'");
$t = enqueue($now, $key, 'boss', "priority => 5, wait => '50ms'");
hears($ear, qr/"event": "missed", "key": "$key", "ticket": $t, "code": "55P03", "reason": "the holder did not yield in time"/, 'a holder that does not yield');
is($now->ask_it("SELECT dlock_check('$key', owner => 'holder')"), 'held', 'keeps it');
$t = enqueue($now, $key, 'boss', "priority => 5, wait => '50ms', force => true");
until_state($node, $t, 'granted', 'unless it is forced');

# asking ends with the request
fresh();
take("cleanup => '1h'");
$t = enqueue($now, $key, 'boss', 'priority => 5');
until_sql($node, "SELECT dlock_check('$key', owner => 'holder')", 'preempting', 'asked to yield');
$now->ask_it("SELECT dlock_dequeue($t)");
is($now->ask_it("SELECT dlock_check('$key', owner => 'holder')"), 'held', 'a request that is withdrawn asks no more');

#
# Refused
#

fresh();
take();
$t = enqueue($now, $key, 'me');
$a->ask_it('SET ROLE alice');
my $of_alice = enqueue($a, $key, 'me');
$a->ask_it('RESET ROLE');
is($now->ask_it("SELECT dlock_policy('$key', 'alice', allow => false)"), '', 'a policy comes late');
$a->ask_it('SET ROLE alice');
is(enqueue($a, $key, 'again'), 'ERROR 42501', 'it refuses a new request');
$a->ask_it('RESET ROLE');
give('holder');
until_state($node, $t, 'granted', 'another role gets it');
give('me');
hears($ear, qr/"event": "missed", "key": "$key", "ticket": $of_alice, "code": "42501", "reason": "permission denied for lock/, 'what was queued is missed');
is($now->ask_it("SELECT count(*) FROM dlock_locks WHERE key = '$key'"), 0, 'nothing is granted');
$now->ask_it("SELECT dlock_policy_drop('$key', 'alice')");

fresh();
take();
$now->ask_it('CREATE ROLE carol');
$a->ask_it('SET ROLE carol');
$t = enqueue($a, $key, 'me');
until_sql($node, line(), 'me', 'a role waits');
$a->ask_it('RESET ROLE');
$now->ask_it('DROP ROLE carol');
give('holder');
hears($ear, qr/"event": "missed", "key": "$key", "ticket": $t, "code": "42704", "reason": "the role does not exist any more"/, 'a role that was dropped');

fresh();
take();
my @all = map { enqueue($now, $key, "o$_", 'shared => true') } 1 .. 3;
until_state($node, $all[2], 'waiting 3', 'three wait');
until_granter_sleeps($node);
$now->ask_it("SELECT dlock_serve('{}')");
hears($ear, qr/"ticket": $_, "code": "LK002"/, 'a shard that left') foreach @all;
is(enqueue($now, $key, 'me'), 'ERROR LK002', 'a new request is refused');
$now->ask_it('SELECT dlock_serve(NULL)');

#
# Deadlocks
#

my ($k1, $k2) = ("$key.1", "$key.2");
$now->ask_it("SELECT dlock_acquire('$k1', '1h', 'one'), dlock_acquire('$k2', '1h', 'two')");
my $t1 = enqueue($now, $k2, 'one');
my $t2 = enqueue($now, $k1, 'two');
until_sql($node, "SELECT string_agg(state, ' ' ORDER BY state) FROM (SELECT (dlock_ticket(t)).state FROM unnest(ARRAY[$t1, $t2]) t) s",
	'missed waiting', 'two tickets that wait for each other: one is missed');
hears($ear, qr/"event": "missed", "key": "[^"]*", "ticket": (?:$t1|$t2), "code": "40P01", "reason": "deadlock"/, 'the reason');
my ($left, $owner) = state_of($now, $t1) eq 'missed' ? ($t2, 'one') : ($t1, 'two');
$now->ask_it("SELECT dlock_release(k, owner => '$owner') FROM unnest(ARRAY['$k1', '$k2']) k");
until_state($node, $left, 'granted', 'the other one continues');
is($now->ask_it('SELECT deadlocks FROM dlock_stats'), 1, 'it is counted');

# a session and a ticket
($k1, $k2) = ("$key.3", "$key.4");
$now->ask_it("SELECT dlock_acquire('$k1', '1h', 'one'), dlock_acquire('$k2', '1h', 'two')");
$a->start("SELECT dlock_acquire('$k2', '1h', 'one', wait => NULL)");
until_waiting($node, $a, $k2);
$t = enqueue($now, $k1, 'two');
wait_until('one of them gives up', sub { return state_of($now, $t) eq 'missed' || $a->came_back; });
if (state_of($now, $t) eq 'missed')
{
	pass('the ticket gives up');
	$now->ask_it("SELECT dlock_release('$k2', owner => 'two')");
	like($a->answer, qr/^\d+$/, 'the session continues');
}
else
{
	is($a->answer, 'ERROR 40P01', 'the session gives up');
	$now->ask_it("SELECT dlock_release('$k1', owner => 'one')");
	until_state($node, $t, 'granted', 'the ticket continues');
}

#
# What is counted and logged
#

fresh();
take();
my $counts = "SELECT waits, timeouts, wait_time > '0' FROM dlock_stats";
$now->ask_it('SELECT dlock_stats_reset()');
my $log_at = -s $node->logfile;
$t = enqueue($now, $key, 'me');
$again = enqueue($now, $key, 'you', "wait => '300ms'");
until_state($node, $again, 'missed', 'one is missed');
$node->wait_for_log(qr/LOG:  ticket $t still waiting for lock "$key" after \d+\.\d+ ms/, $log_at);
give('holder');
until_state($node, $t, 'granted', 'one is granted');
until_sql($node, $counts, '2|1|t', 'both have waited, and one was not granted');
$node->wait_for_log(qr/LOG:  ticket $t acquired lock "$key" after \d+\.\d+ ms/, $log_at);
like(slurp_file($node->logfile, $log_at),
	qr/Holder: version \d+ of role "[^"]*", owner "holder"\. Wait queue: ticket $t, ticket $again\./, 'with the queue');
is($now->ask_it("SELECT waits FROM dlock_contended WHERE key = '$key'"), 2, 'the key was waited for');
$t = enqueue($now, "free$key", 'me');
until_state($node, $t, 'granted', 'a free key');
is($now->ask_it($counts), '2|1|t', 'what is granted at once has not waited');

#
# Limits
#

fresh();
my $long = join '', map { chr(97 + $_ % 26) } 1 .. 1024;
take();
$t = $now->ask_it("SELECT dlock_enqueue('$long', NULL, '$long', value => '$long')");
until_state($node, $t, 'granted', 'texts of the greatest length');
is($now->ask_it("SELECT key = '$long' FROM dlock_ticket($t)"), 't', 'the key');
is($now->ask_it("SELECT value = '$long' AND owner = '$long' FROM dlock_locks WHERE key = '$long'"), 't', 'value and owner');
is($now->ask_it("SELECT dlock_enqueue('$key', NULL, 'me', value => '${long}x')"), 'ERROR 22023', 'a value that is too long');
is($now->ask_it("SELECT dlock_enqueue('$key', NULL, NULL)"), 'ERROR 22004', 'without an owner');
is($now->ask_it("SELECT dlock_enqueue(NULL, NULL, 'me')"), 'ERROR 22004', 'without a key');

close_clients($now, $ear, $a, $b, $c);
DlockWait::close_monitors();
$node->stop;

#
# How many
#

$node->append_conf('postgresql.conf', "dlock.max_tickets = 3\n");
$node->start;
$now = client($node, 'now');
take();
@t = map { enqueue($now, $key, "o$_") } 1 .. 3;
is(enqueue($now, $key, 'o4'), 'ERROR 53400', 'too many tickets');
like($now->said, qr/"dlock.max_tickets" is 3/, 'says why');
is($now->ask_it('SELECT tickets_refused FROM dlock_stats'), 1, 'and it is counted');
is($now->ask_it("SELECT status, detail ~ '^3 of 3 wait; .*53400', hint ~ 'max_tickets' FROM dlock_health() WHERE name = 'tickets'"),
	'warning|t|t', 'dlock_health says that the table is full');
is(enqueue($now, $key, 'o3'), $t[2], 'one that is there is no more');
is($now->ask_it("SELECT dlock_dequeue($t[1])"), 't', 'one is withdrawn');
push @t, enqueue($now, $key, 'o4');
like($t[3], qr/^\d+$/, 'there is room again');

# the last ones that ended are remembered, and long texts make room for others
foreach my $i (1 .. 12)
{
	my $o = sprintf '%s%02d', substr($long, 0, 1000), $i;

	$now->ask_it("SELECT dlock_dequeue($t[-1])");
	push @t, enqueue($now, "$o", $o, "value => '$long'");
	until_state($node, $t[-1], 'granted', "ticket $i");
}
is(state_of($now, $_), 'granted', 'remembered') foreach @t[ -2, -1 ];
is(state_of($now, $t[4]), '', 'forgotten');
is(state_of($now, $t[0]), 'waiting 1', 'those that wait are not');
close_clients($now);
DlockWait::close_monitors();
$node->stop;

$node->append_conf('postgresql.conf', "dlock.max_tickets = 0\n");
$node->start;
$now = client($node, 'now');
is(enqueue($now, $key, 'me'), 'ERROR 53400', 'no tickets at all');
is(state_of($now, $t[0]), '', 'a restart forgets them');
close_clients($now);
DlockWait::close_monitors();
$node->stop;

done_testing();
