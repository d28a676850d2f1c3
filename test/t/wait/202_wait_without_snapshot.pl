# CALL dlock_lock: a long wait that does not hold back VACUUM.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node('lock_proc', conf => "deadlock_timeout = 60s\n");
my $now = client($node, 'now');
my $w = client($node, 'w');

$now->ask_it('CREATE TABLE busy AS SELECT i FROM generate_series(1, 100) i');
$now->ask_it(q{CREATE PROCEDURE wait_in_proc(k text, INOUT v bigint DEFAULT NULL) LANGUAGE plpgsql AS
$$ BEGIN CALL dlock_lock(k, '1h', version => v); END $$});
$now->ask_it(q{CREATE PROCEDURE wait_twice(k text, INOUT v bigint DEFAULT NULL) LANGUAGE plpgsql AS
$$ BEGIN
  INSERT INTO busy VALUES (0);
  COMMIT;
  CALL dlock_lock(k, '1h', version => v);
  PERFORM dlock_release(k, v);
  COMMIT;
  CALL dlock_lock(k, '1h', version => v);
END $$});

my $key = 'k00';
sub fresh { $key++; return; }

sub xmin
{
	return $now->ask_it("SELECT coalesce(backend_xmin::text, 'none') FROM pg_stat_activity WHERE pid = $w->{pid}");
}

# Check whether the dead rows that exist now can be removed.
sub vacuumed
{
	$now->ask_it('DELETE FROM busy WHERE i = 0; INSERT INTO busy VALUES (0); DELETE FROM busy WHERE i = 0');
	$now->ask_it('VACUUM VERBOSE busy');
	my ($left) = $now->said =~ /(\d+) are dead but not yet removable/;
	return $left;
}

sub holds_up
{
	my ($sql, $blocks, $what) = @_;

	fresh();
	my $version = $now->ask_it("SELECT dlock_acquire('$key', '1h')");

	$sql =~ s/\$key/'$key'/g;
	$w->start($sql);
	until_waiting($node, $w, $key);
	if ($blocks)
	{
		isnt(xmin(), 'none', "$what: holds a snapshot");
		cmp_ok(vacuumed(), '>', 0, "$what: keeps dead rows");
	}
	else
	{
		is(xmin(), 'none', "$what: holds no snapshot");
		is(vacuumed(), 0, "$what: VACUUM removes everything");
	}

	# when it is woken to look again, it takes a snapshot and drops it
	is($now->ask_it("SELECT count(dlock_refresh('$key', $version, '50min')), count(dlock_refresh('$key', $version, '40min'))"),
		'1|1', 'refreshed');
	until_waiting($node, $w, $key);
	is(xmin(), 'none', "$what: holds no snapshot after another look") if !$blocks;
	$now->ask_it("SELECT dlock_release('$key', $version)");
	my $got = $w->answer;
	like($got, qr/^\d+$/, "$what: the version");
	cmp_ok($got, '>', $version, "$what: the version is a new one");
	is($w->ask_it("SELECT 1"), 1, 'the session continues');
	return $got;
}

my $got = holds_up('CALL dlock_lock($key, \'1h\')', 0, 'CALL');
is($now->ask_it("SELECT dlock_check('$key', $got)"), 'held', 'and committed');

$got = holds_up("CALL wait_in_proc(\$key)", 0, 'CALL in a procedure');
is($now->ask_it("SELECT dlock_check('$key', $got)"), 'held', 'and committed');
$got = holds_up("CALL wait_twice(\$key)", 0, 'CALL in a procedure that commits');
is($now->ask_it("SELECT dlock_check('$key', $got)"), 'held', 'and committed');
holds_up('DO $$ DECLARE v bigint; BEGIN CALL dlock_lock($key, version => v); PERFORM set_config(\'my.v\', v::text, false); END $$; SELECT current_setting(\'my.v\')',
	0, 'CALL in DO');
holds_up('DO $$ DECLARE v bigint; r record; BEGIN FOR r IN SELECT 1 LOOP CALL dlock_lock($key, version => v); END LOOP; PERFORM set_config(\'my.v\', v::text, false); END $$; SELECT current_setting(\'my.v\')',
	1, 'CALL in a loop over a query');
