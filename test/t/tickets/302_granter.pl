# The worker that grants tickets: when it is there, and what happens when it is not.

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
	'granter',
	streaming => 1,
	conf => q{
max_worker_processes = 8
max_connections = 20
});
my $now = client($node, 'now');
my $ear = client($node, 'ear');
$ear->ask_it('LISTEN dlock');

sub take { return $now->ask_it("SELECT dlock_acquire('$_[0]', '1h', 'holder')"); }
sub give { return $now->ask_it("SELECT dlock_release('$_[0]', owner => 'holder')"); }

sub granters
{
	my ($database) = @_;

	return "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'dlock granter'"
	  . ($database ? " AND datname = '$database'" : '');
}

#
# When it is there
#

is($now->ask_it(granters()), 0, 'without tickets there is none');
take('busy');
my $t = enqueue($now, 'busy', 'me');
until_sql($node, granters(), 1, 'a ticket brings it');
$now->ask_it("SELECT dlock_dequeue($t)");
until_sql($node, granters(), 0, 'without tickets it leaves');

#
# It ends, and nothing is lost
#

$t = enqueue($now, 'busy', 'me');
until_state($node, $t, 'waiting 1', 'a ticket waits');
my $pid = pid_of($node, 'dlock granter');
is($now->ask_it("SELECT pg_terminate_backend($pid)"), 't', 'the granter is terminated');
until_gone($node, $pid, 'it is gone');
give('busy');
until_state($node, $t, 'granted', 'another one continues');
isnt(granter_of($node), $pid, 'it is another one');
$now->ask_it("SELECT dlock_release('busy', owner => 'me')");

# The turn comes while there is none.
take('turn');
$t = enqueue($now, 'turn', 'me');
until_state($node, $t, 'waiting 1', 'a ticket waits');
$pid = stop_granter($node);
give('turn');
is(state_of($now, $t), 'waiting 1', 'nobody grants it yet');
kill 'TERM', $pid;
kill 'CONT', $pid;
until_state($node, $t, 'granted', 'the turn is not lost with the granter');
$now->ask_it("SELECT dlock_release('turn', owner => 'me')");

# It was to look again at a time.
$now->ask_it("SELECT dlock_acquire('lease', '1s', 'holder')");
$t = enqueue($now, 'lease', 'me');
until_state($node, $t, 'waiting 1', 'a ticket waits for a lease to expire');
until_granter_sleeps($node);
$pid = granter_of($node);
$now->ask_it("SELECT pg_terminate_backend($pid)");
until_state($node, $t, 'granted', 'the next granter knows when');
$now->ask_it("SELECT dlock_release('lease', owner => 'me')");

# It is terminated in the middle of a grant: it waits for the table.
take('middle');
$t = enqueue($now, 'middle', 'me');
until_state($node, $t, 'waiting 1', 'a ticket waits');
my $locker = client($node, 'locker');
$pid = stop_granter($node);
give('middle');
$locker->ask_it('BEGIN; LOCK TABLE dlock.locks IN ACCESS EXCLUSIVE MODE');
kill 'CONT', $pid;
until_sql($node, "SELECT wait_event FROM pg_stat_activity WHERE pid = $pid", 'relation', 'the granter is about to grant it');
is($now->ask_it("SELECT pg_terminate_backend($pid)"), 't', 'it is terminated');
until_gone($node, $pid, 'it is gone');
$locker->ask_it('COMMIT');
until_state($node, $t, 'granted', 'another one grants it');
$now->ask_it("SELECT dlock_release('middle', owner => 'me')");

#
# Not all of a transaction can be granted
#

