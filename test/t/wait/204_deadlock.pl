# Processes that wait for each other: one of them gets 40P01, and only then.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node('deadlock', conf => "deadlock_timeout = 100ms\nmax_connections = 50\n");
my @c = map { client($node, "c$_") } 0 .. 2;
$node->safe_psql('postgres',
	'CREATE TABLE work (i int PRIMARY KEY, n int); INSERT INTO work SELECT i, 0 FROM generate_series(0, 9) i');

my $n = 0;

# Each client does its first step, and then its second, which blocks.  One of them must fail,
# with a detail that names all of them.  The others get what they waited for once that one has
# released its locks.
sub circle
{
	my ($what, $undo, @steps) = @_;
	my @clients = @c[0 .. $#steps];
	my $prefix = 'x' . ++$n . '_';
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	begin_steps($what, $prefix, \@clients, \@steps);
	foreach my $i (0 .. $#steps)
	{
		$clients[$i]->start($steps[$i][1]);

		# all but the last one just wait
		until_sql($node,
			"SELECT wait_event_type IN ('Extension', 'Lock') FROM pg_stat_activity WHERE pid = $clients[$i]->{pid}",
			't', "$what: $i waits")
		  if $i < $#steps;
	}

	# they return one after the other, each making room for the next
	my @left = @clients;
	my @victims;
	while (@left)
	{
		my ($client) = first_back($node, $what, @left);
		my $answer = $client->answer;
		my $sql = $undo;

		@left = grep { $_ != $client } @left;
		if ($answer =~ /^ERROR/)
		{
			push @victims, $client;
			is($answer, 'ERROR 40P01', "$what: with a deadlock");
			like($client->said, qr/DETAIL: .*\bProcess $_->{pid} waits for\b.*blocked by process/s,
				"$what: names $_->{name}")
			  foreach @clients;
		}
		$sql =~ s/ME/$client->{name}/g;
		$client->ask_it($sql);
	}
	is(scalar(@victims), 1, "$what: one victim");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_waiters'), 0, "$what: nobody waits");
	return;
}

my $take = sub { return "SELECT dlock_acquire('\$$_[0]', '1h'" . ($_[1] // '') . ')' };
my $wait = sub { return $take->($_[0], ", wait => '1h'" . ($_[1] // '')) };

circle('two transactions', 'ROLLBACK',
	[ 'BEGIN;' . $take->('x'), $wait->('y') ],
	[ 'BEGIN;' . $take->('y'), $wait->('x') ]);
circle('three transactions', 'ROLLBACK',
	[ 'BEGIN;' . $take->('x'), $wait->('y') ],
	[ 'BEGIN;' . $take->('y'), $wait->('z') ],
	[ 'BEGIN;' . $take->('z'), $wait->('x') ]);
circle('in savepoints', 'ROLLBACK',
	[ 'BEGIN; SAVEPOINT s; SAVEPOINT t;' . $take->('x'), $wait->('y') ],
	[ 'BEGIN; SAVEPOINT s; SAVEPOINT t;' . $take->('y') . '; RELEASE t', $wait->('x') ]);
circle('REPEATABLE READ', 'ROLLBACK',
	[ 'BEGIN ISOLATION LEVEL REPEATABLE READ;' . $take->('x'), $wait->('y') ],
	[ 'BEGIN ISOLATION LEVEL REPEATABLE READ;' . $take->('y'), $wait->('x') ]);
circle('open releases',
	"ROLLBACK; SELECT count(dlock_release(key, version)) FROM dlock_locks WHERE value = 'ME'",
	[ $take->('x', ", value => 'c0'") . '; BEGIN;' . "SELECT dlock_release('\$x', version) FROM dlock_locks WHERE key = '\$x'", $wait->('y') ],
	[ $take->('y', ", value => 'c1'") . '; BEGIN;' . "SELECT dlock_release('\$y', version) FROM dlock_locks WHERE key = '\$y'", $wait->('x') ]);
circle('fences', 'ROLLBACK',
	[ $take->('x', ", cleanup => '1ms'") . '; BEGIN;' . "SELECT dlock_fence('\$x', version) FROM dlock_locks WHERE key = '\$x'", $wait->('y', ', priority => 1, force => true') ],
	[ $take->('y', ", cleanup => '1ms'") . '; BEGIN;' . "SELECT dlock_fence('\$y', version) FROM dlock_locks WHERE key = '\$y'", $wait->('x', ', priority => 1, force => true') ]);
circle('session locks', 'SELECT count(dlock_release(key, version)) FROM dlock_locks WHERE pid = pg_backend_pid()',
	[ $take->('x', ', session => true'), $wait->('y', ', session => true') ],
	[ $take->('y', ', session => true'), $wait->('x', ', session => true') ]);
circle('owners', "SELECT count(dlock_release(key, owner => 'ME')) FROM dlock_locks WHERE owner = 'ME'",
	[ $take->('x', ", owner => 'c0'"), $wait->('y', ", owner => 'c0'") ],
	[ $take->('y', ", owner => 'c1'"), $wait->('x', ", owner => 'c1'") ]);
circle('an owner, a session and a transaction',
	"ROLLBACK; SELECT count(dlock_release(key, version)) FROM dlock_locks WHERE owner = 'ME' OR pid = pg_backend_pid()",
	[ $take->('x', ", owner => 'c0'"), $wait->('y', ", owner => 'c0'") ],
	[ $take->('y', ', session => true'), $wait->('z', ', session => true') ],
	[ 'BEGIN;' . $take->('z'), $wait->('x') ]);

# With PostgreSQL's own locks, in both orders.
sub mixed
{
	my ($what, $first, $second) = @_;
	my $key = 'm' . ++$n;
	my ($row, $lock) = @c[0, 1];

	# $row holds the key and waits for the row; $lock holds the row and waits for the key.
	# PostgreSQL does not see this; the waiter for the key does.
	$row->ask_it("BEGIN; SELECT dlock_acquire('$key', '1h')");
	$lock->ask_it('BEGIN; SELECT n FROM work WHERE i = 1 FOR UPDATE');
	my %start = (
		row => sub { $row->start('SELECT n FROM work WHERE i = 1 FOR UPDATE') },
		lock => sub { $lock->start("SELECT dlock_acquire('$key', '1h', wait => '1h')") });
	my $pid = { row => $row->pid, lock => $lock->pid };

	$start{$first}->();
	until_sql($node,
		"SELECT wait_event_type IN ('Extension', 'Lock') FROM pg_stat_activity WHERE pid = $pid->{$first}",
		't', "$what: the first waits");
	$start{$second}->();
	is($lock->answer, 'ERROR 40P01', "$what: found");
	like($lock->said, qr/Process $pid->{row} waits for a PostgreSQL lock, blocked by process $pid->{lock}/,
		"$what: names the row lock");
	like($lock->said, qr/Process $pid->{lock} waits for lock "$key", blocked by process $pid->{row}/,
		"$what: names the key");
	$lock->ask_it('ROLLBACK');
	is($row->answer, 0, "$what: the other one continues");
	$row->ask_it('ROLLBACK');
	return;
}
mixed('row lock first', 'row', 'lock');
mixed('key first', 'lock', 'row');

# With itself.
is($c[0]->ask_it("BEGIN; SELECT dlock_acquire('self', '1h')") =~ /^\d+$/, 1, 'taken');
is($c[0]->ask_it("SELECT dlock_acquire('self', '1h', wait => '1h')"), 'ERROR 40P01', 'waiting for oneself');
like($c[0]->said, qr/Process (\d+) waits for lock "self", blocked by process \1\./, 'says so');
$c[0]->ask_it('ROLLBACK');
$c[0]->ask_it("SELECT dlock_acquire('self', '1h', session => true)");
is($c[0]->ask_it("SELECT dlock_acquire('self', '1h', wait => '1h')"), 'ERROR 40P01', "with its own session lock");
$c[0]->ask_it("SELECT dlock_release('self', version) FROM dlock_locks WHERE key = 'self'");

# Behind a waiter that waits for us: released in an open transaction, and wanted again.
$c[0]->ask_it("SELECT dlock_acquire('self', '1h', owner => 'o')");
$c[1]->start("SELECT dlock_acquire('self', '1h', wait => '1h')");
until_waiting($node, $c[1], 'self');
$c[0]->ask_it("BEGIN; SELECT dlock_release('self', owner => 'o')");
my $behind = $c[0]->ask_it("SELECT dlock_acquire('self', '1h', wait => '1h')");
$c[0]->ask_it($behind =~ /^ERROR/ ? 'ROLLBACK' : 'COMMIT');
$c[0]->ask_it("SELECT dlock_release('self', version) FROM dlock_locks WHERE key = 'self'");
is(join(' ', sort map { s/^\d+$/granted/r } $behind, $c[1]->answer), 'ERROR 40P01 granted',
	'behind a waiter that waits for us');

# No deadlock: a wait for a holder that does not wait, and for a lease whose owner is not
# waiting anywhere.
$c[0]->ask_it("BEGIN; SELECT dlock_acquire('open', '1h')");
is($c[1]->ask_it("SELECT dlock_acquire('open', '1h', wait => '500ms')"), '', 'waiting for an idle process is not a deadlock');
$c[0]->ask_it("COMMIT; SELECT dlock_acquire('l1', '1h')");
$c[1]->ask_it("SELECT dlock_acquire('l2', '1h')");
$c[0]->start("SELECT dlock_acquire('l2', '1h', wait => '1s')");
is($c[1]->ask_it("SELECT dlock_acquire('l1', '1h', wait => '500ms')"), '', 'leases without an owner: nobody knows');
is($c[0]->answer, '', 'both time out');

close_clients(@c);

#
# Busy, but always in the same order: no deadlock must be found
#

$node->append_conf('postgresql.conf', "deadlock_timeout = 10ms\n");
$node->reload;
my $script = $node->basedir . '/transfer.pgbench';
append_to_file($script, q{
\set a random(1, 4)
\set b random(1, 4)
\set lo least(:a, :b)
\set hi greatest(:a, :b)
BEGIN;
SELECT dlock_acquire('t' || :lo, '1h', wait => NULL) AS v1 \gset
SELECT pg_sleep(0.002);
\if :lo <> :hi
SELECT dlock_acquire('t' || :hi, '1h', wait => NULL) AS v2 \gset
SELECT pg_sleep(0.002);
SELECT dlock_release('t' || :hi, :v2);
\endif
SELECT dlock_release('t' || :lo, :v1);
COMMIT;
});
my $session_script = $node->basedir . '/transfer_session.pgbench';
append_to_file($session_script, q{
\set a random(1, 4)
\set b random(1, 4)
\set lo least(:a, :b)
\set hi greatest(:a, :b)
SELECT dlock_acquire('t' || :lo, '1h', wait => NULL, session => true, owner => 'o' || :client_id) AS v1 \gset
SELECT pg_sleep(0.002);
\if :lo <> :hi
SELECT dlock_acquire('t' || :hi, '1h', wait => NULL, session => true, owner => 'o' || :client_id) AS v2 \gset
SELECT dlock_release('t' || :hi, :v2);
\endif
SELECT dlock_release('t' || :lo, :v1);
});
my $offset = -s $node->logfile;
my ($out, $err) = ('', '');
my $rc = IPC::Run::run(
	[
		'pgbench', '-n', '-c', 16, '-j', 2, '-T', 5, '--max-tries=1',
		'-h', $node->host, '-p', $node->port,
		'-f', "$script\@2", '-f', "$session_script\@1", 'postgres'
	],
	'>', \$out, '2>', \$err);
ok($rc, 'transfers in the same order') or diag($err);
unlike(slurp_file($node->logfile, $offset), qr/deadlock detected/, 'no deadlock was found');
unlike($err, qr/ERROR/, 'no client failed');
like($out, qr/number of transactions actually processed: [1-9]\d+/, 'something was done');
note $out;
is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits');

DlockWait::close_monitors();
$node->stop;
done_testing();
