# dlock_get(), dlock_list(), and what dlock_locks shows of open transactions.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use IO::Socket::UNIX;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use DlockTest;
use DlockWait;

my $node = new_node('get', streaming => 1, conf => "deadlock_timeout = 60s\n");
$node->safe_psql('postgres', 'CREATE ROLE app; CREATE ROLE other; CREATE ROLE stats IN ROLE pg_read_all_stats');
my $now = client($node, 'now');
my ($a, $b) = map { client($node, $_) } qw(a b);
my ($app, $other, $stats) = map { client($node, $_, role => $_) } qw(app other stats);

my $columns = q{concat_ws(' ', key, version, state, 'by ' || using_pid)};

# The same of the view, of dlock_get() and of dlock_list(), which must agree.
sub shown
{
	my ($key, $client) = @_;
	my @answers = map { ($client // $now)->ask_it("SELECT string_agg($columns, ', ' ORDER BY version) FROM $_") }
	  ("dlock_locks WHERE key = '$key'", "dlock_get('$key')", "dlock_list('$key') WHERE key = '$key'");

	return $answers[0] if $answers[0] eq $answers[1] && $answers[0] eq $answers[2];
	return "the view: $answers[0]; dlock_get: $answers[1]; dlock_list: $answers[2]";
}

# A grant, and what open transactions do with it.
is(shown('k'), '', 'nobody has it');
$a->ask_it("BEGIN; SELECT dlock_acquire('k', '1h')");
is(shown('k'), "k pending by $a->{pid}", 'an open acquire of a new key');
like(shown('k', $a), qr/^k \d+ held$/, 'which holds it for itself');
is($now->ask_it("SELECT num_nonnulls(owner, role, value, priority, acquired_at, expires_at, ttl, pid, slots) FROM dlock_get('k')"), 0, 'nothing else is known of it');
$a->ask_it('ROLLBACK');
is(shown('k'), '', 'a rollback');
my $v = $a->ask_it("SELECT dlock_acquire('k', '1h')");
is(shown('k'), "k $v held", 'held');
is($now->ask_it("SELECT count(*) FROM dlock_get('k') g JOIN dlock_locks l ON to_jsonb(g) - 'remaining' = to_jsonb(l) - 'remaining'"), 1, 'the same row, in all columns');
$a->ask_it("BEGIN; SELECT dlock_refresh('k', $v)");
is(shown('k'), "k $v held by $a->{pid}", 'an open refresh');
$a->ask_it("ROLLBACK; BEGIN; SELECT dlock_release('k', $v)");
is(shown('k'), "k $v held by $a->{pid}", 'an open release');
$a->ask_it("ROLLBACK; BEGIN; SAVEPOINT s; SELECT dlock_fence('k', $v)");
is(shown('k'), "k $v held by $a->{pid}", 'an open fence, in a subtransaction');
$b->ask_it("BEGIN; SELECT dlock_fence('k', $v)");
like(shown('k'), qr/^k $v held by (?:$a->{pid}|$b->{pid})$/, 'two fences');
$a->ask_it('COMMIT');
is(shown('k'), "k $v held by $b->{pid}", 'the one that is left');
$b->ask_it('COMMIT');
is(shown('k'), "k $v held", 'none');
$a->ask_it("SELECT dlock_release('k', $v)");
is(shown('k'), '', 'released');
$a->ask_it("BEGIN; SELECT dlock_acquire('k', '1h')");
is(shown('k'), "k pending by $a->{pid}", 'an open acquire of a key that was released');
$a->ask_it('ROLLBACK');

# a grant that expires while a transaction is open keeps the key busy
$v = $a->ask_it("SELECT dlock_acquire('k', '200ms')");
$a->ask_it("BEGIN; SELECT dlock_fence('k', $v)");
until_sql($node, "SELECT state FROM dlock_locks WHERE key = 'k'", 'pending', 'a fence outlasts the TTL');
is(shown('k'), "k pending by $a->{pid}", 'and shows who keeps the key busy');
is($now->ask_it("SELECT dlock_acquire('k')"), '', 'it is busy');
$a->ask_it('COMMIT');
is(shown('k'), '', 'until the transaction ends');
$a->ask_it("BEGIN; SELECT dlock_acquire('k', '1h')");
is(shown('k'), "k pending by $a->{pid}", 'an open acquire of a key that has expired');
$a->ask_it('COMMIT');
$b->ask_it("BEGIN; SELECT dlock_acquire('k', '1h', priority => 1)");
like(shown('k'), qr/^k \d+ held by $b->{pid}$/, 'a preemption that is open');
$b->ask_it('ROLLBACK');
$a->ask_it("SELECT dlock_release(key, version) FROM dlock_get('k')");

# a value that goes to the toast table is added in two steps
$a->ask_it("BEGIN; SELECT dlock_acquire('long', '1h', value => string_agg(md5(i::text), '')) FROM generate_series(1, 1000) i");
is(shown('long'), "long pending by $a->{pid}", 'an open acquire with a long value');
$a->ask_it('COMMIT');
is($now->ask_it("SELECT length(value) FROM dlock_get('long')"), 32000, 'and the value');

# Several holders.
$a->ask_it("SELECT dlock_acquire('s', '1h', slots => 3)") foreach 1 .. 2;
$b->ask_it("BEGIN; SELECT dlock_acquire('s', '1h', slots => 3)");
like(shown('s'), qr/^s \d+ held, s \d+ held, s pending by $b->{pid}$/, 'places, one of them in an open transaction');
$b->ask_it('COMMIT');
like(shown('s'), qr/^s \d+ held, s \d+ held, s \d+ held$/, 'committed');
$a->ask_it("SELECT dlock_acquire('c', '1h', at_least => '1h'); SELECT dlock_release(key, version) FROM dlock_get('c')");
like(shown('c'), qr/^c \d+ cooling$/, 'cooling');
$a->ask_it("SELECT dlock_acquire('z', '1ms', lazy => true); SELECT pg_sleep(0.01)");
like(shown('z'), qr/^z \d+ lapsed$/, 'lapsed');

# Who sees what.
$app->ask_it("SELECT dlock_acquire('secret', '1h', owner => 'o', value => 'v')");
foreach my $from ('dlock_locks', "dlock_get('secret')", "dlock_list('sec*')")
{
	is($_->[0]->ask_it("SELECT role, owner, value FROM $from WHERE key = 'secret'"), $_->[1], "$from: $_->[2]")
	  foreach [ $app, 'app|o|v', 'the role itself' ], [ $stats, 'app|o|v', 'pg_read_all_stats' ], [ $other, 'app||', 'another role' ];
}
$app->ask_it("BEGIN; SELECT dlock_acquire('uncommitted', '1h', owner => 'o', value => 'v')");
is($other->ask_it("SELECT role, owner, value, state FROM dlock_locks WHERE key = 'uncommitted'"), '|||pending', 'nothing of what is not committed');
$app->ask_it('ROLLBACK');
$app->start("SELECT dlock_acquire('s', '1h', owner => 'o', wait => '1h')");
until_waiting($node, $app, 's');
is($other->ask_it("SELECT role, owner, slots FROM dlock_waiters"), 'app||1', 'the role of a waiter, not its owner');
$now->ask_it("SELECT pg_cancel_backend($app->{pid})");
$app->answer;

# Ranges.
$now->ask_it("SELECT dlock_force_release(key, 'test') FROM dlock_locks");
$a->ask_it("SELECT dlock_acquire(k, '1h') FROM unnest('{a,a:1,a:10,a:2,a;,b,ä,z%}'::text[]) k");
$a->ask_it("SELECT dlock_acquire('a:2x', '1h', slots => 2)") foreach 1 .. 2;

sub list
{
	my ($arguments) = @_;

	return $now->ask_it("SELECT coalesce(string_agg(key, ' '), '') FROM dlock_list($arguments)");
}
is(list(''), 'a a:1 a:10 a:2 a:2x a:2x a; b z% ä', 'all, in the order of bytes');
is(list("'a:*'"), 'a:1 a:10 a:2 a:2x a:2x', 'a prefix');
is(list("'a:*', \"limit\" => 2"), 'a:1 a:10', 'at most this many keys');
is(list("'a:*', 'a:10', 2"), 'a:2 a:2x a:2x', 'the next ones; all holders of a key');
is(list("'a:*', 'a:2x'"), '', 'and no more');
is(list("'a:*', 'Z'"), 'a:1 a:10 a:2 a:2x a:2x', 'after a key before the prefix');
is(list("'z%'"), 'z%', 'no pattern of LIKE');
is(list("'a'"), 'a', 'a pattern without a star is one key');
is(list("'a:?'"), 'a:1 a:2', 'a question mark');
is(list("'?'"), 'a b ä', 'is one character, not one byte');
is(list("'*2*'"), 'a:2 a:2x a:2x', 'a star in front');
is(list("'*:*x'"), 'a:2x a:2x', 'two of them');
is(list("'a\\:2'"), 'a:2', 'a backslash');
is(list("'a:\\*'"), '', 'takes the meaning from a star');
is(list("''"), '', 'the empty pattern');
is(list("'y'"), '', 'nothing');
is(list("'a*', \"limit\" => 1"), 'a', 'one');
is(list("'*2*', \"limit\" => 1"), 'a:2', 'one that matches');
$a->ask_it("SELECT dlock_release(key, version) FROM dlock_list('a:1*')");
is(list("'a*', \"limit\" => 2"), 'a a:2', 'released ones are not counted');
fails_with($node, "SELECT * FROM dlock_list($_->[0])", $_->[1], [ $_->[2] ], "dlock_list($_->[0])")
  foreach [ 'NULL', '22004', qr/pattern must not be null/ ], [ "'a', \"limit\" => 0", '22023', qr/limit must be greater than zero/ ];
fails_with($node, "SELECT * FROM dlock_get($_->[0])", $_->[1], [], "dlock_get($_->[0])")
  foreach [ 'NULL', '22004' ], [ "''", '22023' ];

# A SERIALIZABLE reader makes nobody's lock call fail.
$a->ask_it("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM dlock_list(); SELECT count(*) FROM dlock_get('b'); SELECT count(*) FROM dlock_locks; CREATE TABLE IF NOT EXISTS t ()");
is($now->ask_it("SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND relation IN ('dlock.locks'::regclass, 'dlock.locks_pkey'::regclass)"), 0, 'no predicate lock');
$a->ask_it('ROLLBACK');
is($now->ask_it("BEGIN READ ONLY; SELECT count(*) FROM dlock_get('b'); COMMIT"), 1, 'in a read-only transaction');

# Nobody waits for the answer any more: the client leaves while its backend is stopped, and
# has not read the statement.
sub send_and_leave
{
	my ($sql) = @_;
	my $socket = IO::Socket::UNIX->new(Peer => $node->host . '/.s.PGSQL.' . $node->port) or die "could not connect: $!";
	my $startup = pack 'N Z* Z* Z* Z* x', 196608, 'user', $node->safe_psql('postgres', 'SELECT current_user'), 'database', 'postgres';
	my ($type, $length, $body, $pid) = ('');

	$socket->autoflush(1);
	print $socket pack('N', 4 + length $startup) . $startup;
	while ($type ne 'Z')
	{
		read $socket, my $head, 5 or die 'the server does not answer';
		($type, $length) = unpack 'a N', $head;
		read $socket, $body, $length - 4;
		$pid = unpack 'N', $body if $type eq 'K';
	}
	kill 'STOP', $pid;
	print $socket 'Q' . pack('N Z*', 5 + length $sql, $sql);
	close $socket;
	kill 'CONT', $pid;
	return $pid;
}

$node->safe_psql('postgres', "CREATE TABLE answered (n int); SELECT count(dlock_acquire('gone:' || i, '1h')) FROM generate_series(1, 10000) i");
foreach my $from ('dlock_locks', "dlock_list('gone:*')")
{
	until_gone($node, send_and_leave("INSERT INTO answered SELECT count(*) FROM $from"), "$from: the backend ends");
	is($now->ask_it('SELECT count(*) FROM answered'), 0, "$from: it has noticed that its client is gone");
}
$node->safe_psql('postgres', "DROP TABLE answered; SELECT count(dlock_force_release(key, 'test')) FROM dlock_list('gone:*')");

# On a standby.
my $standby = new_standby($node, 'standby');
$node->safe_psql('postgres', 'CREATE TABLE flushed ()');	# the releases were not
$node->wait_for_catchup($standby);
is($standby->safe_psql('postgres', "SELECT string_agg(key, ' ') FROM dlock_list('a*')"), 'a a:2 a:2x a:2x a;', 'dlock_list on a standby');
is($standby->safe_psql('postgres', "SELECT key, state, using_pid FROM dlock_get('b')"), 'b|held|', 'dlock_get on a standby');
$standby->stop;

# Beside a million locks: by the index, so in a fraction of the time that the whole view
# takes.  The aim is 100 ms; the figures are in the output.
$now->ask_it("SELECT dlock_force_release(key, 'test') FROM dlock_locks");
$node->safe_psql('postgres', "SET dlock.durable_grants = off; SET synchronous_commit = off; SELECT count(dlock_acquire('m:' || i, '1d')) FROM generate_series(1, 1000000) i");
$node->safe_psql('postgres', "SELECT dlock_acquire('zz:1', '1h')");
my $whole = time;
$now->ask_it('SELECT count(*) FROM dlock_locks');
$whole = 1000 * (time - $whole);
foreach my $query ("dlock_get('m:500000')", "dlock_list('m:5000*', NULL, 100)", q{dlock_list("limit" => 100)},
	"dlock_list('zz:*')", "dlock_list('m:*', 'm:999', 100)")
{
	my ($best, $rows) = (1e9);

	$now->ask_it("SELECT count(*) FROM $query");
	foreach (1 .. 5)
	{
		my $began = time;

		$rows = $now->ask_it("SELECT count(*) FROM $query");
		$best = 1000 * (time - $began) if 1000 * (time - $began) < $best;
	}
	cmp_ok($rows, '>', 0, "$query: $rows rows");
	cmp_ok($best, '<', $whole / 5, sprintf '%s: %.1f ms, the whole view: %.0f ms', $query, $best, $whole);
}
# The whole view does not fit into memory, a page does.
my $plan = 'EXPLAIN (ANALYZE, BUFFERS) SELECT * FROM ';
like($now->ask_it($plan . 'dlock_locks'), qr/temp .*written/, 'the whole view needs a temporary file');
unlike($now->ask_it($plan . qq{dlock_list('*', NULL, 1000)}), qr/temp /, 'a page needs none');

close_clients($now, $a, $b, $app, $other, $stats);
DlockWait::close_monitors();
$node->stop('immediate');
done_testing();