# One is withdrawn while the granter is about to grant it.
take($_) foreach 'late', 'late2';
$t = enqueue($now, 'late', 'me');
my $other = enqueue($now, 'late2', 'me');
until_state($node, $_, 'waiting 1', 'a ticket waits') foreach $t, $other;
$pid = stop_granter($node);
$now->ask_it("SELECT dlock_release(k, owner => 'holder') FROM unnest(ARRAY['late', 'late2']) k");
$locker->ask_it('BEGIN; LOCK TABLE dlock.locks IN ACCESS EXCLUSIVE MODE');
kill 'CONT', $pid;
until_sql($node, "SELECT wait_event FROM pg_stat_activity WHERE pid = $pid", 'relation', 'the granter waits for the table');
is($now->ask_it("SELECT dlock_dequeue($t)"), 't', 'the request is withdrawn');
$locker->ask_it('COMMIT');
until_state($node, $other, 'granted', 'the other one is granted');
is($now->ask_it("SELECT count(*) FROM dlock_locks WHERE key = 'late'"), 0, 'what was withdrawn is not');
$now->ask_it("SELECT dlock_release('late2', owner => 'me')");
$locker->leave;

# An error of one is not its neighbours'.
$now->ask_it('CREATE ROLE alice');
take("e$_") foreach 1 .. 5;
my @t = map {
	$now->ask_it('SET ROLE alice') if $_ == 3;
	my $ticket = enqueue($now, "e$_", 'me');
	$now->ask_it('RESET ROLE');
	$ticket;
} 1 .. 5;
until_sql($node, "SELECT count(*) FROM dlock_waiters WHERE key ~ '^e'", 5, 'five wait');
until_granter_sleeps($node);
$now->ask_it("SELECT dlock_policy('e', 'alice', allow => false)");
$pid = stop_granter($node);
give("e$_") foreach 1 .. 5;
kill 'CONT', $pid;
until_state($node, $t[ $_ - 1 ], 'granted', "ticket $_ is granted") foreach 1, 2, 4, 5;
hears($ear, qr/"event": "missed", "key": "e3", "ticket": $t[2], "code": "42501"/, 'ticket 3 is missed');
my @heard = $ear->{heard} =~ /"event": "granted", "key": "e(\d)"/g;
is(join(' ', sort @heard), '1 2 4 5', 'each of the others is announced once');
is($now->ask_it("SELECT string_agg(key, ' ' ORDER BY key) FROM dlock_locks WHERE key ~ '^e'"),
	'e1 e2 e4 e5', 'and held');
$now->ask_it("SELECT dlock_release('e' || i, owner => 'me') FROM generate_series(1, 5) i; SELECT dlock_policy_drop('e', 'alice')");

#
# Many at once
#

$now->ask_it("SELECT count(dlock_acquire('m' || i, '1h', 'holder')) FROM generate_series(1, 1000) i");
is($now->ask_it("SELECT count(DISTINCT dlock_enqueue('m' || i, NULL, 'me')) FROM generate_series(1, 1000) i"),
	1000, 'a thousand tickets');
until_sql($node, "SELECT waiting FROM dlock_stats", 1000, 'all of them wait');
until_granter_sleeps($node);
$pid = stop_granter($node);
$now->ask_it("SELECT count(dlock_release('m' || i, owner => 'holder')) FROM generate_series(1, 1000) i");
kill 'CONT', $pid;
until_sql($node, "SELECT count(*) FROM dlock_locks WHERE owner = 'me' AND key ~ '^m'", 1000, 'all are granted');
is($now->ask_it("SELECT count(DISTINCT xmin::text) FROM dlock.locks WHERE key ~ '^m[0-9]'"),
	5, 'a thousand that are freed together take five transactions');
is($now->ask_it("SELECT count(dlock_release('m' || i, owner => 'me')) FROM generate_series(1, 1000) i"), 1000, 'released');

#
# A commit that waits for a standby
#

take('sync');
$t = enqueue($now, 'sync', 'me');
until_state($node, $t, 'waiting 1', 'a ticket waits');
my $standby = new_standby($node, 'standby');
make_synchronous($node, $standby);
is($now->ask_it("SELECT pg_is_in_recovery()"), 'f', 'this is the primary');
fails_with($standby, "SELECT dlock_enqueue('k', NULL, 'me')", '25006', [qr/on a standby/], 'enqueue on a standby');
fails_with($standby, "SELECT dlock_ticket($t)", '25006', [qr/on a standby/], 'dlock_ticket on a standby');
$standby->stop;
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_replication')
  or die 'the standby does not go';
