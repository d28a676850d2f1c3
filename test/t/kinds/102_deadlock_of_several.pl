# Deadlocks where several hold a key: a place is free as soon as one of its holders continues, the
# whole key only if all do, and a waiter also waits for those before it in line.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node('deadlock_of_several', conf => "deadlock_timeout = 100ms\nmax_connections = 50\n");
my @c = map { client($node, "c$_") } 0 .. 4;

my $n = 0;

# Each client does its first step.  Then all but the last do their second step, which blocks, and
# nobody may see a deadlock in that.  With the second step of the last one there is a deadlock.
# Returns who fails, when all are back.
sub knot
{
	my ($what, $undo, @steps) = @_;
	my @clients = @c[0 .. $#steps];
	my $prefix = 'x' . ++$n . '_';
	my @victims;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	begin_steps($what, $prefix, \@clients, \@steps);
	foreach my $i (0 .. $#steps)
	{
		my ($key) = $steps[$i][1] =~ /'(${prefix}\w+)'/;

		$clients[$i]->start($steps[$i][1]);
		until_waiting($node, $clients[$i], $key) if $i < $#steps;
	}

	my @left = @clients;
	while (@left)
	{
		my ($client) = first_back($node, $what, @left);
		my $answer = $client->answer;
		my $sql = $undo;

		@left = grep { $_ != $client } @left;
		if ($answer =~ /^ERROR/)
		{
			is($answer, 'ERROR 40P01', "$what: $client->{name} with a deadlock");
			like($client->said, qr/DETAIL:  Process $client->{pid} waits for lock "${prefix}\w+", blocked by process/,
				"$what: begins with itself");
			push @victims, $client->{name};
		}
		$sql =~ s/ME/$client->{name}/g;
		$client->ask_it($sql);
	}
	is($node->safe_psql('postgres', 'SELECT count(*) FROM dlock_waiters'), 0, "$what: nobody waits");
	return @victims;
}

my $take = sub { return "SELECT dlock_acquire('\$$_[0]', '1h'" . ($_[1] // '') . ')' };
my $wait = sub { return $take->($_[0], ", wait => '1h'" . ($_[1] // '')) };
my $reads = ', shared => true';
my $one_of_2 = ', slots => 2';

is(scalar(knot('a reader and a writer', 'ROLLBACK',
	[ 'BEGIN;' . $take->('x', $reads), $wait->('y') ],
	[ 'BEGIN;' . $take->('y'), $wait->('x') ])), 1, 'a reader and a writer: one victim');

my @victims = knot('one reader of two', 'ROLLBACK',
	[ 'BEGIN;' . $take->('x', $reads), $wait->('y') ],
	[ 'BEGIN;' . $take->('x', $reads), $wait->('z') ],
	[ 'BEGIN;' . $take->('y') . ';' . $take->('z'), $wait->('x') ]);
ok("@victims" eq 'c2' || @victims == 2, "two readers that wait for the writer: it, or both readers (@victims)");

is(scalar(knot('both holders of a semaphore', 'ROLLBACK',
	[ 'BEGIN;' . $take->('x', $one_of_2), $wait->('y') ],
	[ 'BEGIN;' . $take->('x', $one_of_2), $wait->('z') ],
	[ 'BEGIN;' . $take->('y') . ';' . $take->('z'), $wait->('x', $one_of_2) ])), 1,
	'a semaphore whose holders all wait for us: one victim');

# Each of two holders waits for another one of two waiters.  No single way through this comes back
# to its start without leaving a holder out.
@victims = knot('two holders, two waiters', 'ROLLBACK',
	[ 'BEGIN;' . $take->('x', $one_of_2), $wait->('y') ],
	[ 'BEGIN;' . $take->('x', $one_of_2), $wait->('z') ],
	[ 'BEGIN;' . $take->('y'), $wait->('x', $one_of_2) ],
	[ 'BEGIN;' . $take->('z'), $wait->('x', $one_of_2) ]);
cmp_ok(scalar(@victims), '>=', 1, "two holders, two waiters: found (@victims)");
cmp_ok(scalar(@victims), '<=', 2, 'two holders, two waiters: not all of them');

is(scalar(knot('owners', "SELECT count(dlock_release(key, owner => 'ME')) FROM dlock_locks WHERE owner = 'ME'",
	[ $take->('x', ", owner => 'c0'$one_of_2"), $wait->('y', ", owner => 'c0'") ],
	[ $take->('x', ", owner => 'c1'$one_of_2"), $wait->('y', ", owner => 'c1'") ],
	[ $take->('y', ", owner => 'c2'"), $wait->('x', ", owner => 'c2'$one_of_2") ])), 1,
	'owners of places: one victim');

is(scalar(knot('sessions', 'SELECT count(dlock_release(key, version)) FROM dlock_locks WHERE pid = pg_backend_pid()',
	[ $take->('x', ", session => true$reads"), $wait->('y', ', session => true') ],
	[ $take->('y', ', session => true'), $wait->('x', ', session => true') ])), 1,
	'session locks of readers: one victim');

# The second reader fits beside the first one, but a writer is before it.
is(scalar(knot('a writer between two readers', 'ROLLBACK',
	[ 'BEGIN;' . $take->('x', $reads), $wait->('y') ],
	[ 'BEGIN', $wait->('x') ],
	[ 'BEGIN;' . $take->('y'), $wait->('x', $reads) ])), 1,
	'a writer between two readers: one victim');

#
# No deadlock
#

# One holder of a semaphore waits for us, the other one continues.
my ($first, $second, $third) = @c;
$first->ask_it("BEGIN; SELECT dlock_acquire('s', '1h', slots => 2)");
$second->ask_it("BEGIN; SELECT dlock_acquire('s', '1h', slots => 2)");
$third->ask_it("BEGIN; SELECT dlock_acquire('t', '1h')");
$first->start("SELECT dlock_acquire('t', '1h', wait => '1h')");
until_waiting($node, $first, 't');
$third->start("SELECT dlock_acquire('s', '1h', slots => 2, wait => '1h')");
until_waiting($node, $third, 's');
is($node->safe_psql('postgres', "SELECT pg_sleep(0.5); SELECT count(*) FROM dlock_waiters"), "\n2",
	'no deadlock, although one of two holders waits for us');
$second->ask_it('COMMIT');
$second->ask_it("SELECT dlock_release('s', version) FROM dlock_locks WHERE key = 's' AND version IS NOT NULL");
like($third->answer, qr/^\d+$/, 'the other one makes room');
$third->ask_it('ROLLBACK');
like($first->answer, qr/^\d+$/, 'then there is room for the first');
$first->ask_it('ROLLBACK');

# We wait for two that have a deadlock with each other, and are no part of it.
$first->ask_it("BEGIN; SELECT dlock_acquire('p', '1h')");
$second->ask_it("BEGIN; SELECT dlock_acquire('q', '1h')");
$third->start("SELECT dlock_acquire('p', '1h', wait => '1h')");
until_waiting($node, $third, 'p');
$first->start("SELECT dlock_acquire('q', '1h', wait => '1h')");
until_waiting($node, $first, 'q');
$second->start("SELECT dlock_acquire('p', '1h', wait => '1h')");
my ($victim) = first_back($node, 'two in a circle', $first, $second);
my $answer = $victim->answer;
if ($answer !~ /^ERROR/)
{
	# the error of the second one let the first one continue before we looked
	($victim, $answer) = ($second, $second->answer);
}
elsif ($victim == $second)
{
	$first->answer;
}
is($answer, 'ERROR 40P01', 'one of two has the deadlock');
$victim->ask_it('ROLLBACK');
$first->ask_it('ROLLBACK') if $victim == $second;
like($third->answer, qr/^\d+$/, 'one who waits for them has not, and gets the lock in the end');
$third->ask_it("SELECT dlock_release('p', version) FROM dlock_locks WHERE key = 'p'");
if ($victim == $first)
{
	like($second->answer, qr/^\d+$/, 'then the other one');
	$second->ask_it('ROLLBACK');
}

#
# Upgrades
#

my $up = "SELECT dlock_acquire('u', '1h', owner => 'OWNER', wait => '1h')";
my $upgrade = sub { my ($owner) = @_; return $up =~ s/OWNER/$owner/r };
$first->ask_it("SELECT dlock_acquire('u', '1h', owner => 'o0', shared => true)");
$second->ask_it("SELECT dlock_acquire('u', '1h', owner => 'o1', shared => true)");
$first->start($upgrade->('o0'));
until_waiting($node, $first, 'u');
is($second->ask_it($upgrade->('o1')), 'ERROR 40P01', 'a second upgrade fails at once');
like($second->said, qr/DETAIL:  Another holder of a place of lock "u" already waits/, 'and says why');
is($second->ask_it("SELECT dlock_acquire('u', '1h', owner => 'o1')"), '', 'a try is just busy');
is($second->ask_it("SELECT dlock_check('u', owner => 'o1')"), 'held', 'the place is still there');
is($second->ask_it("SELECT dlock_release('u', owner => 'o1')"), 'released', 'it gives way');
like($first->answer, qr/^\d+$/, 'the first upgrade succeeds');
is($node->safe_psql('postgres', "SELECT slots, count(*) FROM dlock_locks WHERE key = 'u' GROUP BY 1"), '1|1',
	'and is alone');
$first->ask_it("SELECT dlock_release('u', owner => 'o0')");

close_clients(@c);
DlockWait::close_monitors();
$node->stop;
done_testing();