holds_up('DO $$ DECLARE v bigint; BEGIN BEGIN CALL dlock_lock($key, version => v); EXCEPTION WHEN division_by_zero THEN NULL; END; PERFORM set_config(\'my.v\', v::text, false); END $$; SELECT current_setting(\'my.v\')',
	1, 'CALL in a block with exceptions');
holds_up('PREPARE p AS SELECT 1; CALL dlock_lock($key)', 0, 'CALL after another statement');

# If the transaction needs its snapshot, the snapshot is kept.
holds_up('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 WHERE false; CALL dlock_lock($key)', 1, 'in a REPEATABLE READ block');
$w->ask_it('COMMIT');

# In a transaction block the lock belongs to the transaction.
fresh();
$w->ask_it('BEGIN');
like($w->ask_it("CALL dlock_lock('$key')"), qr/^\d+$/, 'in a block');
is($now->ask_it("SELECT dlock_acquire('$key')"), '', 'busy');
$w->ask_it('ROLLBACK');
isnt($now->ask_it("SELECT dlock_acquire('$key')"), '', 'gone with the transaction');

# With a wait, and with a version passed in, which does not matter.
is($w->ask_it("CALL dlock_lock('$key', wait => '10ms')"), '', 'time is up: NULL');
is($w->ask_it("CALL dlock_lock('$key', wait => '0')"), '', 'no wait: NULL');
fresh();
like($w->ask_it("CALL dlock_lock('$key', version => 4711)"), qr/^(?!4711$)\d+$/, 'version out, not in');

# Errors.
is($w->ask_it("CALL dlock_lock('', '1s')"), 'ERROR 22023', 'empty key');
is($w->ask_it("CALL dlock_lock(NULL, '1s')"), 'ERROR 22004', 'no key');
is($w->ask_it("CALL dlock_lock('$key', wait => '-1s')"), 'ERROR 22023', 'negative wait');
is($w->ask_it("CALL dlock_lock('$key', cleanup => NULL)"), 'ERROR 22004', 'no cleanup');
is($w->ask_it("CALL dlock_lock('$key', priority => -1)"), 'ERROR 22023', 'negative priority');
is($w->ask_it("BEGIN READ ONLY; CALL dlock_lock('$key')"), 'ERROR 25006', 'read only');
$w->ask_it('ROLLBACK');

# Cancelled or terminated while there is no snapshot.
fresh();
my $version = $now->ask_it("SELECT dlock_acquire('$key', '1h')");
$w->start("CALL dlock_lock('$key')");
until_waiting($node, $w, $key);
$now->ask_it("SELECT pg_cancel_backend($w->{pid})");
is($w->answer, 'ERROR 57014', 'cancelled');
is($w->ask_it("SELECT count(*) FROM dlock_waiters"), 0, 'queue is clean');
$w->ask_it("SET lock_timeout = '50ms'");
is($w->ask_it("CALL dlock_lock('$key')"), 'ERROR 55P03', 'lock_timeout');
$w->ask_it("RESET lock_timeout; SET statement_timeout = '50ms'");
is($w->ask_it("CALL dlock_lock('$key')"), 'ERROR 57014', 'statement_timeout');
$w->ask_it('RESET statement_timeout');
is( $w->ask_it("DO \$\$ DECLARE v bigint; BEGIN SET LOCAL lock_timeout = '50ms'; CALL dlock_lock('$key', version => v); EXCEPTION WHEN lock_not_available THEN RAISE EXCEPTION 'caught' USING ERRCODE = 'P0002'; END \$\$"),
	'ERROR P0002', 'caught in a block with exceptions');
$w->start("CALL dlock_lock('$key')");
until_waiting($node, $w, $key);
$now->ask_it("SELECT pg_terminate_backend($w->{pid})");
until_gone($node, $w->pid, 'terminated');
is($now->ask_it("SELECT count(*) FROM dlock_waiters"), 0, 'queue is clean');
$w->lost;

$now->leave;
DlockWait::close_monitors();
$node->stop;
done_testing();
