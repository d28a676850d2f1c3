# libdlock with sanitizers and valgrind: its unit tests, and a short test of everything
# with a server.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockClient;
use DlockTest;

my $node = new_node('sanitize');

# Builds with these flags in a separate folder.
sub build
{
	my ($flags) = @_;
	my $folder = client_copy();

	system_or_bail('make', '-s', '-j2', '-C', $folder, "CFLAGS=-g -O1 $flags", 'tests');
	return "$folder/../../test";
}

sub workout
{
	my ($what, $folder, @under) = @_;
	my ($out, $err) = ('', '');

	ok(IPC::Run::run([ @under, "$folder/unit/client/unit_test" ], '>', \$out, '2>', \$err), "$what: unit tests");
	is($err, '', "$what: finds nothing");

	my $proxy = proxy($node);
	my $a = driver(conninfo($node, host => $proxy->{host}, port => $proxy->{port}),
		program => "$folder/lib/client/driver", under => \@under);
	my $b = driver(conninfo($node), program => "$folder/lib/client/driver", under => \@under);
	# renewed while the threads work
	is($a->ask('many', "many $what", count => 100, ttl => 600, renew => 1)->{status}, 'ok', "$what: many");
	my $work = $a->ask('work', '', threads => 4, count => 10);
	is("$work->{bad} $work->{counter}", '0 40', "$what: threads");
	is($a->ask('race', "race $what", count => 50, ttl => 90, renew => 1)->{bad}, 0, "$what: races");
	$b->ask('acquire', 'x', ttl => 60000, cleanup => 60000);
	$a->send('acquire', 'x', wait => 60000, priority => 1);
	$b->event('preempted', 'x');
	is($b->ask('release', 'x')->{status}, 'ok', "$what: yields");
	is($a->answer->{status}, 'ok', "$what: to the other");
	is($a->ask('list', '*')->{status}, 'ok', "$what: list");
	is($a->ask('waiters', '*')->{status}, 'ok', "$what: waiters");
	is($a->ask('info', 'x')->{status}, 'ok', "$what: info");
	is($a->ask('watch', 'x', wait => 10)->{status}, 'ok', "$what: watch");
	is($a->ask('acquire', 's', session => 1)->{status}, 'ok', "$what: session lock");
	is($a->ask('acquire', '')->{status}, 'invalid', "$what: an error");

	# kinds, several locks, locks within locks
	is(join(' ', map { $_->ask('acquire', 'place', slots => 2, ttl => 600, renew => 1)->{status} } $a, $b), 'ok ok', "$what: places");
	is($b->ask('infos', 'place')->{count}, 2, "$what: and their holders");
	is($a->ask('all', "x1 $what,x2 $what,x3 $what", slots => '0,-1,3', ttl => 600, renew => 1)->{status}, 'ok', "$what: several");
	is($a->ask('all', "x4 $what,x1 $what", wait => 100)->{status}, 'busy', "$what: one of several is busy");
	is($a->ask('nest', '', threads => 4, count => 10)->{bad}, 0, "$what: threads that acquire the same within each other");
	my $version = $a->ask('state', "x2 $what")->{version};
	is($b->ask('adopt', "x2 $what", version => $version, renew => 1)->{status}, 'ok', "$what: adopted");
	is($a->ask('release_all', "x1 $what,x2 $what,x3 $what")->{status}, 'ok', "$what: several are released");
	is($b->event('lost', "x2 $what")->{version}, $version, "$what: what was adopted is lost");
	is($a->ask('all', "s1 $what,s2 $what", session => 1)->{status}, 'ok', "$what: several session locks");
	is($a->ask('release', "s1 $what")->{status}, 'ok', "$what: one of them is released");
	is($a->ask('acquire', "within $what", reentrant => 1)->{status}, 'ok', "$what: reentrant") foreach 1, 2;

	# calls that go together, waits by ticket, calls that are started; closed while they are under way
	is($a->ask('flights', 'own', threads => 64, count => 2, ttl => 60000)->{bad}, 0, "$what: 64 threads");
	my $queue = $a->ask('queue', 'queue', threads => 16, count => 2, ttl => 60000, wait => 170000);
	is("$queue->{bad} $queue->{counter}", '0 32', "$what: threads that wait for one key");
	my $started = $a->ask('started', 'started', count => 50, ttl => 60000, wait => 170000, value => 'text');
	is("$started->{bad} $started->{counter}", '0 50', "$what: calls that are started");
	$b->ask('acquire', 'held', ttl => 600000);
	is($a->ask('cancelled', 'held', count => 20, wait => -1, ttl => 60000)->{bad}, 0, "$what: cancelled");
	is($a->ask('acquire', 'held', wait => 300)->{status}, 'busy', "$what: a wait that is over");
	my $d = driver(conninfo($node), program => "$folder/lib/client/driver", under => \@under);
	is($d->ask('closed', 'held', count => 20, wait => -1, ttl => 60000)->{bad}, 0, "$what: closed while calls are under way");
	is($d->finish, '', "$what: finds nothing");
	$b->ask('release', 'held');
	$b->ask('free', 'held');

	# a handle that is closed in a callback, and one that a child closes
	my $c = driver(undef, program => "$folder/lib/client/driver", under => \@under);
	is($c->ask('cycle', conninfo($node), key => "cycle $what", count => 10, hold => 60)->{status}, 'ok', "$what: short calls");
	is($c->ask('open', conninfo($node), close => 1)->{status}, 'ok', "$what: opened");
	$c->ask('acquire', $_, ttl => 600000, renew => 1) foreach "closed $what", "other $what";
	$node->safe_psql('postgres', "SELECT dlock_force_release('closed $what', 'test')");
	ok($c->event('lost', "closed $what"), "$what: lost, and closed in the callback");
	$c->ask('forget');
	is($c->ask('open', conninfo($node))->{status}, 'ok', "$what: opened");
	$c->ask('acquire', $_, ttl => 600000, renew => 1) foreach "fork $what", "fork 2 $what";
	is($c->ask('check', "fork $what")->{status}, 'ok', "$what: held");
	# then the renewal thread has a connection, which the child cannot free
	is($c->ask('acquire', 'x', wait => 300)->{status}, 'busy', "$what: a wait");
	is($c->ask('fork', "fork $what")->{release}, 'invalid', "$what: not by a child");
	is($c->ask('release', "fork $what")->{status}, 'ok', "$what: by its parent");
	# a flood of events
	$node->safe_psql('postgres', "SELECT pg_notify('dlock', json_build_object('event', 'forced', 'key', key, 'version', version, 'n', n)::text) FROM dlock_locks, generate_series(1, 100) AS n");
	is($c->ask('check', "fork 2 $what")->{status}, 'ok', "$what: and nothing is lost");
	is($c->finish, '', "$what: finds nothing");

	# the connections break, the server is gone, locks are lost
	like($node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'libdlock'"),
		qr/^t/, 'its connections are cut');
	is($a->ask('check', 'x')->{status}, 'ok', "$what: connected again");
	$proxy->stop;
	$a->ask('acquire', 'y', timeout => 100);
	$a->ask('free', 'x');
	$proxy->leave;
	$a->ask('acquire', 'z', timeout => 100);
	is($a->finish, '', "$what: finds nothing");
	is($b->finish, '', "$what: finds nothing");
	$node->safe_psql('postgres', "SELECT dlock_force_release(key, 'test') FROM dlock_locks");
	return;
}

# libpq and other libraries are not instrumented, so only our own code is checked.
{
	local $ENV{ASAN_OPTIONS} = 'detect_leaks=1';
	local $ENV{UBSAN_OPTIONS} = 'print_stacktrace=1';
	workout('AddressSanitizer', build('-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer'));
}
{
	# kernels with high address space randomization need setarch
	workout('ThreadSanitizer', build('-fsanitize=thread'), 'setarch', '-R');
}
workout('valgrind', build(''), 'valgrind', '-q', '--error-exitcode=99', '--leak-check=full',
	'--show-leak-kinds=definite,indirect', '--errors-for-leak-kinds=definite,indirect');

$node->stop;
done_testing();
