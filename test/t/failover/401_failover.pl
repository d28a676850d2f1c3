# Standbys, promotion, and clocks that differ.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;

my $leap = 2**32;

my $primary = new_node('primary', streaming => 1);
my $standby = new_standby($primary, 'standby');
my $ahead = new_standby($primary, 'ahead', env => { faketime_env(FAKETIME => '+1h') });
my $behind = new_standby($primary, 'behind', env => { faketime_env(FAKETIME => '-1h') });

my %version;
foreach my $key ('long', 'stale')
{
	$version{$key} = $primary->safe_psql('postgres', "SELECT dlock_acquire('$key', '30 min')");
}
my $freed = $primary->safe_psql('postgres', "SELECT dlock_acquire('freed', '30 min')");
$primary->safe_psql('postgres', "SELECT dlock_release('freed', $freed)");

# it has expired by the primary's clock, which the standbys never use
$primary->safe_psql('postgres',
	"UPDATE dlock.locks SET expires_at = expires_at - interval '1 day' WHERE key = 'stale'");
$primary->safe_psql('postgres', 'CREATE TABLE work (n int)');
$primary->wait_for_catchup($_) foreach $standby, $ahead, $behind;

#
# On a standby
#

foreach my $call (
	"dlock_acquire('long')",
	"dlock_acquire('new', '1s', owner => 'me', value => 'x')",
	"dlock_refresh('long', $version{long})",
	"dlock_release('long', $version{long})",
	"dlock_check('long', $version{long})",
	"dlock_fence('long', $version{long})",
	"dlock_force_release('long', 'reason')")
{
	my ($function) = $call =~ /^(\w+)/;

	fails_with(
		$standby,
		"SELECT $call",
		'25006',
		[
			qr/cannot execute \Q$function\E\(\) on a standby/,
			qr/HINT:  Connect to the primary, for instance with target_session_attrs=read-write\./
		],
		"$function on a standby");
}
is( $standby->safe_psql(
		'postgres', q{
SELECT string_agg(key, ' ' ORDER BY key) FROM dlock_locks
 WHERE remaining BETWEEN interval '29 min' AND interval '30 min 1 s'}),
	'long stale',
	'the view shows what a standby would start with');

#
# Promotion of a standby that missed the last commits
#

cut_off($standby);
my @missed = split /\n/, $primary->safe_psql('postgres', q{
SELECT dlock_acquire('missed' || n, '30 min') FROM generate_series(1, 40) n});
my $highest = $missed[-1];
$primary->safe_psql('postgres', "SELECT dlock_release('long', $version{long})");

promote($standby);
is(locks_of($standby), "long $version{long}, stale $version{stale}",
	'grants survive with their versions');
is( $standby->safe_psql(
		'postgres', q{
SELECT count(*) FROM dlock_locks
 WHERE remaining > interval '29 min' AND remaining <= interval '30 min'}),
	2,
	'they last one TTL from the promotion');
is($standby->safe_psql('postgres', "SELECT dlock_acquire('long'), dlock_acquire('stale')"),
	'|', 'nobody takes them');
is($standby->safe_psql('postgres', "SELECT dlock_refresh('long', $version{long}) IS NOT NULL"),
	't', 'the holder continues');

my @new = split /\n/, $standby->safe_psql('postgres', q{
SELECT dlock_acquire('missed' || n, '30 min') FROM generate_series(1, 40) n});
is(scalar(grep { $_ > $highest + $leap / 2 } @new), 40, 'no version is repeated');
is(scalar(grep { $_ < $highest + 2 * $leap + 100 } @new), 40, 'they have leapt once');
isnt($standby->safe_psql('postgres', "SELECT dlock_acquire('freed')"), '', 'what was free is free');
fails_with($standby, "SELECT dlock_fence('missed1', $missed[0])",
	'LK001', [qr/is not held with version/], 'the grant that was lost is fenced off');

# The versions of a run continue without another leap, even after a restart.
$standby->restart;
my $after = $standby->safe_psql('postgres', "SELECT dlock_acquire('after_restart')");
ok($after > $new[-1] && $after < $new[-1] + 100, 'no leap without a failover');

#
# A second failover
#

$standby->safe_psql('postgres', 'ALTER SYSTEM RESET primary_conninfo');
my $second = new_standby($standby, 'second');
$standby->wait_for_catchup($second);
cut_off($second);
my $lost = $standby->safe_psql('postgres', "SELECT dlock_acquire('lost')");
$standby->stop('immediate');
promote($second);
my $found = $second->safe_psql('postgres', "SELECT dlock_acquire('lost')");
ok($found > $lost + $leap / 2, 'versions leap again');
is($second->safe_psql('postgres', "SELECT dlock_check('long', $version{long})"),
	'held', 'a grant survives the second failover');
$second->stop('immediate');

#
# Clocks that are wrong by an hour
#

my $half_hour = $primary->safe_psql('postgres', "SELECT dlock_acquire('half_hour', '30 min')");
my $seconds = $primary->safe_psql('postgres', "SELECT dlock_acquire('seconds', '5s')");
$primary->wait_for_catchup($_) foreach $ahead, $behind;
$primary->stop('immediate');

my %first;
foreach my $case ([ $ahead, 3600 ], [ $behind, -3600 ])
{
	my ($node, $skew) = @$case;
	my $name = $node->name;

	promote($node);
	is($node->safe_psql('postgres', "SELECT dlock_check('seconds', $seconds), dlock_acquire('seconds')"),
		'held|', "$name: not stolen at once");
	my $off = $node->safe_psql('postgres', 'SELECT extract(epoch FROM clock_timestamp())') - time;
	ok(abs($off - $skew) < 600, "$name: the clock is off");
	is( $node->safe_psql(
			'postgres', q{
SELECT remaining > interval '29 min' AND remaining <= interval '30 min'
       AND expires_at BETWEEN clock_timestamp() + interval '29 min' AND clock_timestamp() + interval '30 min 1 s'
  FROM dlock_locks WHERE key = 'half_hour'}),
		't',
		"$name: one TTL is left");
	$node->poll_query_until('postgres', "SELECT dlock_acquire('seconds') IS NOT NULL")
	  or die 'the lease does not end';
	ok(1, "$name: not held for an hour");
	is($node->safe_psql('postgres', "SELECT dlock_check('half_hour', $half_hour)"),
		'held', "$name: the longer one is held");
	$first{$name} = $node->safe_psql('postgres', "SELECT dlock_acquire('first')");
	$node->stop('immediate');
}

# Both left the same primary at the same point, for timelines with the same number: to each
# other they are a split brain.
cmp_ok(abs($first{ahead} - $first{behind}), '>', 100, 'two that were both promoted give out other versions');

done_testing();
