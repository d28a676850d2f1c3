# The number of places of a key, which all sessions share: no transaction that is open, rolled
# back or late makes it too low, and what one session gives back is room for another.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node('places', conf => "max_connections = 40\n");
my $scans = q{pg_stat_get_xact_numscans('dlock.locks_pkey'::regclass)};
my $entries = q{pg_stat_get_xact_tuples_returned('dlock.locks_pkey'::regclass)};

sub take
{
	my ($client, $key, $slots, $owner) = @_;

	return $client->ask_it("SELECT dlock_acquire('$key', '1h', " . (defined $owner ? "'$owner'" : 'NULL') . ($slots eq 'any' ? ', shared => true)' : ", slots => $slots)"));
}

# How many entries of the index it finds.  A request looks for the place of its owner; a new owner
# has none.
sub reads
{
	my ($client, $sql) = @_;

	return $client->ask_it("SELECT after - before FROM (SELECT $entries AS before, $sql AS v, $entries AS after) AS s");
}

# The reaper has read the table, so that something may be known of keys.
sub until_known
{
	my ($database) = @_;

	wait_until(
		'keys are known',
		sub {
			return $node->safe_psql($database,
				"SELECT after - before FROM (SELECT $scans AS before, dlock_acquire('known') AS v, $scans AS after) AS s, dlock_release('known', v)") eq '0';
		});
	return;
}

#
# The reaper reads the table soon, also if nothing but semaphores is used.
#

$node->safe_psql('postgres', 'CREATE DATABASE semaphores');
add_extension_in($node, 'semaphores');
my $semaphore = client($node, 'semaphore', database => 'semaphores');
take($semaphore, 'first', 9, $_) foreach 1 .. 3;
wait_until(
	'keys are known',
	sub {
		return reads($semaphore, "dlock_acquire('first', '1h', 'o' || pg_backend_pid() || clock_timestamp(), slots => 10000)") eq '0';
	});
pass('a place is added without reading all others');
$semaphore->leave;

until_known('postgres');

#
# What is copied with a database counts there.
#

$node->safe_psql('postgres', q{SELECT dlock_acquire('copied', '1h', slots => 2) FROM generate_series(1, 2)});
$node->safe_psql('template1', 'CREATE DATABASE copy TEMPLATE postgres');
$node->safe_psql('postgres', q{SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'copied'});
isnt($node->safe_psql('postgres', q{SELECT dlock_acquire('copied', '1h', slots => 2)}), '', 'there is room in one database');
is($node->safe_psql('copy', q{SELECT dlock_acquire('copied', '1h', slots => 2)}), '', 'but not in its copy');
until_known('copy');

# another copy may have the number of one that was dropped
$node->safe_psql('template1', 'CREATE DATABASE original TEMPLATE copy');
my $number = $node->safe_psql('template1', q{SELECT oid FROM pg_database WHERE datname = 'copy'});
$node->safe_psql('copy', q{SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'copied'});
$node->safe_psql('copy', q{SELECT dlock_release('copied', dlock_acquire('copied', '1h', slots => 2))}) foreach 1, 2;
$node->safe_psql('template1', 'DROP DATABASE copy');
$node->safe_psql('template1', "CREATE DATABASE copy TEMPLATE original OID = $number");
is($node->safe_psql('copy', q{SELECT dlock_acquire('copied', '1h', slots => 2)}), '', 'nor in the next one of the same number');
until_known('copy');
is($node->safe_psql('copy', q{SELECT dlock_acquire('copied', '1h', slots => 2)}), '', 'also when its keys are known');
is($node->safe_psql('copy', q{SELECT dlock_acquire('copied', '1h', slots => 2)}), '', 'nor later');

my ($one, $two, $three, $four) = map { client($node, $_) } qw(one two three four);

#
# What one session gives back is room for another, which need not read the places.
#

take($one, 'last', 4, "o$_") foreach 1 .. 3;
take($two, 'last', 4, 'first');
$one->ask_it("SELECT dlock_release('last', owner => 'first')");
is(reads($two, "dlock_acquire('last', '1h', 'second', slots => 4)"), 0, 'there is room: the places are not read');
is(reads($one, "dlock_acquire('last', '1h', 'third', slots => 4)") > 0, 1, 'there may be none: they are');
$three->ask_it("SELECT dlock_release('last', owner => 'second')");
isnt(take($one, 'last', 4, 'third'), '', 'there is room');
is(take($four, 'last', 4, 'fourth'), '', 'but only for one');

#
# A removal that is open, and however it ends.
#

