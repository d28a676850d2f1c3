# Nobody can choose a key or an owner for its hash.  An attacker knows the functions of
# PostgreSQL and the numbers of roles and databases.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

use constant WORD => 0xffffffff;

#
# hash_bytes_extended() of PostgreSQL, forwards and backwards.  It mixes three words.
#

# Each step: to which word, which other one, how far that is rotated.  A rotated word is
# xored or subtracted.
my @mix = (
	[ 0, 2, 4, 1 ], [ 1, 0, 6, 2 ], [ 2, 1, 8, 0 ],
	[ 0, 2, 16, 1 ], [ 1, 0, 19, 2 ], [ 2, 1, 4, 0 ]);
my @final = (
	[ 2, 1, 14 ], [ 0, 2, 11 ], [ 1, 0, 25 ], [ 2, 1, 16 ],
	[ 0, 2, 4 ], [ 1, 0, 14 ], [ 2, 1, 24 ]);

sub rot
{
	my ($word, $by) = @_;

	return ($word << $by | $word >> (32 - $by)) & WORD;
}

sub mix
{
	my @s = @_;

	foreach my $step (@mix)
	{
		my ($to, $from, $by, $third) = @$step;

		$s[$to] = ($s[$to] - $s[$from]) & WORD;
		$s[$to] ^= rot($s[$from], $by);
		$s[$from] = ($s[$from] + $s[$third]) & WORD;
	}
	return @s;
}

sub unmix
{
	my @s = @_;

	foreach my $step (reverse @mix)
	{
		my ($to, $from, $by, $third) = @$step;

		$s[$from] = ($s[$from] - $s[$third]) & WORD;
		$s[$to] ^= rot($s[$from], $by);
		$s[$to] = ($s[$to] + $s[$from]) & WORD;
	}
	return @s;
}

sub unfinal
{
	my @s = @_;

	foreach my $step (reverse @final)
	{
		my ($to, $from, $by) = @$step;

		$s[$to] = ($s[$to] + rot($s[$from], $by)) & WORD;
		$s[$to] ^= $s[$from];
	}
	return @s;
}

my $node = new_node('hashes', conf => "deadlock_timeout = 10ms\n");

# A text of 24 bytes that has the same hash with this seed as the other text with its
# own seed, as SQL: the second block is what the first one leaves to the wanted hash.
sub collide
{
	my ($text, $its_seed, $seed) = @_;
	my $hash = $node->safe_psql('postgres', "SELECT to_hex(hashtextextended('$text', $its_seed))");
	my ($high, $low) = map { hex } unpack('A8 A8', sprintf('%016s', $hash));
	my @start = (0x9e3779b9 + 24 + 3923095) x 3;
	my $bytes;

	@start = mix($start[0], $start[1] + $seed & WORD, $start[2]);
	for (my $try = 1;; $try++)
	{
		my $first = sprintf('first %06d', $try % 1_000_000);
		my @block = unpack('V3', $first);
		my @state = mix(map { $start[$_] + $block[$_] & WORD } 0 .. 2);
		my @wanted = unmix(unfinal($try * 2_654_435_761 & WORD, $high, $low));
		my $second = pack('V3', map { $wanted[$_] - $state[$_] & WORD } 0 .. 2);

		next if $second =~ /[^\x01-\x7f]/;
		$bytes = unpack('H*', $first . $second);
		last;
	}
	my $sql = "convert_from('\\x$bytes', 'UTF8')";

	is($node->safe_psql('postgres', "SELECT to_hex(hashtextextended($sql, $seed))"), $hash, "the computed text collides with \"$text\"");
	return $sql;
}

my ($now, $holder, $mallory, $victim, $other);

sub connect_all
{
	($now, $holder, $mallory, $victim, $other) =
	  (client($node, 'now'), map { client($node, $_, role => $_) } qw(holder mallory victim other));
	return;
}

