# What is logged: long waits (log_lock_waits), and grants that end (dlock.log_ends).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockWait;

my $node = new_node(
	'logging', conf => q{
log_lock_waits = on
deadlock_timeout = 50ms
log_line_prefix = '%m [%p] '
log_timezone = 'UTC'
});
$node->safe_psql('postgres', 'CREATE ROLE app; CREATE ROLE other');
my $now = client($node, 'now');
my ($app, $other) = map { client($node, $_, role => $_) } qw(app other);

# What the server has logged since the last call, without its prefix.
my $read = -s $node->logfile;

sub logged
{
	my $log = slurp_file($node->logfile, $read);

	$read += length $log;
	$log =~ s/^\d{4}-\d\d-\d\d [\d:.]+ UTC \[\d+\] //mg;
	return $log;
}

# Poll until the log has something.
sub until_logged
{
	my ($pattern, $what) = @_;
	my $start = $read;

	wait_until("the log has: $what", sub { $read = $start; return logged() =~ $pattern; });
	$read = $start;
	return logged();
}

# log_lock_waits
my $version = $app->ask_it("SELECT dlock_acquire('k', '1h', owner => 'worker 7')");
logged();
$now->start("SELECT dlock_acquire('k', '1h', wait => NULL)");
until_waiting($node, $now, 'k');
$other->start("SELECT dlock_acquire('k', '1h', wait => '1h')");
until_waiting($node, $other, 'k');
my $log = until_logged(qr/still waiting.*still waiting.*Wait queue: \d+, \d+/s, 'two waiters');
like($log, qr/LOG:  process $now->{pid} still waiting for lock "k" after \d+\.\d{3} ms\n/, 'still waiting');
like($log, qr/DETAIL:  Holder: version $version of role "app", owner "worker 7"\. Wait queue: $now->{pid}, $other->{pid}\.\n/,
	'with holder and queue');
$app->ask_it("SELECT dlock_release('k', $version)");
$now->answer;
like(logged(), qr/LOG:  process $now->{pid} acquired lock "k" after \d+\.\d{3} ms\n/, 'acquired');
$now->ask_it("SELECT dlock_release(key, version) FROM dlock_locks WHERE key = 'k'");
$other->answer;
like(logged(), qr/LOG:  process $other->{pid} acquired lock "k" after /, 'the next one, too');
is($now->ask_it("SELECT dlock_acquire('k', '1h', wait => '100ms')"), '', 'a wait that times out');
like(logged(), qr/still waiting.*LOG:  process $now->{pid} failed to acquire lock "k" after 1\d\d\.\d{3} ms\n/s, 'failed');
is($now->ask_it("SELECT dlock_acquire('k', '1h', wait => '1ms')"), '', 'a short wait');
unlike(logged(), qr/process/, 'is not logged');
is($now->ask_it("SET log_lock_waits = off; SELECT dlock_acquire('k', '1h', wait => '100ms')"), '', 'unless it is on');
unlike(logged(), qr/process/, 'nothing is logged');
$now->ask_it('RESET log_lock_waits');

# an open transaction has the key
$app->ask_it("BEGIN; SELECT dlock_acquire('open', '1h')");
is($now->ask_it("SELECT dlock_acquire('open', '1h', wait => '100ms')"), '', 'an open transaction');
like(logged(), qr/DETAIL:  Holder: process $app->{pid}, in an open transaction\. Wait queue: $now->{pid}\.\n/, 'is named by its process');
$app->ask_it('ROLLBACK');
$app->ask_it("SELECT dlock_acquire('session', '1h', session => true)");
is($now->ask_it("SELECT dlock_acquire('session', '1h', wait => '100ms')"), '', 'a session lock');
like(logged(), qr/DETAIL:  Holder: version \d+ of role "app", process $app->{pid}\. /, 'is named by its process, too');

# the owner is not for clients
$now->ask_it("SELECT dlock_force_release(key, 'test') FROM dlock_locks");
$app->ask_it("SELECT dlock_acquire('k', '1h', owner => 'secret')");
$other->ask_it("SET client_min_messages = log; SELECT dlock_acquire('k', '1h', wait => '100ms')");
unlike($other->said, qr/secret|waiting/, 'a client with client_min_messages = log sees nothing of it');
like(logged(), qr/owner "secret"/, 'the log does');