take($one, 'open', 3, "o$_") foreach 1 .. 3;
$one->ask_it("BEGIN; SELECT dlock_release('open', owner => 'o1')");
is(take($two, 'open', 3, 'p'), '', 'a place that is being given back is taken');
$one->ask_it('ROLLBACK');
is(take($two, 'open', 3, 'p'), '', 'it is when that rolls back');
$one->ask_it("BEGIN; SAVEPOINT s; SELECT dlock_release('open', owner => 'o1'); ROLLBACK TO s");
is(take($two, 'open', 3, 'p'), '', 'or when a savepoint does');
$one->ask_it('COMMIT');
is(take($two, 'open', 3, 'p'), '', 'also when the rest commits');
# one that counts meanwhile
$one->ask_it("BEGIN; SELECT dlock_release('open', owner => 'o1')");
isnt(take($two, 'open', 4, 'p'), '', 'one more place');
is(take($three, 'open', 4, 'q'), '', 'and no other');
$one->ask_it('COMMIT');
isnt(take($three, 'open', 4, 'q'), '', 'until it is given back');
is(take($one, 'open', 4, 'r'), '', 'and then no other');
# by SQL
$one->ask_it("BEGIN; DELETE FROM dlock.locks WHERE key = 'open' AND owner IN ('p', 'q')");
is(take($two, 'open', 4, 'r'), '', 'what SQL is deleting is taken');
isnt(take($one, 'open', 4, 'r'), '', 'but not for the one that deletes it');
$one->ask_it('ROLLBACK');
is(take($two, 'open', 4, 's'), '', 'it is there again');
is(take($one, 'open', 4, 's'), '', 'for both');

#
# Another table
#

take($one, 'again', 3, "o$_") foreach 1 .. 3;
my $copy = $node->safe_psql('postgres', "COPY (SELECT * FROM dlock.locks WHERE key = 'again') TO STDOUT");
$one->ask_it("SELECT dlock_release('again', owner => 'o$_')") foreach 1 .. 3;
isnt(take($two, 'again', 2, 'p'), '', 'there is room');
$node->safe_psql('postgres', 'DROP EXTENSION dlock; CREATE EXTENSION dlock');
$node->safe_psql('postgres', "COPY dlock.locks FROM STDIN;\n$copy\n\\.\n");
is(take($two, 'again', 3, 'q'), '', 'not in a new table that a dump has filled');
until_known('postgres');
is(take($two, 'again', 3, 'q'), '', 'nor later');
isnt(take($one, 'again', 4, 'q'), '', 'but for one more');

#
# Several sessions, whose transactions are open side by side: a place is granted if and only if
# fewer than N are taken.  What another transaction is adding or removing is taken.
#

srand(7);
my @sessions = map { { client => $_, open => 0, log => [] } } $one, $two, $three, $four;
my %places;          # by version
my ($granted, $refused) = (0, 0);
my @wrong;
my $owners = 0;

sub taken
{
	my ($me) = @_;

	return scalar grep { !($_->{remover} && $_->{remover} == $me) } values %places;
}

sub undo
{
	my ($session, $to) = @_;

	while (@{ $session->{log} } > $to)
	{
		my ($did, $version) = @{ pop @{ $session->{log} } };

		delete $places{$version} if $did eq 'add';
		$places{$version}->{remover} = undef if $did eq 'remove';
	}
	return;
}

sub settle
{
	my ($session) = @_;

	foreach (@{ $session->{log} })
	{
		my ($did, $version) = @$_;

		$places{$version}->{adder} = undef if $did eq 'add';
		delete $places{$version} if $did eq 'remove';
	}
	$session->{log} = [];
	$session->{open} = 0;
	return;
}

sub acquire
{
	my ($session) = @_;
	my $slots = (4, 5, 5, 5, 6, 'any')[ int rand 6 ];
	my $expected = $slots eq 'any' || taken($session) < $slots;
	my $version = take($session->{client}, 'several', $slots, rand() < 0.5 ? 'o' . ++$owners : undef);

	$version ne '' ? $granted++ : $refused++;
	push @wrong, "slots => $slots beside " . taken($session) . ": '$version'" if ($version ne '') != $expected;
	return if $version !~ /^\d+$/;
	$places{$version} = { adder => $session };
	push @{ $session->{log} }, [ 'add', $version ];
	return;
}

sub release
{
	my ($session) = @_;
	my @mine = grep {
		!$places{$_}->{remover} && (!$places{$_}->{adder} || $places{$_}->{adder} == $session)
	} sort keys %places;
	my $version = $mine[ rand @mine ] // return;
	my $answer = $session->{client}->ask_it("SELECT dlock_release('several', $version)");

	push @wrong, "release of $version: $answer" if $answer ne 'released';
	$places{$version}->{remover} = $session;
	push @{ $session->{log} }, [ 'remove', $version ];
	return;
}

