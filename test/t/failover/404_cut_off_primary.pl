# A primary is cut off from its synchronous standby, which is promoted.  The old primary
# neither grants nor extends, its clients learn in time that they have lost their locks,
# and after its return it cannot grant anything that counts.  Then a second failover, back
# to the first server, and a third one that loses the last commits.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockClient;
use DlockTest;
use DlockWait;

client_build();

my $leap = 2**32;
my $a = new_node('a', streaming => 1, conf => "wal_log_hints = on\nwal_keep_size = '320MB'\n");
my $b = new_standby($a, 'b');
make_synchronous($a, $b);

# A register that only a holder may change, and that records the holder's token.
$a->safe_psql(
	'postgres', q{
CREATE TABLE register (id int PRIMARY KEY, token bigint, value text);
INSERT INTO register VALUES (1, 0, 'nothing');
CREATE TRIGGER fenced BEFORE UPDATE ON register
  FOR EACH ROW EXECUTE FUNCTION dlock_fence_trigger('k')});

sub write_register
{
	my ($token, $value) = @_;

	return "BEGIN; SET LOCAL dlock.token = '$token';"
	  . " UPDATE register SET token = $token, value = '$value'; COMMIT";
}

sub register_of
{
	my ($node) = @_;

	return $node->safe_psql('postgres', 'SELECT token, value FROM register');
}

sub last_version
{
	my ($node) = @_;

	return $node->safe_psql('postgres', 'SELECT last_value FROM dlock.versions');
}

# This server acknowledges nothing that would count: all of these wait.
sub grants_nothing
{
	my ($node, $token, $what) = @_;
	my @clients = (
		client($node, 'grants')->start("SELECT dlock_acquire('another', '1h')"),
		client($node, 'local')->start("SET synchronous_commit = local; SELECT dlock_acquire('a_third', '1h')"),
		client($node, 'calls')->start("CALL dlock_lock('a_fourth', '1h')"),
		client($node, 'refreshes')->start("SET synchronous_commit = off; SELECT dlock_refresh('long', $token->{long})"),
		client($node, 'writes')->start(write_register($token->{k}, 'from the old primary')));
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	until_sync_waits($node, scalar @clients, 'pid IN (' . join(',', map { $_->pid } @clients) . ')');
	is(scalar(grep { $_->came_back } @clients), 0, "$what: no grant, refresh or fenced commit is acknowledged");
	return @clients;
}

my %token;
$token{long} = $a->safe_psql('postgres', "SELECT dlock_acquire('long', '30 min')");

# One client holds k and renews it, and one holds it for the whole time; both know only
# the old primary.
my $d = driver(conninfo($a));
my $lock = $d->ask('acquire', 'renewed', ttl => 4000, renew => 1);
is($lock->{status}, 'ok', 'held, and renewed');
$token{k} = $a->safe_psql('postgres', "SELECT dlock_acquire('k', '1h')");
$a->safe_psql('postgres', write_register($token{k}, 'first'));
is(register_of($a), "$token{k}|first", 'the register is written');

#
# Cut off, and the standby promoted
#

my $before = last_version($a);
cut_off($b);
promote($b);
$b->safe_psql('postgres', "SET synchronous_commit = local; ALTER SYSTEM SET synchronous_standby_names = ''");
$b->reload;
is($a->safe_psql('postgres', 'SELECT pg_is_in_recovery()'), 'f', 'the old one believes to be the primary');
is( $b->safe_psql(
		'postgres', q{
SELECT string_agg(key, ' ' ORDER BY key) FROM dlock_locks
 WHERE (remaining > interval '29 min' AND remaining <= interval '30 min' AND key = 'long')
    OR (remaining > interval '59 min' AND remaining <= interval '1 h' AND key = 'k')}),
	'k long',
	'leases last one TTL from the promotion');

# A client gets the lock from the new primary only after the old holder has been told.
my $next = client($b, 'next')->start("SELECT dlock_acquire('renewed', '1h', wait => '150s')");
my @waiting = grants_nothing($a, \%token, 'cut off');
my $taken = $next->answer;
cmp_ok($taken, '>', $before + $leap / 2, 'the new primary gives it to another, with a higher version');
is($d->ask('state', 'renewed')->{owner}, 0, 'the old holder knows that it has lost it');
is($d->event('lost', 'renewed')->{reason}, 'deadline', 'by its own clock');
my $asked = $d->ask('acquire', 'new', timeout => 500);
is($asked->{status}, 'timeout', 'and libdlock gets nothing new there');
isnt($d->ask('refresh', 'renewed', timeout => 500)->{status}, 'ok', 'and does not keep its old lock');
is(scalar(grep { $_->came_back } @waiting), 0, 'still nothing is acknowledged');
fails_with($a, "SET dlock.require_sync = on; SELECT dlock_acquire('required')", '55000', [qr/no synchronous standby confirms/], 'with require_sync it says so');

# The new primary serves.
$token{k2} = $b->safe_psql('postgres', "SELECT dlock_force_release('k', 'its holder is gone'); SELECT dlock_acquire('k', '1h')")
  =~ s/.*\n//sr;
cmp_ok($token{k2}, '>', $taken, 'locks are granted');
$b->safe_psql('postgres', write_register($token{k2}, 'second'));
is(register_of($b), "$token{k2}|second", 'and data is written');

#
# The old primary is restarted, and a client goes there by mistake
#