$node->safe_psql('postgres', q{
	CREATE ROLE holder; CREATE ROLE mallory; CREATE ROLE victim; CREATE ROLE other;
	CREATE FUNCTION hash(text, oid) RETURNS bigint LANGUAGE C AS 'dlock_test', 'dlock_test_hash'});
connect_all();
my %oid = split /[|\n]/, $now->ask_it("SELECT rolname, oid FROM pg_roles WHERE rolname IN ('holder', 'mallory')");
my $db = $now->ask_it('SELECT oid FROM pg_database WHERE datname = current_database()');
my $key = collide('key', $db, $db);
my $owner = collide('holder 1', $oid{holder}, $oid{mallory});

# Memory: keys and owners
is($now->ask_it("SELECT hash('key', $db) = hash('key', $db), hash('key', $db) = hash($key, $db)"), 't|f', 'keys');
is($now->ask_it("SELECT hash('holder 1', $oid{holder}) = hash($owner, $oid{mallory})"), 'f', 'owners of two roles');
my $before = $now->ask_it("SELECT hash('key', $db)");

# Somebody waits for the holder, and a ticket of another role for that one.  That would
# be a deadlock if the ticket were the holder's.
my $version = $holder->ask_it("SELECT dlock_acquire('held', '1h', 'holder 1')");
like($victim->ask_it("SELECT dlock_acquire('victim''s', '1h')"), qr/^\d+$/, 'the victim holds a lock');
$victim->ask_it("BEGIN; SELECT dlock_fence('victim''s', version) FROM dlock_locks WHERE key = 'victim''s'");
like($mallory->ask_it("SELECT dlock_enqueue('victim''s', '1h', $owner)"), qr/^\d+$/, 'a ticket waits for it');
$victim->start("SELECT dlock_acquire('held', '1h', wait => NULL)");
until_waiting($node, $victim, 'held');
$now->ask_it("BEGIN; SELECT dlock_acquire('one', '1h')");
$other->ask_it("BEGIN; SELECT dlock_acquire('two', '1h')");
$other->start("SELECT dlock_acquire('one', '1h', wait => NULL)");
until_waiting($node, $other, 'one');
my $found = $now->ask_it("SELECT dlock_acquire('two', '1h', wait => '1h')");
$now->ask_it('ROLLBACK');
like("$found " . $other->answer, qr/ERROR 40P01/, 'another deadlock is found meanwhile');
$other->ask_it('ROLLBACK');
is($holder->ask_it("SELECT dlock_release('held', $version)"), 'released', 'the holder releases its lock');
like($victim->answer, qr/^\d+$/, 'and the victim gets it');
$victim->ask_it('COMMIT');

# On disk: the place of an owner
my $place = $holder->ask_it("SELECT dlock_acquire('shared', '1h', 'holder 1', shared => true)");
like($mallory->ask_it("SELECT dlock_acquire('shared', '1h', $owner, shared => true)"), qr/^\d+$/, 'a place of a computed owner is its own');
is($now->ask_it("SELECT count(DISTINCT slot) FROM dlock.locks WHERE key = 'shared'"), 2, 'there are two');
close_clients($now, $holder, $mallory, $victim, $other);
$node->restart;
connect_all();
isnt($now->ask_it("SELECT hash('key', $db)"), $before, 'after a restart other hashes');
is($holder->ask_it("SELECT dlock_acquire('shared', '1h', 'holder 1', shared => true)"), $place, 'but the same place');
$node->safe_psql('postgres', 'CREATE DATABASE copy');
$node->command_ok(
	[ 'bash', '-c', 'pg_dump -d "$1" | psql -qX -v ON_ERROR_STOP=1 -d "$2"', '-', map { $node->connstr($_) } qw(postgres copy) ],
	'a dump is restored');
is($node->safe_psql('copy', "SET ROLE holder; SELECT dlock_acquire('shared', '1h', 'holder 1', shared => true)"), $place, 'into another database');

close_clients($now, $holder, $mallory, $victim, $other);
DlockWait::close_monitors();
$node->stop;
done_testing();
