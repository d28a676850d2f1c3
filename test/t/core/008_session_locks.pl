# Locks that end with their connection.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node('session', conf => "deadlock_timeout = 60s\n");
my $now = client($node, 'now');
my $w = client($node, 'w');

my $key = 'k00';
sub fresh { $key++; return; }

# A session lock for a new client.
sub holder
{
	my $holder = client($node, 'holder');

	$holder->{version} = $holder->ask_it("SELECT dlock_acquire('$key', '1h', session => true)");
	isnt($holder->{version}, '', 'a session lock');
	return $holder;
}

sub waits
{
	my ($client, $args) = @_;

	$client->start("SELECT dlock_acquire('$key', '1h', wait => '1h'" . ($args ? ", $args" : '') . ')');
	until_waiting($node, $client, $key);
	return;
}

sub got
{
	my ($client, $before, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $version = $client->answer;

	cmp_ok($version, '>', $before, "$what: $client->{name} has it");
	is($client->ask_it("SELECT dlock_release('$key', $version)"), 'released', 'gives it back');
	return;
}

#
# Every way in which a connection ends
#

my %end = (
	'clean exit' => sub { $_[0]->leave },
	'lost client' => sub { $_[0]->vanish },
	'pg_terminate_backend' =>
	  sub { $now->ask_it("SELECT pg_terminate_backend($_[0]->{pid})") },
	'exit in a transaction' => sub { $_[0]->ask_it('BEGIN; SELECT 1'); $_[0]->leave },
	'lost client in a failed transaction' =>
	  sub { $_[0]->ask_it('BEGIN; SELECT 1/0'); $_[0]->vanish },
	'fatal error' => sub {
		$_[0]->ask_it("SET idle_in_transaction_session_timeout = '10ms'");
		$_[0]->{psql}->{stdin} .= "BEGIN;\n";
		$_[0]->{psql}->{run}->pump_nb;
	});
foreach my $how (sort keys %end)
{
	fresh();
	my $holder = holder();

	is( $now->ask_it("SELECT pid = $holder->{pid} FROM dlock_locks WHERE key = '$key'"),
		't', 'the view shows the session');
	waits($w);
	$end{$how}->($holder);
	got($w, $holder->{version}, "$how: woken at once");
	until_gone($node, $holder->pid, "$how: the backend is gone");
	$holder->lost unless $holder->{gone};

	# without a waiter
	fresh();
	$holder = holder();
	$end{$how}->($holder);
	until_gone($node, $holder->pid, "$how: the backend is gone");
	is($now->ask_it("SELECT held FROM dlock.locks WHERE key = '$key'"),
		'f', "$how: released in the table");
	$holder->lost unless $holder->{gone};
}

# Several keys, one of them in another session's open transaction.
fresh();
my $holder = holder();
$holder->ask_it("SELECT count(dlock_acquire('many' || i, '1h', session => true)) FROM generate_series(1, 100) i");
$now->ask_it("BEGIN; SELECT dlock_fence('$key', $holder->{version})");
$holder->leave;
until_gone($node, $holder->pid, 'the one with many locks is gone');
is($w->ask_it("SELECT count(*) FROM dlock_locks WHERE key LIKE 'many%'"), 0, 'all released');
waits($w);
$now->ask_it('COMMIT');
got($w, $holder->{version}, 'one that was fenced by another session');

#
# Transactions
#

fresh();
$holder = client($node, 'holder');
$holder->ask_it('BEGIN');
my $version = $holder->ask_it("SELECT dlock_acquire('$key', '1h', session => true)");
$holder->ask_it('COMMIT');
is($now->ask_it("SELECT dlock_check('$key', $version)"), 'held', 'held after the commit');
$holder->ask_it('BEGIN; SELECT 1; ROLLBACK');
is($now->ask_it("SELECT dlock_check('$key', $version)"), 'held', 'and after the next');
waits($w);
$holder->leave;
got($w, $version, 'the end of the session');

fresh();
$holder = client($node, 'holder');
$holder->ask_it('BEGIN');
$holder->ask_it("SELECT dlock_acquire('$key', '1h', session => true)");
waits($w);
$holder->ask_it('ROLLBACK');
got($w, 0, 'a grant that was rolled back');
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h')");
$holder->leave;
until_gone($node, $holder->pid, 'its session is gone');
is($now->ask_it("SELECT dlock_check('$key', $version)"),
	'held', "and did not release another's lock");

# A release that is rolled back: the lock is still released at the end of the session.
foreach my $how (
	'BEGIN; SELECT dlock_release($key, $version); ROLLBACK',
	'BEGIN; SAVEPOINT s; SELECT dlock_release($key, $version); ROLLBACK TO s; COMMIT',
	'BEGIN; SELECT dlock_release($key, $version); SELECT dlock_acquire($key, $ttl, session => true); ROLLBACK',
	'BEGIN; SELECT dlock_release($key, $version); SAVEPOINT s; ROLLBACK TO s; ROLLBACK')
{
	my $sql = $how;

	fresh();
	$holder = holder();
	$sql =~ s/\$key/'$key'/g;
	$sql =~ s/\$version/$holder->{version}/g;
	$sql =~ s/\$ttl/'1h'/g;
	$holder->ask_it($sql);
	is($now->ask_it("SELECT dlock_check('$key', $holder->{version})"), 'held', "$how: held");
	$holder->leave;
	until_gone($node, $holder->pid, 'its session is gone');
	is($now->ask_it("SELECT held FROM dlock.locks WHERE key = '$key'"),
		'f', "$how: released at the end");
}

fresh();
$holder = holder();
is($holder->ask_it("SELECT dlock_release('$key', $holder->{version})"), 'released', 'released by hand');
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h')");
$holder->leave;
until_gone($node, $holder->pid, 'its session is gone');
is($now->ask_it("SELECT dlock_check('$key', $version)"), 'held', 'the next holder has it');

# Released and acquired again in one transaction.
fresh();
$holder = holder();
$holder->ask_it("BEGIN; SELECT dlock_release('$key', $holder->{version})");
$version = $holder->ask_it("SELECT dlock_acquire('$key', '1h', session => true)");
$holder->ask_it('COMMIT');
is($now->ask_it("SELECT dlock_check('$key', $version)"), 'held', 'taken again');
waits($w);
$holder->leave;
got($w, $version, 'the second grant ends with the session too');

#
# Acquired by waiting; it is the first session lock of that connection
#

fresh();
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h')");
$holder = client($node, 'holder');
$holder->start("SELECT dlock_acquire('$key', '1h', wait => '1h', session => true)");
until_waiting($node, $holder, $key);
$now->ask_it("SELECT dlock_release('$key', $version)");
like($holder->answer, qr/^\d+$/, 'a session lock by waiting');
is($now->ask_it("SELECT pid = $holder->{pid} FROM dlock_locks WHERE key = '$key'"),
	't', 'belongs to the session');
$version = $now->ask_it("SELECT version FROM dlock_locks WHERE key = '$key'");
waits($w);
$holder->leave;
got($w, $version, 'and ends with it');

#
# The owner continues in another connection
#

fresh();
foreach my $session ('true', 'false')
{
	$holder = client($node, 'holder');
	$version = $holder->ask_it("SELECT dlock_acquire('$key', '1h', owner => 'o', session => true)");
	my $second = client($node, 'second');
	is( $second->ask_it(
			"SELECT dlock_acquire('$key', '1h', owner => 'o', session => $session)"),
		$version,
		"renewed by another connection, session => $session");
	$holder->leave;
	until_gone($node, $holder->pid, 'the first connection is gone');
	is($now->ask_it("SELECT dlock_check('$key', $version)"), 'held', 'still held');
	$second->leave;
	until_gone($node, $second->pid, 'the second connection is gone');
	is( $now->ask_it("SELECT dlock_check('$key', $version)"),
		$session eq 'true' ? 'not_held' : 'held',
		'and the second one decides');
}
$now->ask_it("SELECT dlock_release('$key', $version)");

# A refresh by another connection leaves it a session lock.
fresh();
$holder = holder();
isnt($now->ask_it("SELECT dlock_refresh('$key', $holder->{version})"), '', 'refreshed elsewhere');
waits($w);
$holder->leave;
got($w, $holder->{version}, 'ends with its session');

# Acquired as another role in the same session.
$node->safe_psql('postgres', 'CREATE ROLE alice');
fresh();
$holder = client($node, 'holder');
$version = $holder->ask_it("SET ROLE alice; SELECT dlock_acquire('$key', '1h', session => true); RESET ROLE");
waits($w);
$holder->leave;
got($w, $version, 'taken under SET ROLE');

# It works with default_transaction_read_only.
fresh();
$holder = holder();
$holder->ask_it('SET default_transaction_read_only = on');
waits($w);
$holder->leave;
got($w, $holder->{version}, 'read only by default');

# The TTL applies, too.
fresh();
$holder = client($node, 'holder');
$version = $holder->ask_it("SELECT dlock_acquire('$key', '300ms', session => true)");
$w->start("SELECT dlock_acquire('$key', '1h', wait => '1h')");
got($w, $version, 'expired while its session lives');
$holder->leave;

# Forced away: the end of the session does not touch the next grant.
fresh();
$holder = holder();
is($now->ask_it("SELECT dlock_force_release('$key', 'test')"), $holder->{version}, 'forced');
$version = $now->ask_it("SELECT dlock_acquire('$key', '1h')");
$holder->leave;
until_gone($node, $holder->pid, 'its session is gone');
is($now->ask_it("SELECT dlock_check('$key', $version)"), 'held', 'the next holder has it');

# The extension is dropped meanwhile: the backend exits without an error.
fresh();
$node->safe_psql('postgres', 'CREATE DATABASE dropped');
add_extension_in($node, 'dropped');
$holder = client($node, 'holder', database => 'dropped');
$holder->ask_it("SELECT dlock_acquire('$key', '1h', session => true)");
$node->safe_psql('dropped', 'DROP EXTENSION dlock');
$holder->leave;
until_gone($node, $holder->pid, 'its session is gone');
is($now->ask_it('SELECT 1'), 1, 'the server continues');

#
# The server ends
#

# An orderly stop releases the locks.
fresh();
my $fast = $key;
$holder = holder();
DlockWait::close_monitors();
$node->stop('fast');
$_->lost foreach $holder, $now, $w;
$node->start;
$now = client($node, 'now');
is($now->ask_it("SELECT held FROM dlock.locks WHERE key = '$fast'"), 'f', 'fast shutdown: released');

# After a crash it is an ordinary lease.
fresh();
my $crash = $key;
$holder = holder();
DlockWait::close_monitors();
$node->stop('immediate');
$_->lost foreach $holder, $now;
$node->start;
$now = client($node, 'now');
is($now->ask_it("SELECT dlock_check('$crash', $holder->{version})"), 'held', 'crash: held as a lease');
is($now->ask_it("SELECT pid IS NULL FROM dlock_locks WHERE key = '$crash'"), 't', 'of no session');

# ... even if it is refreshed by a run of the server in which its process id means nothing.
isnt($now->ask_it("SELECT dlock_refresh('$crash', $holder->{version}, '1h')"), '', 'refreshed after the crash');
is($now->ask_it("SELECT dlock_check('$crash', $holder->{version})"), 'held', 'and held');
is($now->ask_it("SELECT pid IS NULL FROM dlock_locks WHERE key = '$crash'"), 't', 'of no session');
is($now->ask_it("SELECT dlock_release('$crash', $holder->{version})"), 'released', 'released in the end');

# kill -9 of a backend restarts the server.
fresh();
$holder = holder();
DlockWait::close_monitors();
kill 'KILL', $holder->pid;
$_->lost foreach $holder, $now;
$node->poll_query_until('postgres', 'SELECT true');
$now = client($node, 'now');
is($now->ask_it("SELECT dlock_check('$key', $holder->{version})"), 'held', 'killed backend: held as a lease');
$w = client($node, 'w');
waits($w);
isnt($now->ask_it("SELECT dlock_refresh('$key', $holder->{version}, '100ms')"), '', 'refreshed');
got($w, $holder->{version}, 'and it expires');

close_clients($now, $w);
DlockWait::close_monitors();

# A session that outlives the extension exits without an error.
$node->safe_psql('postgres', q{
	SELECT dlock_acquire('last', '1h', session => true);
	DROP EXTENSION dlock;
});
$node->stop;
unlike(slurp_file($node->logfile), qr/is not installed/, 'nothing to release, and nothing to say');
done_testing();
