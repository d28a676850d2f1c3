# A crowd of tickets: what one role can do to the requests of another.

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
	'ticket_crowd',
	conf => q{
deadlock_timeout = 100ms
dlock.max_tickets = 20000
});
my $now = client($node, 'now');
my $ear = client($node, 'ear');
$ear->ask_it('LISTEN dlock');

# The processor time that a process has taken, in seconds.
sub cpu_of
{
	my ($pid) = @_;
	my @stat = split / /, slurp_file("/proc/$pid/stat") =~ s/.*\) //sr;

	return ($stat[11] + $stat[12]) / 100;
}

# How many index entries of the table have been read, as far as it was reported.
sub reads
{
	return $now->ask_it("SELECT idx_tup_read FROM pg_stat_all_indexes WHERE indexrelid = 'dlock.locks_pkey'::regclass");
}

sub withdraw_all
{
	$now->ask_it('SELECT count(dlock_dequeue(ticket)) FROM dlock_waiters WHERE ticket IS NOT NULL');
	return;
}

#
# A line for a key with many places
#

$now->ask_it("SELECT count(dlock_acquire('sem', '1h', 'holder' || i, slots => 2000)) FROM generate_series(1, 2000) i");
$now->ask_it('SELECT pg_stat_force_next_flush()');
my $before = reads();
is($now->ask_it("SELECT count(dlock_enqueue('sem', NULL, 'crowd' || i, slots => CASE WHEN i % 2 = 0 THEN 1 ELSE 2000 END)) FROM generate_series(1, 1000) i"),
	1000, 'a thousand tickets for a full semaphore of 2,000 places');
until_sql($node, "SELECT count(*) FROM dlock_waiters WHERE key = 'sem'", 1000, 'all of them wait');
until_granter_sleeps($node);
my $pid = granter_of($node);
$now->ask_it("SELECT pg_terminate_backend($pid)");
until_gone($node, $pid, 'the granter has reported what it has read');
cmp_ok(reads() - $before, '<', 200 * 1000, 'those that are not the first do not read all places');

# Their owners still find what they have.
my $t = enqueue($now, 'sem', 'holder7', 'slots => 2000');
until_state($node, $t, 'granted', 'who has a place already gets it, however long the line');
$t = enqueue($now, 'sem', 'holder8');
until_state($node, $t, 'waiting 1', 'who wants the key for itself and has a place comes first');
withdraw_all();
$now->ask_it("SELECT count(dlock_force_release('sem', 'end of the test'))");

#
# Many that are due at the same time
#

$now->ask_it("SELECT dlock_acquire('due', '1h', 'holder')");
is($now->ask_it("SELECT count(dlock_enqueue('due', NULL, 'crowd' || i, wait => '1s')) FROM generate_series(1, 1000) i"), 1000, 'a thousand tickets with a short wait');
until_sql($node, "SELECT count(*) FROM dlock_waiters WHERE key = 'due'", 1000, 'all of them wait');
$pid = stop_granter($node);
until_sql($node, "SELECT bool_and(until < clock_timestamp()) FROM dlock_waiters WHERE key = 'due'", 't', 'their wait is over');
$t = enqueue($now, 'free', 'me', "ttl => '1h'");
kill 'CONT', $pid;
hears($ear, qr/"event": "granted", "key": "free"/, 'a ticket for a free key is granted');
my ($earlier) = $ear->{heard} =~ /(.*)"event": "granted", "key": "free"/s;
my $missed = () = $earlier =~ /"event": "missed"/g;
cmp_ok($missed, '<=', 200, 'it does not wait until all others have had their turn');
until_sql($node, 'SELECT count(*) FROM dlock_waiters', 0, 'the others are missed');
$now->ask_it("SELECT dlock_release('free', owner => 'me'), dlock_release('due', owner => 'holder')");

#
# Many that fail
#