$ear->{heard} = '';
give('sync');
until_sync_waits($node, 1, "backend_type = 'dlock granter'");
is(state_of($now, $t), 'waiting 1', 'what no standby has confirmed is not granted');
is($now->ask_it("SELECT dlock_acquire('sync', '1h', 'me')"), '', 'the owner does not get at it either');
unlike($ear->ask_it("SELECT ''"), qr/"ticket": $t/, 'and nobody hears of it');
$pid = granter_of($node);
$now->ask_it("SELECT pg_cancel_backend($pid)");
my $withdrawer = client($node, 'withdrawer');
$withdrawer->start("SELECT dlock_dequeue($t)");
until_sql($node, "SELECT wait_event_type || ' ' || wait_event FROM pg_stat_activity WHERE pid = $withdrawer->{pid}",
	'Lock transactionid', 'a withdrawal waits until it is certain');
until_sync_waits($node, 1, "pid = $pid");
is(state_of($now, $t), 'waiting 1', 'a cancel does not end that wait');
$standby->start;
until_state($node, $t, 'granted', 'with the standby it is');
is($withdrawer->answer, 'f', 'the withdrawal comes too late');
hears($ear, qr/"event": "granted", "key": "sync", "version": \d+, "ticket": $t/, 'the event');
$withdrawer->leave;
$node->safe_psql('postgres', 'ALTER SYSTEM RESET synchronous_standby_names');
$node->reload;
$node->poll_query_until('postgres', "SELECT current_setting('synchronous_standby_names') = ''") or die;
$standby->stop;

#
# Without a worker process to be had
#

$now->ask_it("SELECT dlock_release('sync', owner => 'me')");
close_clients($now, $ear);
DlockWait::close_monitors();
$node->stop;
$node->append_conf('postgresql.conf', "max_worker_processes = 1\nmax_logical_replication_workers = 0\n");
$node->start;
$now = client($node, 'now');
is(enqueue($now, 'none', 'me'), 'ERROR 53400', 'no worker process is left');
like($now->said, qr/HINT: .*max_worker_processes/, 'says what to do');
is($now->ask_it("SELECT count(*) FROM dlock_waiters"), 0, 'nothing waits');
close_clients($now);
DlockWait::close_monitors();
$node->stop;
$node->append_conf('postgresql.conf', "max_worker_processes = 8\n");
$node->start;
$now = client($node, 'now');
$ear = client($node, 'ear');
$ear->ask_it('LISTEN dlock');

#
# Commands that want the database for themselves
#

sub in_database
{
	my ($database, $sql) = @_;

	return $node->safe_psql($database, $sql);
}

$node->safe_psql('postgres', 'CREATE DATABASE shop');
add_extension_in($node, 'shop');
in_database('shop', "SELECT dlock_acquire('k', '1h', 'holder')");
$t = in_database('shop', "SELECT dlock_enqueue('k', NULL, 'me')");
until_sql($node, granters('shop'), 1, 'a ticket waits in another database');
is($now->ask_it('CREATE DATABASE copy TEMPLATE shop'), '', 'the database can be copied');
is(in_database('copy', 'SELECT count(*) FROM dlock_waiters'), 0, 'its tickets are not');
is($now->ask_it('ALTER DATABASE shop RENAME TO store'), '', 'it can be renamed');
until_sql($node, granters('store'), 1, 'the granter comes back');
is(in_database('store', "SELECT dlock_release('k', owner => 'holder')"), 'released', 'released');
until_sql($node, "SELECT state FROM dlock_ticket($t)", 'granted', 'the ticket is granted', database => 'store');
$t = in_database('store', "SELECT dlock_enqueue('k', NULL, 'you')");
until_sql($node, "SELECT state FROM dlock_ticket($t)", 'waiting', 'another one waits', database => 'store');
DlockWait::close_monitors();
is($now->ask_it('DROP DATABASE store'), '', 'it can be dropped');
$now->ask_it('DROP DATABASE copy');
until_sql($node, granters(), 0, 'no granter is left');