sub step
{
	my ($session) = @_;
	my ($client, $log) = @{$session}{qw(client log)};
	my @savepoints = grep { $log->[$_][0] eq 'savepoint' } 0 .. $#$log;
	my $dice = rand;

	if (!$session->{open} && $dice < 0.4)
	{
		$client->ask_it('BEGIN');
		$session->{open} = 1;
	}
	elsif ($session->{open} && $dice < 0.12)
	{
		$client->ask_it('SAVEPOINT s');
		push @$log, ['savepoint'];
	}
	elsif (@savepoints && $dice < 0.24)
	{
		$client->ask_it('ROLLBACK TO s');
		undo($session, $savepoints[-1] + 1);
	}
	elsif (@savepoints && $dice < 0.3)
	{
		$client->ask_it('RELEASE s');
		splice @$log, $savepoints[-1], 1;
	}
	elsif ($session->{open} && $dice < 0.4)
	{
		$client->ask_it('COMMIT');
		settle($session);
	}
	elsif ($session->{open} && $dice < 0.47)
	{
		$client->ask_it('ROLLBACK');
		undo($session, 0);
		$session->{open} = 0;
	}
	else
	{
		rand() < 0.55 ? acquire($session) : release($session);
		settle($session) unless $session->{open};
	}
	return;
}

step($sessions[ rand @sessions ]) foreach 1 .. 1500;
is("@wrong", '', 'places are granted if and only if there are some');
cmp_ok($granted, '>', 100, 'some were');
cmp_ok($refused, '>', 100, 'some were not');
$_->{client}->ask_it('ROLLBACK') foreach grep { $_->{open} } @sessions;
undo($_, 0) foreach @sessions;
is($one->ask_it("SELECT count(*) FROM dlock_locks WHERE key = 'several'"), scalar keys %places, 'as many are there as should be');

$_->leave foreach $one, $two, $three, $four;

#
# At full speed, with all that may happen to a place: others take, give back, roll back, come
# again in the same transaction, and let expire.  Versions are in the order in which the grants
# were won, so those with a lower version that are still there were there before.  An owner that
# is judged by that gives its place back at once, so that it never gets its old one.
#

my $file = $node->basedir . '/places.sql';

append_to_file($file, <<'END');
\set dice random(1, 12)
\set ms random(1, 30)
\set k random(1, 3)
\set n random(6, 9)
\if :dice = 1
BEGIN;
SELECT dlock_release('fast' || :k, version) FROM
	(SELECT version FROM dlock_locks WHERE key = 'fast' || :k AND version IS NOT NULL AND coalesce(owner, '') !~ '^keep' ORDER BY version LIMIT 2) AS l;
SELECT dlock_acquire('fast' || :k, '10min', slots => :n);
ROLLBACK;
\elif :dice = 2
BEGIN;
SAVEPOINT s;
SELECT dlock_release('fast' || :k, version) FROM
	(SELECT version FROM dlock_locks WHERE key = 'fast' || :k AND version IS NOT NULL AND coalesce(owner, '') !~ '^keep' ORDER BY random() LIMIT 1) AS l;
SELECT dlock_acquire('fast' || :k, '20ms', 'back', slots => :n);
ROLLBACK TO s;
SELECT dlock_release('fast' || :k, version) FROM
	(SELECT version FROM dlock_locks WHERE key = 'fast' || :k AND version IS NOT NULL AND coalesce(owner, '') !~ '^keep' ORDER BY random() LIMIT 1) AS l;
COMMIT;
\elif :dice = 3
SELECT dlock_acquire('fast' || :k, :ms * interval '1ms', 'late' || :ms, slots => :n);
\elif :dice = 4
BEGIN;
SELECT dlock_release('fast' || :k, owner => 'again' || :client_id);
SELECT dlock_acquire('fast' || :k, '30ms', 'again' || :client_id, slots => :n);
COMMIT;
\elif :dice = 5
SELECT dlock_acquire('fast' || :k, '30ms', shared => true);
\else
SELECT coalesce(dlock_acquire('fast' || :k, '50ms', 'judged' || :client_id, slots => :n), 0) AS v \gset
\if :v > 0
INSERT INTO beside SELECT count(*), :n FROM dlock_get('fast' || :k) WHERE version < :v;
SELECT dlock_release('fast' || :k, :v);
\endif
\endif
END
$node->append_conf('postgresql.conf', "dlock.reap_interval = '20ms'");
$node->reload;
$node->safe_psql('postgres', q{CREATE TABLE beside (places int, slots int);
	SELECT dlock_acquire('fast' || k, '1h', 'keep' || i, slots => 9) FROM generate_series(1, 3) AS k, generate_series(1, 4) AS i});
{
	local $ENV{PGOPTIONS} = '-c synchronous_commit=off -c dlock.durable_grants=off';

	$node->command_ok(
		[ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', 12, '-j', 2, '-T', 6, '-f', $file, 'postgres' ],
		'twelve sessions at once');
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM beside WHERE places >= slots'), 0, 'none was granted a place too many');
is($node->safe_psql('postgres', 'SELECT count(*) > 10 FROM beside WHERE places = slots - 1'), 't', 'and some got the last one');
is( $node->safe_psql('postgres',
		q{SELECT count(v) FROM generate_series(1, 3) AS k, generate_series(2, 4) AS n, dlock_acquire('fast' || k, slots => n) AS v}),
	0, 'nor is one that comes later');

$node->stop;
done_testing();