my $granted_here = last_version($a);
is($d->finish, '', 'nothing was printed');
DlockWait::close_monitors();
$a->stop('immediate');
$_->lost foreach @waiting;
$a->start;
my $wrong = client($a, 'wrong')->start("SELECT dlock_acquire('yet_another', '1h')");
my $wrong_writer = client($a, 'wrong_writer')->start(write_register($token{k}, 'from the old primary'));
my $wrong_holder = client($a, 'wrong_holder')->start("SELECT dlock_refresh('long', $token{long})");
until_sync_waits($a, 3);
is(scalar(grep { $_->came_back } $wrong, $wrong_writer, $wrong_holder), 0, 'restarted: nothing is acknowledged');
cmp_ok(last_version($a), '>=', $granted_here, 'its own versions continue');
cmp_ok(last_version($a), '<', $token{k2} - $leap / 2, 'and are below those of the new primary');
DlockWait::close_monitors();
$a->stop('immediate');
$_->lost foreach $wrong, $wrong_writer, $wrong_holder;

#
# It comes back as a standby
#

command_ok(
	[
		'pg_rewind', '--target-pgdata', $a->data_dir, '--source-server', $b->connstr('postgres'),
		'--config-file', $a->data_dir . '/postgresql.conf'
	],
	'pg_rewind');
# pg_rewind copies the configuration of the other server
$a->append_conf('postgresql.conf', 'port = ' . $a->port . "\nunix_socket_directories = '" . $a->host . "'\n");
unlink $a->data_dir . '/postgresql.auto.conf';
$a->enable_streaming($b);
$a->start;
make_synchronous($b, $a);
is( $a->safe_psql('postgres', "SELECT coalesce(string_agg(key, ' '), 'none') FROM dlock_locks WHERE key ~ 'another|^a_'"),
	'none', 'what was granted there alone is gone');
$b->wait_for_catchup($a);
is(register_of($a), "$token{k2}|second", 'what was written is, too');
fails_with($a, "SELECT dlock_acquire('x')", '25006', [], 'it is a standby');

#
# A second failover, back to it
#

$token{both} = $b->safe_psql('postgres', "SELECT dlock_acquire('both', '30 min')");
my $second_before = last_version($b);
DlockWait::close_monitors();
close_clients($next);
$b->kill9;
promote($a);
like($a->safe_psql('postgres', q{SELECT detail FROM dlock_health() WHERE name = 'server'}), qr/^primary, timeline 3,/, 'the third timeline');
is($a->safe_psql('postgres', "SELECT dlock_check('both', $token{both}), dlock_check('k', $token{k2}), dlock_check('long', $token{long})"),
	'held|held|held', 'what was confirmed before is held, from either time');
is( $a->safe_psql(
		'postgres', q{
SELECT count(*) FROM dlock_locks
 WHERE remaining > interval '29 min' AND remaining <= interval '30 min' AND key IN ('both', 'long')}),
	2,
	'for one TTL from this promotion');
my $third = $a->safe_psql('postgres', "SELECT dlock_acquire('new', '1h')");
cmp_ok($third, '>', $second_before + $leap / 2, 'the versions have leapt again');
cmp_ok($third, '<', $second_before + 2 * $leap + 100, 'once');
fails_with($a, write_register($token{k}, 'the first holder'), 'LK001', [], 'the first token is good for nothing');
$a->safe_psql('postgres', write_register($token{k2}, 'third'));
is(register_of($a), "$token{k2}|third", 'the second still is');

#
# A third failover, asynchronous, that loses the last commits
#

my $c = new_standby($a, 'c');
$a->wait_for_catchup($c);
cut_off($c);

# The holder whose grant will be lost writes here, and to another store, which accepts no
# older token.
my %elsewhere = (token => 0, value => 'nothing');
my $write_elsewhere = sub {
	my ($token, $value) = @_;

	return 0 if $token < $elsewhere{token};
	%elsewhere = (token => $token, value => $value);
	return 1;
};
$a->safe_psql('postgres', "SELECT dlock_release('k', $token{k2})");
$token{lost} = $a->safe_psql('postgres', "SELECT dlock_acquire('k', '1h')");
$a->safe_psql('postgres', write_register($token{lost}, 'lost'));
ok($write_elsewhere->($token{lost}, 'lost'), 'written elsewhere');
my $third_before = last_version($a);
$a->kill9;
promote($c);

is(register_of($c), "$token{k2}|third", 'the last write is lost');
is($c->safe_psql('postgres', "SELECT dlock_check('k', $token{k2})"), 'held', 'the release before it is, too: the lease continues');
is($c->safe_psql('postgres', "SELECT dlock_acquire('k')"), '', 'and is respected');
is($c->safe_psql('postgres', "SELECT dlock_release('k', $token{k2})"), 'released', 'its holder releases it again');
$token{found} = $c->safe_psql('postgres', "SELECT dlock_acquire('k', '1h')");
cmp_ok($token{found}, '>', $third_before + $leap / 2, 'no version is repeated');
$c->safe_psql('postgres', write_register($token{found}, 'found'));
ok($write_elsewhere->($token{found}, 'found'), 'the new holder writes');

fails_with($c, write_register($token{lost}, 'late'), 'LK001', [], 'the holder whose grant was lost is rejected');
ok(!$write_elsewhere->($token{lost}, 'late'), 'elsewhere, too');
is(register_of($c), "$token{found}|found", 'the register is intact');
is("$elsewhere{token} $elsewhere{value}", "$token{found} found", 'and that elsewhere');

$c->stop;
done_testing();