# dlock.log_ends
sub ends
{
	my ($level, $sql, $expected, $what, %params) = @_;
	my ($client, $line) = ($params{client} // $app);
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$now->ask_it("ALTER SYSTEM SET dlock.log_ends = '$level'");
	$node->reload;
	wait_until('the setting is there', sub { $client->ask_it('SHOW dlock.log_ends') eq $level });
	logged();
	$client->ask_it($_) foreach ref $sql ? @$sql : $sql;
	$line = join '', logged() =~ /^LOG:  (lock .* ended: .*\nDETAIL:  .*\n)/mg;
	$line =~ s/version \d+/version N/g;
	$line =~ s/ \d+\.\d{3} s, from \S+ \S+ UTC to \S+ \S+ UTC/ S/g;
	is($line, $expected, $what);
	return;
}
is($app->ask_it('SHOW dlock.log_ends'), 'lost', 'what is lost is logged, unless that is turned off');
my $release = "SELECT dlock_release(key, version) FROM dlock_locks WHERE role = 'app'::regrole";
my $take = "SELECT dlock_acquire('k', '1h', owner => 'w')";
my $by = sub { return qq{lock "k" with version N of role "app" ended: $_[0]\nDETAIL:  Owner "w" held it for S.\n} };
$app->ask_it($release);
ends('none', [ $take, $release ], '', 'none: a release');
ends('lost', [ $take, $release ], '', 'lost: a release is none');
ends('all', [ $take, $release ], $by->('released'), 'all: a release');
ends('all', [ "SELECT dlock_acquire('x', '1h')", $release ],
	qq{lock "x" with version N of role "app" ended: released\nDETAIL:  It was acquired by pid $app->{pid}, app from [local], and held for S.\n}, 'without an owner');
ends('all', [ $take, "BEGIN; $release; ROLLBACK" ], '', 'a rollback');
ends('all', "BEGIN; SAVEPOINT s; $release; ROLLBACK TO s; COMMIT", '', 'a rollback to a savepoint');
ends('all', "BEGIN; SAVEPOINT s; $release; RELEASE s; COMMIT", $by->('released'), 'a savepoint that is kept');
ends('all', [ $take, $take, "SELECT dlock_refresh('k', owner => 'w')" ], '', 'renewals end nothing');
$app->ask_it($release);
ends('none', [ $take, $release ], '', 'none again');
$app->ask_it("SELECT dlock_acquire('k', '10ms', owner => 'w'); SELECT pg_sleep(0.02)");
ends('lost', "SELECT dlock_acquire('k', '1h')", $by->('expired'), 'lost: replaced after its TTL', client => $other);
$now->ask_it("SELECT dlock_force_release('k', 'test')");
$app->ask_it($take);
ends('lost', "SELECT dlock_acquire('k', '1h', priority => 1)", $by->('preempted by role "other"'), 'lost: preempted', client => $other);
$now->ask_it("SELECT dlock_force_release('k', 'test')");
$app->ask_it($take);
ends('lost', "SELECT dlock_force_release('k', 'test')", $by->('forcibly released by role "postgres"'), 'lost: forced', client => $now);
like(ask_time(), qr/^held it for 0\.0[12]\d s, from (\S+ \S+) UTC to (\S+ \S+) UTC/, 'the time that a grant was held ends with its TTL');

# The times of a grant that expired long ago.
sub ask_time
{
	my $line;

	$app->ask_it("SELECT dlock_acquire('t', '15ms', owner => 'w'); SELECT pg_sleep(0.2)");
	logged();
	$other->ask_it("SELECT dlock_acquire('t', '1h')");
	($line) = logged() =~ /Owner "w" (.*)/;
	return $line;
}

# the reaper, and the end of a session
$now->ask_it('ALTER SYSTEM SET dlock.log_ends = lost; SELECT dlock_force_release(key, \'test\') FROM dlock_locks');
$node->reload;
logged();
$app->ask_it("SELECT dlock_acquire('reaped', '10ms', owner => 'w')");
$node->append_conf('postgresql.conf', "dlock.reap_interval = '10ms'\n");
$node->reload;
$log = until_logged(qr/lock "reaped".*\n.*DETAIL/, 'the reaper');
like($log, qr/LOG:  lock "reaped" with version \d+ of role "app" ended: expired\n.*Owner "w" held it for 0\.010 s/, 'lost: removed by the reaper');
$now->ask_it('ALTER SYSTEM SET dlock.log_ends = \'all\'');
$node->reload;
my $c = client($node, 'c');
wait_until('the setting is there', sub { $c->ask_it('SHOW dlock.log_ends') eq 'all' });
$c->ask_it("SELECT dlock_acquire('session', '1h', session => true)");
logged();
$c->leave;
like(until_logged(qr/lock "session"/, 'the end of a session'),
	qr/LOG:  lock "session" with version \d+ of role "postgres" ended: released at the end of its session\n/, 'all: the end of its session');

# hostile: another role's owner is not sent to a client, and nobody turns the log off
$app->ask_it("SELECT dlock_acquire('h', '10ms', owner => 'secret'); SELECT pg_sleep(0.02)");
$other->ask_it("SET client_min_messages = log; SELECT dlock_acquire('h', '1h', wait => '1h')");
unlike($other->said, qr/secret|ended/, 'a client with client_min_messages = log sees nothing of it');
is($other->ask_it('SET dlock.log_ends = none'), 'ERROR 42501', 'a role cannot turn it off');
is($now->ask_it("SET dlock.log_ends = 'some'"), 'ERROR 22023', 'and it has no other values');

close_clients($now, $app, $other);
DlockWait::close_monitors();
$node->stop;
done_testing();
