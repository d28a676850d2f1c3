# max_hold of a policy: what the log says, tickets, sessions that are there already, and a restart.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;
use DlockTicket;
use DlockWait;

my $node = new_node('max_hold', conf => "dlock.log_ends = lost\n");
my ($now, $holder) = map { client($node, $_) } qw(now holder);

# A grant that was renewed to its end, in a session that knows no policy yet.
my $version = $holder->ask_it("SELECT dlock_acquire('log', '1h', 'job')");
$now->ask_it("SELECT dlock_policy('', NULL, max_hold => '1ms')");
is($holder->ask_it("SELECT dlock_refresh('log', $version)"), '', 'a session that is there already does not renew what is too old');
is($holder->ask_it("SELECT dlock_release('log', $version)"), 'released', 'but releases it');
$now->ask_it("SELECT dlock_policy('', NULL, max_hold => '300ms')");
$version = $holder->ask_it("SELECT dlock_acquire('log', '200ms', 'job')");
my ($renewals, $late) = (0, 0);
while ((my $expires = $holder->ask_it("SELECT e, e > ends_at FROM (SELECT dlock_refresh('log', $version) AS e) r, dlock_get('log')")) =~ /\|/)
{
	$renewals++;
	$late++ if $expires =~ /\|t$/;
}
note "$renewals renewals";
is($late, 0, 'no renewal is longer than allowed');
is($holder->ask_it("SELECT dlock_check('log', $version)"), 'not_held', 'and then it is over');
my $offset = -s $node->logfile;
cmp_ok($now->ask_it("SELECT dlock_acquire('log', '200ms', 'other')"), '>', $version, 'the next one has it');
ok($node->wait_for_log(qr/LOG:  lock "log" with version $version of role "\w+" ended: expired(, held for as long as its policy allows)?\n/, $offset), 'the log tells');

# the log, with a lease that no machine is too slow to renew
$now->ask_it("SELECT dlock_policy('long', NULL, max_hold => '1h')");
$version = $now->ask_it("SELECT dlock_acquire('long', '1h')");
$now->ask_it("SELECT dlock_refresh('long', $version)");
$now->ask_it("UPDATE dlock.locks SET refreshed_at = refreshed_at - interval '2h', expires_at = expires_at - interval '2h' WHERE key = 'long'");
$offset = -s $node->logfile;
cmp_ok($now->ask_it("SELECT dlock_acquire('long')"), '>', $version, 'a grant that was cut short has ended');
ok($node->wait_for_log(qr/LOG:  lock "long" with version $version of role "\w+" ended: expired, held for as long as its policy allows\n/, $offset),
	'the log says why');

# A ticket
$now->ask_it("SELECT dlock_policy('', NULL, max_hold => '1h')");
my $ticket = enqueue($now, 'ticket', 'me', "ttl => '1h'");
until_state($node, $ticket, 'granted', 'a ticket is granted');
is($now->ask_it(q{SELECT dlock_refresh('ticket', owner => 'me') <= ends_at, ends_at = acquired_at + '1h' FROM dlock_get('ticket')}),
	't|t', 'its grant is limited, too');
is(enqueue($now, 'too long', 'me', "ttl => '2h'"), 'ERROR 42501', 'there is none for a longer TTL');

# Wait for all keys: each of them may be held from when the last one was won.
$now->ask_it("SELECT dlock_policy('all', NULL, max_hold => '1h')");
$holder->ask_it("SELECT dlock_acquire('all 2', '1h', 'other')");
$now->start("SELECT dlock_acquire_all(ARRAY['all 1', 'all 2'], '1h', wait => '1h')");
until_waiting($node, $now, 'all 2');
$holder->ask_it(q{SELECT dlock_release('all 2', owner => 'other')});
like($now->answer, qr/^\{\d+,\d+\}$/, 'several keys');
is($holder->ask_it(q{SELECT max(ends_at) - min(ends_at) < '1s', bool_and(expires_at = ends_at) FROM dlock_list('all*')}), 't|t', 'all TTLs are whole');

# Some that it has already, and others: what it has is not younger for that.
my $since = q{SELECT acquired_at, ends_at FROM dlock_get('again 1')};
$now->ask_it("SELECT dlock_acquire_all(ARRAY['again 1', 'again 2'], '1h', owner => 'o')");
my $first = $now->ask_it($since);
like($now->ask_it("SELECT dlock_acquire_all(ARRAY['again 1', 'again 3'], '1h', owner => 'o')"), qr/^\{\d+,\d+\}$/, 'one of two is there already');
is($now->ask_it($since), $first, 'and ends when it would have ended');

# Keys whose first one has waited for the last one for longer than it may be held
$now->ask_it("SELECT dlock_policy('slow', NULL, max_hold => '1ms')");
$holder->ask_it("SELECT dlock_policy_drop('slow', NULL), dlock_acquire('slow 2', '1h', 'other'), dlock_policy('slow', NULL, max_hold => '1ms')");
$now->start("SELECT dlock_acquire_all(ARRAY['slow 1', 'slow 2'], '1ms', wait => '1h')");
until_waiting($node, $now, 'slow 2');
$holder->ask_it(q{SELECT dlock_release('slow 2', owner => 'other')});
like($now->answer, qr/^\{\d+,\d+\}$/, 'their time begins with the last one');

# A restart: it counts from then.
$version = $now->ask_it("SELECT dlock_acquire('restart', '1h')");
my $before = $now->ask_it("SELECT ends_at FROM dlock_get('restart')");
close_clients($now, $holder);
DlockWait::close_monitors();
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', qq{SELECT ends_at > '$before', expires_at = ends_at FROM dlock_get('restart')}), 't|t', 'after a restart it counts from then');
is($node->safe_psql('postgres', qq{SELECT dlock_refresh('restart', $version) <= ends_at FROM dlock_get('restart')}), 't', 'as the renewals do');
is($node->safe_psql('postgres', qq{SELECT expires_at = ends_at, expires_at < refreshed_at + ttl FROM dlock_get('restart')}), 't|t', 'to the end');
$node->stop;
done_testing();
