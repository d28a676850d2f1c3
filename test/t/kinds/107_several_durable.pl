# What survives a crash, a promotion and a dump where several hold a key: every grant, each limit,
# and what has to cool.  And what must not come back.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockTest;

# Takes the grants on a server, and returns the versions that count.
sub prepare
{
	my ($node, $database) = @_;
	my $session = session($node, $database // 'postgres');
	my $sql = sub { return ask($session, $_[0]) };
	my %v;

	# readers, some with an owner; a semaphore that is full; one with two of three
	$v{readers} = [ map { $sql->("SELECT dlock_acquire('readers', '30 min', shared => true" . ($_ % 2 ? ", owner => 'o$_'" : '') . ')') } 1 .. 4 ];
	$v{full} = [ map { $sql->("SELECT dlock_acquire('full', '30 min', slots => 2)") } 1, 2 ];
	$v{room} = [ map { $sql->("SELECT dlock_acquire('room', '30 min', slots => 3, owner => 'o$_')") } 1, 2 ];
	$v{writer} = [ $sql->("SELECT dlock_acquire('writer', '30 min')") ];
	# what was given back
	$sql->("SELECT dlock_release('gone', dlock_acquire('gone', '30 min', slots => 2))");

	# an upgrade, and a downgrade
	$sql->("SELECT dlock_acquire('up', '30 min', 'o', shared => true)");
	$v{up} = [ $sql->("SELECT dlock_acquire('up', '30 min', 'o')") ];
	$v{down} = [ $sql->("SELECT dlock_acquire('down', '30 min', 'o')") ];
	$sql->("SELECT dlock_acquire('down', '30 min', 'o', shared => true)");

	# released early, expired with a delay, and a place of each kind
	$v{least} = $sql->("SELECT dlock_acquire('least', '1h', at_least => '30 min')");
	$sql->("SELECT dlock_release('least', $v{least})");
	$v{place_least} = $sql->("SELECT dlock_acquire('place_least', '1h', slots => 2, at_least => '30 min')");
	$sql->("SELECT dlock_release('place_least', $v{place_least})");
	$v{delay} = $sql->("SELECT dlock_acquire('delay', '1ms', delay => '30 min')");
	$v{place_delay} = $sql->("SELECT dlock_acquire('place_delay', '1ms', slots => 2, delay => '30 min')");
	# held, with at_least and delay
	$v{both} = [ $sql->("SELECT dlock_acquire('both', '30 min', at_least => '30 min', delay => '30 min')") ];

	# lapsed, and lapsed and taken by another one
	$v{lazy} = $sql->("SELECT dlock_acquire('lazy', '1ms', lazy => true)");
	$v{lazy_lost} = $sql->("SELECT dlock_acquire('lazy_lost', '1ms', lazy => true)");
	$v{lazy_lost_place} = $sql->("SELECT dlock_acquire('lazy_lost_place', '1ms', shared => true, lazy => true)");

	# Expired, and followed by a grant of another kind.  A restart gives every grant one TTL from
	# then, but these have lost the key before.
	my @expired = (
		$sql->("SELECT dlock_acquire('head_then_reader', '300ms')"),
		$sql->("SELECT dlock_acquire('reader_then_head', '300ms', shared => true)"),
		$sql->("SELECT dlock_acquire('reader_then_two', '300ms', shared => true)"),
		(map { $sql->("SELECT dlock_acquire('three_then_two', '300ms', slots => 3)") } 1 .. 3),
		$sql->("SELECT dlock_acquire('head_then_released', '300ms')"),
		$sql->("SELECT dlock_acquire('reader_then_released', '300ms', shared => true)"));
	$sql->('SELECT pg_sleep(0.4)');
	$v{new} = {
		head_then_reader => [ $sql->("SELECT dlock_acquire('head_then_reader', '30 min', shared => true)") ],
		reader_then_head => [ $sql->("SELECT dlock_acquire('reader_then_head', '30 min')") ],
		reader_then_two => [ map { $sql->("SELECT dlock_acquire('reader_then_two', '30 min', slots => 2)") } 1, 2 ],
		three_then_two => [ map { $sql->("SELECT dlock_acquire('three_then_two', '30 min', slots => 2)") } 1, 2 ],
		lazy_lost => [ $sql->("SELECT dlock_acquire('lazy_lost', '30 min', shared => true)") ],
		lazy_lost_place => [ $sql->("SELECT dlock_acquire('lazy_lost_place', '30 min')") ]
	};
	$sql->("SELECT dlock_release('head_then_released', dlock_acquire('head_then_released', '30 min', shared => true))");
	$sql->("SELECT dlock_release('reader_then_released', dlock_acquire('reader_then_released', '30 min'))");
	$v{expired} = {
		head_then_reader => [ $expired[0] ], reader_then_head => [ $expired[1] ], reader_then_two => [ $expired[2] ],
		three_then_two => [ @expired[ 3 .. 5 ] ], head_then_released => [ $expired[6] ], reader_then_released => [ $expired[7] ],
		lazy_lost => [ $v{lazy_lost} ], lazy_lost_place => [ $v{lazy_lost_place} ]
	};
	end_session($session);
	return \%v;
}

# Everything that prepare() took is as it was.
sub verify
{
	my ($node, $v, $what) = @_;
	my $session = session($node);
	my $sql = sub { return ask($session, $_[0]) };
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is($sql->("SELECT dlock_acquire('readers') IS NULL AND dlock_acquire('full') IS NULL AND dlock_acquire('room') IS NULL"), 't',
		"$what: the first exclusive requests see the places");

	foreach my $key ('readers', 'full', 'room', 'writer', 'up', 'down', 'both')
	{
		is($sql->("SELECT string_agg(version::text, ' ' ORDER BY version) FROM dlock_locks WHERE key = '$key' AND state = 'held'"),
			join(' ', @{ $v->{$key} }), "$what: $key");
		is($sql->("SELECT dlock_check('$key', $_)"), 'held', "$what: $key $_ is held") foreach @{ $v->{$key} };
	}
	is($sql->("SELECT dlock_acquire('readers', '30 min', 'o1', shared => true)"), $v->{readers}[0], "$what: an owner's retry");

	# limits: nothing of these stays
	is($sql->("BEGIN; SELECT dlock_acquire('full', slots => 2) IS NULL; SELECT dlock_acquire('full', slots => 3) IS NULL; SELECT dlock_acquire('full', slots => 3) IS NULL; ROLLBACK"),
		"t\nf\nt", "$what: a full semaphore is full");
	is($sql->("BEGIN; SELECT dlock_acquire('room', slots => 3) IS NULL; SELECT dlock_acquire('room', slots => 3) IS NULL; ROLLBACK"), "f\nt", "$what: there is room for one");
	is($sql->("BEGIN; SELECT dlock_acquire('writer', shared => true) IS NULL; SELECT dlock_acquire('readers', shared => true) IS NULL; SELECT dlock_acquire('gone') IS NULL; SELECT dlock_acquire('up', shared => true) IS NULL; SELECT dlock_acquire('down', shared => true) IS NULL; ROLLBACK"),
		"t\nf\nf\nt\nf", "$what: readers and writers");

	# cooling
	foreach my $key ('least', 'place_least', 'delay', 'place_delay')
	{
		# a lease of another run lasts one TTL from the start, so the delay may not have begun
		$node->poll_query_until('postgres', "SELECT state = 'cooling' FROM dlock_locks WHERE key = '$key'")
		  or die "$key does not cool";
		is($sql->("SELECT dlock_acquire('$key', priority => 5) IS NULL"), 't', "$what: $key cools");
		is($sql->("SELECT remaining BETWEEN '25 min' AND '30 min' FROM dlock_locks WHERE key = '$key'"), 't', "$what: $key cools for one span");
		is($sql->("SELECT dlock_check('$key', $v->{$key})"), 'not_held', "$what: nobody has $key");
	}
	is($sql->("BEGIN; SELECT dlock_acquire('place_least', slots => 2) IS NULL; SELECT dlock_acquire('place_least', slots => 2) IS NULL; ROLLBACK"),
		"f\nt", "$what: a place that cools counts");

	# lazy
	is($sql->("SELECT dlock_check('lazy', $v->{lazy})"), 'held', "$what: a lapsed lock is its holder's");
	$node->poll_query_until('postgres', "SELECT state = 'lapsed' FROM dlock_locks WHERE key = 'lazy'") or die 'lazy does not lapse';
	is($sql->("BEGIN; SELECT dlock_acquire('lazy') > $v->{lazy}; ROLLBACK"), 't', "$what: until another one wants it");

	# what must not come back
	foreach my $key (sort keys %{ $v->{expired} })
	{
		foreach my $version (@{ $v->{expired}{$key} })
		{
			isnt($sql->("SELECT dlock_check('$key', $version)"), 'held', "$what: $key $version does not come back");
			like(complaint($session, "SELECT dlock_fence('$key', $version)"), qr/ERROR:  lock "$key" is not held with version $version/,
				"$what: $key $version is fenced off");
		}
		is($sql->("SELECT coalesce(string_agg(version::text, ' ' ORDER BY version), '') FROM dlock_locks WHERE key = '$key'"),
			join(' ', @{ $v->{new}{$key} // [] }), "$what: $key is held by those that followed");
	}
	end_session($session);
	return;
}

#
# Crash and restart, without and with the reaper
#

foreach my $interval ('0', '50ms')
{
	my $node = new_node("reap_$interval", conf => "dlock.reap_interval = $interval\n");
	my $v = prepare($node);

	$node->stop('immediate');
	$node->start;
	verify($node, $v, "reaper $interval, crash");

	$node->restart;
	verify($node, $v, "reaper $interval, restart");

	# a backend dies, and the postmaster starts all over
	my $session = session($node);
	my $pid = ask($session, 'SELECT pg_backend_pid()');
	kill 'KILL', $pid;
	eval { $session->{run}->kill_kill };
	# a psql that cannot connect may be gone before it is given the query
	wait_until('the crash is over', sub { return eval { ($node->psql('postgres', 'SELECT 1'))[0] == 0 } });
	verify($node, $v, "reaper $interval, a killed backend");
	$node->stop;
}

#
# Promotion
#

my $primary = new_node('primary', streaming => 1);
my $standby = new_standby($primary, 'standby');
my $v = prepare($primary);
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', "SELECT count(*) FROM dlock_locks WHERE key = 'readers'"), 4, 'a standby shows the places');
promote($standby);
verify($standby, $v, 'promoted');
cmp_ok($standby->safe_psql('postgres', "SELECT dlock_acquire('room', slots => 3)"), '>', $v->{both}[0] + 2**31, 'new places have leapt');
$standby->stop;

#
# Copies of a database
#

# The reaper has seen the database before the rows are restored, and found no place.
my $node = $primary;
$node->append_conf('postgresql.conf', "dlock.reap_interval = 10ms\n");
$node->reload;
$node->safe_psql('postgres', 'CREATE DATABASE shop');
add_extension_in($node, 'shop');
my $shop = prepare($node, 'shop');
my $dump = $node->basedir . '/shop.dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('shop') ], 'pg_dump');
$node->safe_psql('postgres', 'CREATE DATABASE copy');
$node->command_ok([ 'pg_restore', '-e', '--section=pre-data', '-d', $node->connstr('copy'), $dump ], 'pg_restore, schema');
$node->safe_psql('copy', "SELECT dlock_acquire('reaped', '1ms')");
$node->poll_query_until('copy', "SELECT count(*) = 0 FROM dlock.locks WHERE key = 'reaped'") or die 'the reaper does not come';
$node->command_ok([ 'pg_restore', '-e', '--section=data', '-d', $node->connstr('copy'), $dump ], 'pg_restore, data');
is($node->safe_psql('copy', "SELECT dlock_acquire('readers') IS NULL AND dlock_acquire('full') IS NULL AND dlock_acquire('down') IS NULL"), 't',
	'restored: an exclusive request sees the places');
is($node->safe_psql('copy', "SELECT dlock_check('readers', $shop->{readers}[1]), dlock_check('full', $shop->{full}[0]), dlock_check('lazy', $shop->{lazy})"),
	'held|held|held', 'restored: they are held');
is($node->safe_psql('copy', "SELECT dlock_acquire('full', slots => 2) IS NULL"), 't', 'restored: a full semaphore is full');

# The same without triggers, in one transaction and in several
foreach my $once (0, 1)
{
	my $to = "quiet_$once";
	my @data = ('pg_restore', '-e', '--data-only', '--disable-triggers', '--superuser=postgres', $once ? '--single-transaction' : ());

	$node->safe_psql('postgres', "CREATE DATABASE $to");
	$node->command_ok([ 'pg_restore', '-e', '--section=pre-data', '-d', $node->connstr($to), $dump ], "$to: schema");
	$node->safe_psql($to, "SELECT dlock_acquire('reaped', '1ms')");
	$node->poll_query_until($to, "SELECT count(*) = 0 FROM dlock.locks WHERE key = 'reaped'") or die 'the reaper does not come';

	# from here on, nothing but the end of the restore can tell that there are places
	$node->safe_psql('postgres', 'ALTER SYSTEM SET dlock.reap_interval = 0');
	$node->reload;
	$node->command_ok([ @data, '-d', $node->connstr($to), $dump ], "$to: data");
	is($node->safe_psql($to, "SELECT dlock_acquire('readers') IS NULL AND dlock_acquire('full') IS NULL AND dlock_acquire('down') IS NULL"), 't',
		"$to: an exclusive request sees the places");
	like($node->safe_psql($to, "SELECT status, detail FROM dlock_health() WHERE name = 'trigger'"), qr/^warning\|of dlock.locks is not enabled always/,
		"$to: the trigger is not what it was");
	$node->safe_psql($to, $node->safe_psql($to, "SELECT hint FROM dlock_health() WHERE name = 'trigger'"));
	is($node->safe_psql($to, "SELECT count(*) FROM dlock_health() WHERE name = 'trigger'"), 0, "$to: the hint mends it");
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET dlock.reap_interval');
	$node->reload;
}

# A template.
$node->safe_psql('postgres', 'CREATE DATABASE twin TEMPLATE copy');
is($node->safe_psql('twin', "SELECT dlock_acquire('readers') IS NULL AND dlock_acquire('full') IS NULL AND dlock_acquire('down') IS NULL"), 't',
	'a copy by template: an exclusive request sees the places');
# A database whose slot in shared memory belonged to another one.
$node->safe_psql('postgres', 'DROP DATABASE twin');
$node->safe_psql('postgres', 'CREATE DATABASE twin TEMPLATE copy');
is($node->safe_psql('twin', "SELECT dlock_acquire('readers') IS NULL AND dlock_acquire('full') IS NULL"), 't', 'and a second one');

# The table is rewritten.
$node->safe_psql('shop', 'VACUUM FULL dlock.locks');
is($node->safe_psql('shop', "SELECT dlock_acquire('readers') IS NULL AND dlock_acquire('full') IS NULL"), 't', 'rewritten: an exclusive request sees the places');
is($node->safe_psql('shop', "SELECT dlock_release('readers', $shop->{readers}[0]), dlock_release('full', $shop->{full}[0])"), 'released|released', 'and they can be released');
$node->stop;

done_testing();
