# The complete trail: logical decoding shows each grant and its end, in order, and nothing
# that was rolled back.  The query is that of docs/operations.md.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockDocs;
use DlockTest;
use DlockWait;

my $node = new_node('audit', conf => "wal_level = logical\n");
my ($create, $read) = map { $_->{text} }
  grep { $_->{text} =~ /lock_audit/ } blocks('docs/operations.md', slurp_file("$FindBin::RealBin/../../../docs/operations.md"));
$node->safe_psql('postgres', 'CREATE ROLE app; CREATE ROLE boss');
my $now = client($node, 'now');
my ($app, $boss) = map { client($node, $_, role => $_) } qw(app boss);

like($create, qr/create_logical_replication_slot/, 'docs/operations.md creates a slot');
$now->ask_it($create);
$read =~ s/peek_changes/get_changes/ or die 'docs/operations.md does not peek';
$read =~ s/;\s*$//;

# A release does not flush its WAL; a commit that does takes it along.
sub flush
{
	$now->ask_it("SELECT pg_logical_emit_message(true, 'test', '')");
	return;
}

# What has happened since the last call, a line for each change.
sub trail
{
	my ($expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	flush();
	is($now->ask_it("SELECT concat_ws(' ', key, change, version, CASE held WHEN true THEN 'held' WHEN false THEN 'free' END, role) FROM ($read) t"),
		$expected, $what);
	return;
}

trail('', 'nothing yet');
my $v = $app->ask_it("SELECT dlock_acquire('k', '1h', owner => 'w', value => 'x')");
trail("k INSERT $v held app", 'a grant');
$app->ask_it("SELECT dlock_refresh('k', $v); SELECT dlock_acquire('k', '1h', owner => 'w')");
trail("k UPDATE $v held app\nk UPDATE $v held app", 'renewals have the same version');
$app->ask_it("SELECT dlock_release('k', $v)");
trail("k UPDATE $v free app", 'a release');
$app->ask_it("BEGIN; SELECT dlock_acquire('k', '1h'); ROLLBACK");
$app->ask_it("SELECT dlock_acquire('k2', '1h'); SELECT dlock_acquire('k2', '1h')");
my $v2 = $app->ask_it("SELECT version FROM dlock_get('k2')");
trail("k2 INSERT $v2 held app", 'neither a rollback nor a busy acquire');
$app->ask_it("BEGIN; SELECT dlock_acquire('k3', '1h'); SAVEPOINT s; SELECT dlock_acquire('k4', '1h'); ROLLBACK TO s; COMMIT");
my $v3 = $app->ask_it("SELECT version FROM dlock_get('k3')");
trail("k3 INSERT $v3 held app", 'nor what a savepoint took back');
my $v4 = $boss->ask_it("SELECT dlock_acquire('k3', '1h', priority => 1)");
trail("k3 UPDATE $v4 held boss", 'a preemption: another version');
$now->ask_it("SELECT dlock_force_release('k3', 'test')");
trail("k3 UPDATE $v4 free boss", 'a forced release');
my $v5 = $app->ask_it("SELECT dlock_acquire('k3', '10ms'); SELECT pg_sleep(0.02)");
$v5 =~ s/\n.*//s;
my $v6 = $boss->ask_it("SELECT dlock_acquire('k3', '1h')");
trail("k3 UPDATE $v5 held app\nk3 UPDATE $v6 held boss", 'a grant after an expiry');

# in the order of commits, not of calls
$app->ask_it("BEGIN; SELECT dlock_acquire('o1', '1h')");
$boss->ask_it("SELECT dlock_acquire('o2', '1h')");
$app->ask_it('COMMIT');
my ($o1, $o2) = map { $now->ask_it("SELECT version FROM dlock_get('$_')") } qw(o1 o2);
trail("o2 INSERT $o2 held boss\no1 INSERT $o1 held app", 'in the order of commits');

# keys and roles with quotes
$now->ask_it(q{CREATE ROLE "o'role"; SET ROLE "o'role"});
$v = $now->ask_it(q{SELECT dlock_acquire($$it's 'held[boolean]:true$$, '1h')});
$now->ask_it('RESET ROLE');
trail(qq{it's 'held[boolean]:true INSERT $v held "o''role"}, 'quotes');

# places, and what the reaper removes
$now->ask_it('ALTER TABLE dlock.locks REPLICA IDENTITY FULL');
$v = $app->ask_it("SELECT dlock_acquire('r', '1h', shared => true)");
$app->ask_it("SELECT dlock_release('r', $v)");
trail("r INSERT $v held app\nr DELETE $v held app", 'a reader; with REPLICA IDENTITY FULL a deleted row has its version');
$v = $app->ask_it("SELECT dlock_acquire('e', '10ms')");
trail("e INSERT $v held app", 'a grant that will expire');
$node->append_conf('postgresql.conf', "dlock.reap_interval = '10ms'\n");
$node->reload;
until_sql($node, "SELECT count(*) FROM dlock.locks WHERE key = 'e'", 0, 'the reaper removes it');
flush();
like($now->ask_it("SELECT concat_ws(' ', key, change, version) FROM ($read) t WHERE key = 'e'"), qr/^e DELETE $v$/, 'and that is in the trail');

# Publications: FOR ALL TABLES contains the table, FOR TABLES IN SCHEMA does not.
$now->ask_it('CREATE PUBLICATION everything FOR ALL TABLES; CREATE PUBLICATION some FOR TABLES IN SCHEMA public');
is($now->ask_it("SELECT string_agg(pubname, ' ') FROM pg_publication_tables WHERE schemaname = 'dlock' AND tablename = 'locks'"), 'everything',
	'which publications contain the locks');

# who may read it
is($app->ask_it("SELECT count(*) FROM pg_logical_slot_peek_changes('lock_audit', NULL, NULL)"), 'ERROR 42501', 'not for everybody');

close_clients($now, $app, $boss);
DlockWait::close_monitors();
$node->stop;
done_testing();
