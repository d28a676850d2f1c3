# Clients during a failover of plain streaming replication: psql with a list of hosts,
# PgBouncer, and what they get from two primaries at once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockBouncer;
use DlockClient;
use DlockHaTest;
use DlockStreaming;
use DlockTest;

client_build();

my $leap = 2**32;
my $ha = DlockStreaming->new;
my ($port_a, $port_b) = map { $ha->member($_)->{port} } 'a', 'b';
my $waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";

#
# A list of hosts: the server that accepts writes, wherever it is in the list
#

sub served_by { my ($conninfo) = @_; return $ha->answer($conninfo, 'SELECT inet_server_port()'); }

is(served_by($ha->all_conninfo), $port_a, 'read-write: the primary');
is(served_by($ha->multi_conninfo([ $port_b, $port_a ], target_session_attrs => 'read-write')),
	$port_a, 'also behind a standby');
is(served_by($ha->multi_conninfo([ $port_b, $port_a ])), $port_b, 'without it, the first server in the list');

#
# The standby is promoted while the primary still runs, and nobody stops that one
#

$ha->ask('a', q{
CREATE TABLE invoice (id int PRIMARY KEY, paid_by text);
INSERT INTO invoice VALUES (42);
CREATE TRIGGER fenced BEFORE UPDATE ON invoice FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('invoice:{id}')});
my $token = $ha->ask('a', "SELECT dlock_acquire('invoice:42', '2s')");
my $holder = driver($ha->conninfo('a'));
my $held = $holder->ask('acquire', 'held', ttl => 4000, renew => 1);
is($held->{status}, 'ok', 'held by a client that knows only this server');

$ha->promote('b');
is($ha->ask('a', 'SELECT pg_is_in_recovery()'), 'f', 'there are two primaries');
is(served_by($ha->all_conninfo), $port_a, 'read-write finds the stale one');

# what clients of the stale primary get
my $grant = start_answer($ha->all_conninfo, "SELECT dlock_acquire('contested', '30 min')");
my $write = start_answer($ha->all_conninfo, q{
BEGIN;
SELECT set_config('dlock.token', dlock_acquire('invoice:42', '30 min', wait => '1min')::text, true);
UPDATE invoice SET paid_by = 'stale' WHERE id = 42;
COMMIT;
SELECT 'done'});
$ha->until_says('a', "$waiting AND query LIKE '%contested%'", 1);
ok(1, 'its grant waits');
$ha->until_says('a', "$waiting AND query LIKE '%invoice%'", 1);
ok(1, 'a write does, too, fenced or not');
refused_without_standby($ha, 'a', 'could not grant a lock: no synchronous standby confirms commits');
is($holder->event('lost', 'held')->{reason}, 'deadline', 'the holder is not renewed, and knows that it lost');

# what clients of the new primary get, which the operator lets continue alone
$ha->commit_alone('b', 1);
my $contested = $ha->ask('b', "SELECT dlock_acquire('contested', '30 min')");
cmp_ok($contested, '>', $token + $leap / 2, 'granted by the new one');
my $paying = $ha->ask('b', "SELECT dlock_acquire('invoice:42', '30 min', wait => '1min')");
my ($failed, $out, $err) = $ha->psql($ha->conninfo('b'), "SET dlock.token = '$token'; UPDATE invoice SET paid_by = 'late' WHERE id = 42");
like($err, qr/ERROR:  LK001: /, 'the fence rejects the token of before');
$ha->ask('b', "SET dlock.token = '$paying'; UPDATE invoice SET paid_by = 'new' WHERE id = 42");
is(join('', ($grant->('now'))[0], ($write->('now'))[0] =~ /done/), '', 'the stale one has acknowledged nothing');

#
# The stale primary is stopped, rewound, and becomes a standby
#

