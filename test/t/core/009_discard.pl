# DISCARD ALL and dlock_release_session() release session locks, as DISCARD ALL does
# advisory locks: a connection that a pooler gives to the next client holds nothing of the
# previous one.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockBouncer;
use DlockTest;
use DlockWait;

my $node = new_node('discard');
my ($holder, $now, $waiter) = map { client($node, $_) } qw(holder now waiter);

sub take
{
	my ($key, %params) = @_;
	my $session = $params{session} // 'true';

	return $holder->ask_it("SELECT dlock_acquire('$key', '1h', session => $session)");
}

sub held
{
	return $now->ask_it("SELECT coalesce(string_agg(key, ' ' ORDER BY key), '') FROM dlock_locks");
}

# DISCARD ALL
take('a');
take('b');
my $lease = take('lease', session => 'false');
is(held(), 'a b lease', 'two session locks and a lease');
$waiter->start("SELECT dlock_acquire('a', '1h', wait => '1h')");
until_waiting($node, $waiter, 'a');
is($holder->ask_it('DISCARD PLANS; DISCARD SEQUENCES; DISCARD TEMP; RESET ALL'), '', 'the parts of it');
is(held(), 'a b lease', 'keep them');
$holder->ask_it('DISCARD ALL');
like($waiter->answer, qr/^\d+$/, 'DISCARD ALL releases a session lock, and wakes its waiter');
is(held(), 'a lease', 'all session locks, and no lease');
$waiter->ask_it("SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'a'");

# the session continues, and so does the list of its locks
take('c');
is(held(), 'c lease', 'a session lock after it');
$holder->ask_it('DISCARD ALL');
is(held(), 'lease', 'is released by the next one');
$holder->ask_it('DISCARD ALL');

# on request; it commits or rolls back with its transaction
take('d');
take('e');
$holder->ask_it('BEGIN');
is($holder->ask_it('SELECT dlock_release_session()'), 2, 'dlock_release_session() says how many it released');
is($holder->ask_it('SELECT dlock_release_session()'), 0, 'none is left');
is(held(), 'd e lease', 'until it is committed they are held');
$holder->ask_it('ROLLBACK');
is(held(), 'd e lease', 'a rollback keeps them');
$holder->ask_it('BEGIN; SAVEPOINT s; SELECT dlock_release_session(); ROLLBACK TO s; COMMIT');
is(held(), 'd e lease', 'ROLLBACK TO does, too');
is($holder->ask_it('SELECT dlock_release_session()'), 2, 'released, and committed');
is(held(), 'lease', 'they are gone');

# locks of another role of the same session
$node->safe_psql('postgres', 'CREATE ROLE alice');
$holder->ask_it('SET ROLE alice');
take('f');
is($holder->ask_it('RESET ROLE; SELECT dlock_release_session()'), 0, 'dlock_release_session() leaves the locks of another role');
is(held(), 'f lease', 'it is held');
is($holder->ask_it('SET ROLE alice; SELECT dlock_release_session(); RESET ROLE'), 1, 'and releases those of its own');
$holder->ask_it('SET ROLE alice');
take('f');
$holder->ask_it('RESET ROLE');
$holder->ask_it('DISCARD ALL');
is(held(), 'lease', 'DISCARD ALL releases those of all roles');

# the list forgets what was rolled back, and what is not held any more
$holder->ask_it(q{DO $$ BEGIN FOR i IN 1..20000 LOOP PERFORM dlock_acquire('r' || i, '1h', session => true); ROLLBACK; END LOOP; END $$});
$holder->ask_it(q{SELECT count(dlock_acquire('x' || i, '1ms', session => true)) FROM generate_series(1, 20000) i});
$holder->ask_it('DISCARD ALL');
is( $holder->ask_it(q{SELECT dlock_acquire('one', '1h', session => true) > 0;
SELECT dlock_release_session()}), "t\n1", 'one lock is in the list');
cmp_ok($holder->ask_it(q{SELECT sum(used_bytes) FROM pg_backend_memory_contexts WHERE name = 'dlock session grants'}),
	'<', 4_000_000, 'the list of a session that took 40,000 locks has room for them, and no more');

# a row that another transaction is using: it waits instead of leaving the lock
my $version = take('g');
$now->ask_it("BEGIN; SELECT dlock_fence('g', $version)");
$holder->start('DISCARD ALL');
until_sql($node, "SELECT count(*) FROM pg_locks WHERE pid = $holder->{pid} AND NOT granted", 1, 'DISCARD ALL waits for an open fence');
$now->ask_it('COMMIT');
is($holder->answer, '', 'and continues when it ends');
is(held(), 'lease', 'released');

# with default_transaction_read_only, and after the extension was dropped
take('h');
$holder->ask_it('SET default_transaction_read_only = on');
$holder->ask_it('DISCARD ALL');
is(held(), 'lease', 'read only by default');
$node->safe_psql('postgres', 'CREATE DATABASE dropped');
add_extension_in($node, 'dropped');
my $other = client($node, 'other', database => 'dropped');
$other->ask_it("SELECT dlock_acquire('k', '1h', session => true)");
$node->safe_psql('dropped', 'DROP EXTENSION dlock');
is($other->ask_it('DISCARD ALL'), '', 'the extension was dropped');
$other->leave;

$now->ask_it("SELECT dlock_release('lease', $lease)");

# PgBouncer in session mode: the server connection stays when the client disconnects.
my $bouncer = DlockBouncer->new(
	mode => 'session',
	pool_size => 1,
	user => $node->safe_psql('postgres', 'SELECT current_user'),
	target => 'host=' . $node->host . ' port=' . $node->port);
my $dsn = 'host=' . $bouncer->folder . ' port=' . $bouncer->port . ' dbname=postgres';

sub through
{
	my ($sql) = @_;
	my ($out, $err) = run_command([ 'psql', '-XAtq', '-d', $dsn, '-c', $sql ]);

	return $out;
}
like(through("SELECT dlock_acquire('pooled', '1h', session => true) || ' ' || pg_backend_pid()"), qr/^\d+ \d+$/, 'a session lock through PgBouncer');
until_sql($node, "SELECT count(*) FROM dlock_locks", 0, 'is released when its client goes');
is(through('SELECT pg_backend_pid()') ne '', 1, 'the connection serves the next one');
undef $bouncer;

DlockWait::close_monitors();
close_clients($holder, $now, $waiter);
$node->stop;
done_testing();