# Its tickets leave room for others.
$node->safe_psql('postgres', 'CREATE DATABASE forced');
add_extension_in($node, 'forced');
in_database('forced', "SELECT dlock_acquire('k', '1h', 'holder')");
$t = in_database('forced', "SELECT dlock_enqueue('k', NULL, 'me')");
until_sql($node, granters('forced'), 1, 'a granter in a third one');
is($now->ask_it('DROP DATABASE forced WITH (FORCE)'), '', 'it can be dropped with force');
until_sql($node, granters(), 0, 'no granter is left');
unlike(slurp_file($node->logfile), qr/PANIC|TRAP/, 'and nothing has crashed');

take('ext');
$t = enqueue($now, 'ext', 'me');
until_state($node, $t, 'waiting 1', 'a ticket waits');
$pid = pid_of($node, 'dlock granter');
$now->ask_it('DROP EXTENSION dlock');
# The reason is that of what comes first: the granter looks for the extension, or at the ticket,
# which it does after deadlock_timeout if log_lock_waits is on, as it is by default from 19 on.
hears($ear, qr/"event": "missed", "key": "ext", "ticket": $t, "code": "42704", "reason": "extension \\"dlock\\" (?:was dropped|is not installed in database \\"postgres\\")"/, 'the extension is dropped');
$now->ask_it('CREATE EXTENSION dlock');
is(state_of($now, $t), 'missed', 'its ticket is missed');

# Another extension that comes at once grants nothing to it.
take('again');
$t = enqueue($now, 'again', 'me');
my $free = enqueue($now, 'free', 'me');
until_state($node, $t, 'waiting 1', 'a ticket waits');
$now->ask_it('BEGIN; DROP EXTENSION dlock; CREATE EXTENSION dlock');
my $new = enqueue($now, 'new', 'me');
$now->ask_it('COMMIT');
until_state($node, $t, 'missed', 'the extension is dropped and created in one transaction');
until_state($node, $new, 'granted', 'a ticket that was taken after that is granted');
is($now->ask_it("SELECT string_agg(key, ' ') FROM dlock_locks"), 'new', 'nothing else');
$now->ask_it("SELECT dlock_force_release('new', 'test')");

#
# Dumps
#

take('dump');
$t = enqueue($now, 'dump', 'me');
my ($dump, $errors) = run_command([ 'pg_dump', '-d', $node->connstr('postgres') ]);
unlike($dump, qr/$t/, 'a dump has no tickets');
is($errors, '', 'and no errors');

#
# Crashes
#

take('crash');
my $granted = enqueue($now, 'free', 'me', "ttl => '1h'");
until_state($node, $granted, 'granted', 'one is granted');
my $version = version_of($now, $granted);
my $waits = enqueue($now, 'crash', 'me');
until_state($node, $waits, 'waiting 1', 'one waits');
my $log_at = -s $node->logfile;
my $victim = pid_of($node, 'dlock granter');
DlockWait::close_monitors();
kill 'KILL', $victim;
$now->lost;
$ear->lost;
$node->wait_for_log(qr/database system is ready to accept connections/, $log_at);
$node->poll_query_until('postgres', 'SELECT true') or die 'the server is not back';
$now = client($node, 'now');
is(state_of($now, $granted) . state_of($now, $waits), '', 'a crash of the granter forgets the tickets');
is($now->ask_it("SELECT dlock_check('free', $version)"), 'held', 'what was granted is held');
is($now->ask_it("SELECT dlock_acquire('free', '1h', 'me')"), $version, 'by its owner');
isnt(enqueue($now, 'crash', 'me'), $waits, 'asking again gives a new ticket');
give('crash');
until_sql($node, "SELECT owner FROM dlock_locks WHERE key = 'crash'", 'me', 'which is granted');
$waits = enqueue($now, 'crash', 'you');
$now->lost;
DlockWait::close_monitors();
$node->stop('immediate');
$node->start;
$now = client($node, 'now');
is(state_of($now, $waits), '', 'a crash of the server does, too');
is($now->ask_it("SELECT owner FROM dlock_locks WHERE key = 'crash'"), 'me', 'and keeps what was granted');
cmp_ok(enqueue($now, 'crash', 'you'), '>', $waits, 'numbers are not used again');

close_clients($now);
DlockWait::close_monitors();
$node->stop;
done_testing();