$ha->kill9('a');
is(join('', ($grant->())[0], ($write->())[0] =~ /done/), '', 'and never will be');
$holder->finish;
$ha->revive('a');
$ha->until_ready('b');
foreach my $name ('a', 'b')
{
	$ha->until_says($name, "SELECT version FROM dlock_locks WHERE key = 'contested'", $contested);
	is($ha->ask($name, 'SELECT paid_by FROM invoice'), 'new', "$name: the write of the holder, and no other");
}

#
# The same with asynchronous replication: both grant, and both report it
#

$ha->commit_alone('b', 1);
$ha->take_over('a');
my $from_stale = $ha->ask('b', "SELECT dlock_acquire('double', '30 min')");
my $from_new = $ha->ask('a', "SELECT dlock_acquire('double', '30 min')");
cmp_ok($from_stale, '>', 0, 'asynchronous: granted by the stale one');
cmp_ok($from_new, '>', $from_stale + $leap / 2, 'and by the new one, with a version that is far higher');
$ha->kill9('b');
$ha->revive('b');
$ha->until_ready('a');
$ha->until_says('b', "SELECT version FROM dlock_locks WHERE key = 'double'", $from_new);
is($ha->ask('a', "SELECT dlock_check('double', $from_stale)"), 'held_by_other', 'the first holder finds out when it asks');

#
# PgBouncer, which is told where the primary is
#

my $bouncer = DlockBouncer->new(
	user => $ha->{user},
	target => "host=127.0.0.1 port=$port_a",
	log => "$ha->{log}/pgbouncer.log");
my $through = $ha->multi_conninfo([ $bouncer->port ], host => $bouncer->folder);
my $client = driver($through);
my $lock = $client->ask('acquire', 'pooled', ttl => 120000, renew => 1);
is($lock->{status}, 'ok', 'through PgBouncer: held');
is($ha->answer($through, "SELECT dlock_check('pooled', $lock->{version})"), 'held', 'seen by another client');

$ha->kill9('a');
$ha->take_over('b');
$bouncer->reload("host=127.0.0.1 port=$port_b");
wait_until('PgBouncer is there again', sub { return !($ha->psql($through, 'SELECT 1'))[0] });
is(served_by($through), $port_b, 'the new primary, by the same address');
is($ha->answer($through, "SELECT version FROM dlock_locks WHERE key = 'pooled'"), $lock->{version}, 'the lock is held');
is($client->ask('refresh', 'pooled', timeout => 100000)->{status}, 'ok', 'its holder continues');
cmp_ok($client->ask('acquire', 'fresh', timeout => 100000)->{version}, '>', $lock->{version} + $leap / 2, 'and gets new ones');
unlike($client->events, qr/lost/, 'nothing was lost');
is($client->finish, '', 'nothing was printed');

# A list of hosts does not help there: PgBouncer uses them in turn, including standbys.
$ha->revive('a');
$ha->until_says('a', 'SELECT pg_is_in_recovery()');
foreach my $name ('a', 'b')
{
	mkdir "$ha->{folder}/$name" or die "could not make a folder: $!";
	symlink "$ha->{folder}/.s.PGSQL." . $ha->member($name)->{port}, "$ha->{folder}/$name/.s.PGSQL.5432"
	  or die "could not make a link: $!";
}
$bouncer->reload("host=$ha->{folder}/a,$ha->{folder}/b port=5432 pool_mode=session");
wait_until('PgBouncer has the list', sub { return ($ha->psql($through, 'SHOW port'))[1] =~ /^\d+$/ });
my @sessions = map { start_session($through) } 1 .. 4;
my %answers = map { $_->{ask}->('SELECT pg_is_in_recovery()') => 1 } @sessions;
is(join(' ', sort keys %answers), 'f t', 'a list of hosts: some clients are on the standby');
$_->{end}->() foreach @sessions;
undef $bouncer;

#
# The primary is killed under load
#

$ha->until_ready('b');
is(join(' ', lose_primary($ha)), 'a b', 'a has taken over');

$ha->stop;
done_testing();
