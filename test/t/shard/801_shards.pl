# A database that serves some shards only refuses all other keys: at once, after a crash,
# a promotion and a restore, and also those that were waiting or had decided before.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

# dlock_shard('a') is 579, of b it is 1017, of c it is 879
my $only_b = '{[1017,1018)}';
my $primary = new_node('primary', streaming => 1, conf => "synchronous_commit = off\nwal_writer_delay = 10s\n");

sub serve
{
	my ($node, $shards, $database) = @_;

	$node->safe_psql($database // 'postgres', 'SELECT dlock_serve(' . (defined $shards ? "'$shards'" : 'NULL') . ')');
	return;
}

sub refuses
{
	my ($node, $key, $shard, $what, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	fails_with($node, "SELECT dlock_acquire('$key')", 'LK002', [qr/DETAIL:  Shard $shard is not served here\./], $what, %params);
	return;
}

sub grants
{
	my ($node, $key, $what, %params) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	like($node->safe_psql($params{database} // 'postgres', "SELECT dlock_acquire('$key', '1 ms')"), qr/^\d+$/, $what);
	return;
}

#
# Others see the change with their next request, in whatever transaction they are.
#

my %other = map { $_ => client($primary, $_) } qw(plain block serializable);
is($other{$_}->ask_it("SELECT dlock_acquire('a', '1 ms') IS NOT NULL"), 't', "$_: a is granted") foreach qw(plain);
$other{block}->ask_it('BEGIN');
$other{block}->ask_it("SELECT dlock_acquire('c', '1h')");
$other{serializable}->ask_it('BEGIN ISOLATION LEVEL SERIALIZABLE');
$other{serializable}->ask_it('SELECT count(*) FROM dlock.served');

my $changer = client($primary, 'changer');
$changer->ask_it('BEGIN');
$changer->ask_it("SELECT dlock_serve('$only_b')");
is($other{plain}->ask_it("SELECT dlock_acquire('a', '1 ms') IS NOT NULL"), 't', 'a change that is not committed changes nothing');
$changer->ask_it('COMMIT');
is($other{$_}->ask_it("SELECT dlock_acquire('a', '1 ms')"), 'ERROR LK002', "$_: a is refused") foreach qw(plain block serializable);
like($other{plain}->said, qr/Shard 579 is not served here/, 'the detail has the shard');
is($other{plain}->ask_it("SELECT dlock_acquire('b', '1 ms') IS NOT NULL"), 't', 'b is granted');

# the same from pg_restore --disable-triggers
$changer->ask_it($_) foreach 'ALTER TABLE dlock.served DISABLE TRIGGER ALL', "UPDATE dlock.served SET shards = '{[579,580)}'",
  'ALTER TABLE dlock.served ENABLE TRIGGER ALL';
is($other{plain}->ask_it("SELECT dlock_acquire('b', '1 ms')"), 'ERROR LK002', 'restored without triggers: b is refused');
is($other{plain}->ask_it("SELECT dlock_acquire('a', '1 ms') IS NOT NULL"), 't', 'restored without triggers: a is granted');
$changer->ask_it("ALTER TABLE dlock.served ENABLE ALWAYS TRIGGER $_") foreach qw(served_changed served_truncated);
serve($primary, $only_b);
is($other{plain}->ask_it("SELECT dlock_acquire('a', '1 ms')"), 'ERROR LK002', 'and back');
close_clients(values %other);

#
# Waiters: those of the shard that leaves are woken and refused, the others stay.
#

serve($primary, undef);
my %version = map { $_ => $primary->safe_psql('postgres', "SELECT dlock_acquire('$_', '1h')") } qw(a b);
my %waiter = (
	first => [ 'a', "SELECT dlock_acquire('a', '1h', wait => NULL)" ],
	second => [ 'a', "CALL dlock_lock('a', '1h')" ],
	shared => [ 'a', "SELECT dlock_acquire('a', '1h', shared => true, wait => '1h')" ],
	several => [ 'a', "SELECT dlock_acquire_all(ARRAY['a', 'z'], '1h', wait => '1h')" ],
	stays => [ 'b', "SELECT dlock_acquire('b', '1h', wait => '1h')" ]);
my %waits;
foreach my $name (sort keys %waiter)
{
	$waits{$name} = client($primary, $name)->start($waiter{$name}[1]);
	until_waiting($primary, $waits{$name}, $waiter{$name}[0]);
}
serve($primary, $only_b);
is($waits{$_}->answer, 'ERROR LK002', "$_: refused while it waits") foreach qw(first second shared several);
is(queue_of($primary, 'a'), '', 'nobody waits for a any more');
is(queue_of($primary, 'b'), 'stays', 'the waiter of b still waits');
is($primary->safe_psql('postgres', "SELECT dlock_check('a', $version{a}), dlock_release('a', $version{a}), dlock_release('b', $version{b})"),
	'held|released|released', 'the holders keep what they have');
my $got = $waits{stays}->answer;
is($primary->safe_psql('postgres', "SELECT dlock_release('b', $got)"), 'released', 'the waiter of b gets it');
close_clients(values %waits);

#
# A transaction that acquired before the change and commits after it: dlock_settle waits
# for it, and for no later one.
#

serve($primary, undef);
my %straddler = map { $_ => client($primary, $_) } qw(grants rolls_back later);
$straddler{$_}->ask_it("BEGIN; SELECT dlock_acquire('straddles $_', '1h')") foreach qw(grants rolls_back);
serve($primary, '{}');
$changer->start("SELECT dlock_settle()");
until_sql($primary, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $changer->pid, 'Lock', 'dlock_settle waits');
$straddler{later}->ask_it('BEGIN');
is($straddler{later}->ask_it("SELECT dlock_acquire('a')"), 'ERROR LK002', 'a later one is refused');
$straddler{grants}->ask_it('COMMIT');
ok(!$changer->came_back, 'it still waits');
$straddler{rolls_back}->ask_it('ROLLBACK');
is($changer->answer, '', 'it has settled');
is($primary->safe_psql('postgres', "SELECT string_agg(key, ' ') FROM dlock_locks WHERE key LIKE 'straddles%'"),
	'straddles grants', 'what is held now is all that there will be');
is($changer->ask_it("SET lock_timeout = '1s'; SELECT dlock_settle()"), '', 'an open transaction that holds nothing is not waited for');
close_clients(values %straddler, $changer);

#
# A crash at once: the change is as durable as a grant, whatever synchronous_commit says.
#

serve($primary, $only_b);
$primary->stop('immediate');
$primary->start;
refuses($primary, 'a', 579, 'after a crash');
grants($primary, 'b', 'after a crash, b is granted');

#
# A standby: a session that was there before the change and stays through the promotion
#

my $standby = new_standby($primary, 'standby');
make_synchronous($primary, $standby);
my $early = client($standby, 'early');
is($early->ask_it("SELECT dlock_acquire('c')"), 'ERROR 25006', 'a standby grants nothing');
is($early->ask_it("SELECT dlock_serve('{}')"), 'ERROR 25006', 'and serves what its primary does');
serve($primary, '{[879,880)}');
my $last = $primary->safe_psql('postgres', 'SELECT dlock_advance(1000000)');
$primary->stop('immediate');
promote($standby);
$standby->safe_psql('postgres', "SET synchronous_commit = local; ALTER SYSTEM RESET synchronous_standby_names");
$standby->reload;
refuses($standby, 'b', 1017, 'a promoted standby');
is($early->ask_it("SELECT dlock_acquire('b')"), 'ERROR LK002', 'a session that saw the promotion is refused, too');
cmp_ok($early->ask_it("SELECT dlock_acquire('c', '1 ms')"), '>', $last, 'versions are above what was advanced to');
close_clients($early);

#
# Dump and restore, also into a database that has sessions
#

my $dump = $standby->basedir . '/served.sql';
$standby->command_ok([ 'pg_dump', '-f', $dump, '-d', $standby->connstr('postgres') ], 'pg_dump');
$standby->safe_psql('postgres', 'CREATE DATABASE copy');
$standby->safe_psql('postgres', 'CREATE DATABASE data_only');
$standby->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $standby->connstr('copy') ], 'restored');
is($standby->safe_psql('copy', 'SELECT shards FROM dlock.served'), '{[879,880)}', 'the served shards are restored');
refuses($standby, 'b', 1017, 'a restored database', database => 'copy');
add_extension_in($standby, 'data_only');
my $there = client($standby, 'there', database => 'data_only');
like($there->ask_it("SELECT dlock_acquire('b', '1 ms')"), qr/^\d+$/, 'the other database serves all');
$standby->safe_psql('data_only', "COPY dlock.served FROM STDIN;\n{[879,880)}\n\\.\n");
is($there->ask_it("SELECT dlock_acquire('b', '1 ms')"), 'ERROR LK002', 'a session notices the restored row');
close_clients($there);

#
# The extension is dropped and created again: it serves everything.
#

my $old = client($standby, 'old');
is($old->ask_it("SELECT dlock_acquire('b')"), 'ERROR LK002', 'a session knows what is served');
$standby->safe_psql('postgres', 'DROP EXTENSION dlock; CREATE EXTENSION dlock');
like($old->ask_it("SELECT dlock_acquire('b', '1 ms')"), qr/^\d+$/, 'a new extension serves everything');
close_clients($old);

#
# The shard of a key does not depend on the encoding of the database.
#

foreach my $encoding (qw(LATIN1 EUC_JP SQL_ASCII))
{
	my $key = $encoding eq 'EUC_JP' ? q{U&'\9375'} : q{convert_from('\x4772c3bcc39f65', 'UTF8')};
	my $shard = $encoding eq 'EUC_JP' ? 824 : 113;

	# in SQL_ASCII the bytes are taken as they are
	$key = q{E'Gr\xc3\xbc\xc3\x9fe'} if $encoding eq 'SQL_ASCII';
	$standby->safe_psql('postgres',
		"CREATE DATABASE \"$encoding\" ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
	add_extension_in($standby, $encoding);
	is($standby->safe_psql($encoding, "SELECT dlock_shard($key)"), $shard, "$encoding: the shard of the UTF-8 form");
}

$standby->stop;
done_testing();
