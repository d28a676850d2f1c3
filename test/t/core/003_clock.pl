# A step of the wall clock while the server runs does not move a lease.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

use DlockTest;

my $node = new_node('clock', stopped => 1);
my $clock = $node->basedir . '/clock';

sub step
{
	my ($offset) = @_;

	# replaced as a whole, so that nobody reads half of it
	append_to_file("$clock.new", "$offset\n");
	rename "$clock.new", $clock or die "could not rename: $!";
	return;
}

step('+0');
{
	local %ENV = (%ENV,
		faketime_env(FAKETIME_TIMESTAMP_FILE => $clock, FAKETIME_NO_CACHE => 1));
	$node->start;
}
add_extension_in($node, 'postgres');

# The difference between the server's clock and ours, in whole hours.
sub hours_off
{
	my $now = $node->safe_psql('postgres', 'SELECT extract(epoch FROM clock_timestamp())');

	return sprintf '%.0f', ($now - time) / 3600;
}

is(hours_off(), 0, 'the clock is right');
my $long = $node->safe_psql('postgres', "SELECT dlock_acquire('long', '30 min')");

foreach my $hours ('+1', '-1', '-24', '+48')
{
	my $ttl = 3;

	step('+0');
	is(hours_off(), 0, 'the clock is right again');
	my $began = clock_gettime(CLOCK_MONOTONIC);
	my $short = $node->safe_psql('postgres', "SELECT dlock_acquire('short', '$ttl s')");

	step("${hours}h");
	is(hours_off(), $hours + 0, "the clock makes a step of $hours h");

	# if the machine is so slow that the lease has expired, there is nothing to see
	my $state = $node->safe_psql('postgres', "SELECT dlock_check('short', $short)");
	my $elapsed = clock_gettime(CLOCK_MONOTONIC) - $began;
	ok($state eq 'held' || $elapsed >= $ttl, "$hours h: a lease is not shortened");

	is( $node->safe_psql(
			'postgres', q{
SELECT state, remaining > interval '28 min' AND remaining <= interval '30 min',
       expires_at - clock_timestamp() BETWEEN remaining - interval '1 s' AND remaining + interval '1 s',
       refreshed_at <= clock_timestamp() + interval '1 s'
  FROM dlock_locks WHERE key = 'long'}),
		'held|t|t|t',
		"$hours h: what is shown goes by the clock on the wall");

	is( $node->safe_psql(
			'postgres',
			"SELECT dlock_refresh('long', $long) - clock_timestamp() BETWEEN '29 min' AND '30 min 1 s'"),
		't',
		"$hours h: the answer of a refresh does, too");

	$node->poll_query_until('postgres', "SELECT dlock_check('short', $short)", 'not_held')
	  or die 'the lease does not end';
	cmp_ok(clock_gettime(CLOCK_MONOTONIC) - $began, '>=', $ttl, "$hours h: it lasts its TTL");
	isnt($node->safe_psql('postgres', "SELECT dlock_acquire('short', '1ms')"),
		'', "$hours h: and no longer");
	is($node->safe_psql('postgres', "SELECT dlock_check('long', $long)"),
		'held', "$hours h: another one is held");
}

# The same for the reaper, which sleeps until a lease ends.
$node->append_conf('postgresql.conf', "dlock.reap_interval = '10ms'");
$node->reload;
step('-1h');
$node->safe_psql('postgres', "SELECT dlock_acquire('reaped', '500ms')");
step('-2h');
ok($node->poll_query_until('postgres', "SELECT count(*) FROM dlock.locks WHERE key = 'reaped'", '0'),
	'the reaper comes in time');

# A run never compares its times with those of another: a grant that was made by
# a clock that was ahead, and renewed since, ends like any other.
step('+2h');
my %versions = map {
	$_ => $node->safe_psql('postgres', "SELECT dlock_acquire('$_', '10 min', owner => 'me')")
} qw(refreshed again lent);
$node->stop;
step('+0');
{
	local %ENV = (%ENV,
		faketime_env(FAKETIME_TIMESTAMP_FILE => $clock, FAKETIME_NO_CACHE => 1));
	$node->start;
}
$node->safe_psql('postgres', "SELECT dlock_refresh('refreshed', $versions{refreshed})");
$node->safe_psql('postgres', "SELECT dlock_acquire('again', '10 min', owner => 'me')");
$node->safe_psql('postgres', "SELECT dlock_acquire('lent', '10 min', owner => 'me', shared => true)");
foreach my $key (sort keys %versions)
{
	is($node->safe_psql('postgres', "SELECT dlock_release('$key', $versions{$key})"),
		'released', "$key: a grant of a run whose clock was ahead is released");
	is($node->safe_psql('postgres', "SELECT dlock_acquire('$key') IS NOT NULL"),
		't', "$key: and the key is free at once");
}

$node->stop;
done_testing();