$now->ask_it("CREATE ROLE greedy; SELECT dlock_policy('greedy:', 'greedy', max_locks => 1)");
$now->ask_it("SET ROLE greedy; SELECT dlock_acquire('greedy:0', '1h'); RESET ROLE");
my $drawn = $now->ask_it('SELECT last_value FROM dlock.versions');
$now->ask_it("BEGIN; SELECT count(dlock_enqueue('modest:' || i, '1h', 'me')) FROM generate_series(1, 100) i;"
	  . "SET LOCAL ROLE greedy; SELECT count(dlock_enqueue('greedy:' || i, '1h', 'me')) FROM generate_series(1, 1000) i; COMMIT");
until_sql($node, "SELECT count(*) FROM dlock_locks WHERE key ~ '^modest:'", 100, 'a hundred tickets are granted');
until_sql($node, 'SELECT count(*) FROM dlock_waiters', 0, 'a thousand behind them are missed');
cmp_ok($now->ask_it('SELECT last_value FROM dlock.versions') - $drawn, '<', 5000, 'those that fail do not undo the others again and again');
$now->ask_it("SELECT count(dlock_release('modest:' || i, owner => 'me')) FROM generate_series(1, 100) i");

#
# A chain: each of them waits for the owner of the next
#

# With o0 and o1 in a circle, the whole chain waits for a deadlock.
my $n = 15_000;
$now->ask_it("SELECT count(dlock_acquire('chain' || i, '1h', 'o' || i)) FROM generate_series(0, $n) i");
$now->ask_it("SELECT count(dlock_enqueue('chain' || (i - 1), NULL, 'o' || i)) FROM generate_series(2, $n) i");
until_granter_sleeps($node);
$pid = granter_of($node);
my $cpu = cpu_of($pid);
$now->ask_it("SELECT dlock_enqueue('chain1', NULL, 'o0'), dlock_enqueue('chain0', NULL, 'o1')");
until_sql($node, 'SELECT deadlocks FROM dlock_stats', 1, 'a deadlock at the end of a long chain is found');
cmp_ok(cpu_of($pid) - $cpu, '<', 5, 'and that does not take long');
withdraw_all();

# A long circle is described in short.
my $log_at = -s $node->logfile;
$now->ask_it("SELECT count(dlock_enqueue('chain' || i, NULL, 'o' || (i + 1) % 500)) FROM generate_series(0, 499) i");
until_sql($node, 'SELECT deadlocks FROM dlock_stats', 2, 'a circle of 500 is found');
like(slurp_file($node->logfile, $log_at), qr/There are 450 more in this circle\./, 'the log does not name all of them');
withdraw_all();

#
# A long line, and little memory
#

SKIP:
{
	skip 'there is no prlimit', 4 if system('prlimit --version > /dev/null 2>&1') != 0;

	my $small = client($node, 'small');

	$now->ask_it("SELECT dlock_acquire('full', '1h', 'holder')");
	$now->ask_it("SELECT count(dlock_enqueue('full', NULL, 'crowd' || i)) FROM generate_series(1, 15000) i");
	until_sql($node, "SELECT count(*) FROM dlock_waiters WHERE key = 'full'", 15000, 'thousands wait');

	# so much address space as it has, and a little more
	my ($pages) = split / /, slurp_file("/proc/$small->{pid}/statm");
	my $limit = $pages * 4096 + 4 * 1024 * 1024;
	system_or_bail('prlimit', '--pid', $small->{pid}, "--as=$limit:$limit");
	is($small->ask_it("SELECT dlock_acquire('full', '1h', wait => '1h')"), 'ERROR 53200', 'a waiter that runs out of memory when it looks for a deadlock');
	is($now->ask_it("SELECT count(*) FROM dlock_waiters WHERE pid = $small->{pid}"), 0, 'has left the queue');
	withdraw_all();
	is($now->ask_it('SELECT count(*) FROM dlock_waiters'), 0, 'which continues');
	$small->leave;
}

close_clients($now, $ear);
DlockWait::close_monitors();
$node->stop;
done_testing();
