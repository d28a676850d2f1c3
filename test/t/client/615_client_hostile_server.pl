# No answer of a server crashes or corrupts its client: a proxy changes what the server
# says, to libdlock and to the command line, which are built with sanitizers.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockClient;
use DlockHostileServer;
use DlockTest;

# of each command line with a seed of its own; more for a long search, with the first seed
my $seeds = $ENV{DLOCK_FUZZ_SEEDS} // 2;
my $first_seed = $ENV{DLOCK_FUZZ_FIRST} // 1;
my $at_a_time = 8;

my $node = new_node('hostile');
my $folder = client_copy();
system_or_bail('make', '-s', '-j2', '-C', $folder,
	'CFLAGS=-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer', 'all', 'tests');
my $dlock = "$folder/../cli/dlock";

local %ENV = (
	%ENV,
	ASAN_OPTIONS => 'detect_leaks=1:exitcode=99',
	UBSAN_OPTIONS => 'print_stacktrace=1:exitcode=99',
	PGDATABASE => 'postgres',
	DLOCK_COLOR => 'never');
delete $ENV{PGAPPNAME};

# What there is to see: holders, a waiter that asks one to yield, a key that cools, numbers.
$node->safe_psql(
	'postgres', q{
SELECT dlock_acquire('k', '1h', 'owner', 'value', cleanup => '1h');
SELECT dlock_acquire('places', '1h', 'owner ' || n, slots => 3) FROM generate_series(1, 3) AS n;
SELECT dlock_acquire('cools', '1h', at_least => '1h'), dlock_release('cools', owner => NULL, version => 4);
SELECT dlock_acquire('k');
SELECT dlock_acquire('k', wait => '10 ms');
SELECT dlock_enqueue(key => 'k', ttl => '1h', owner => 'ticket', priority => 1);});

my @reads = (
	[ 'ls' ], [ 'ls', '--json' ], [ 'ls', '--waiters' ], [ 'ls', '--holders', '--json' ], [ 'ls', '--sort=held' ],
	[ 'info', 'k' ], [ 'info', 'places' ], [ 'info', '--json', 'k' ], [ 'watch', '--count=1', 'k' ], [ 'watch', '--count=1', '--json', 'k' ],
	[ 'top', '--once' ], [ 'top', '--json' ], [ 'stats' ], [ 'stats', '--json' ], [ 'health' ], [ 'health', '--json' ]);
my @calls = (
	[ 'acquire', 'k' ], [ 'acquire', 'new', '--ttl=1s', '--owner=o' ], [ 'check', 'k', '--owner=owner' ], [ 'refresh', 'k', '--owner=owner' ],
	[ 'release', 'other', '--owner=none' ], [ 'exec', 'k', '--', 'true' ], [ 'exec', 'new', '--ttl=1s', '--', 'true' ],
	[ 'exec', 'k', '--wait=300ms', '--', 'true' ], [ 'exec', 'a', '--and=b', '--wait=1s', '--', 'true' ], [ 'force-release', 'none', '--reason=fuzz' ]);

my (@running, @bad);
my $runs = 0;

sub finish_one
{
	my $run = shift @running;

	eval { $run->{run}->finish; 1 } or push @bad, "$run->{name}: does not end";
	my $code = $run->{run}->full_result(0);
	push @bad, "$run->{name}: status $code: $run->{out}" if ($code & 127) != 0 || $code >> 8 == 99 || $run->{out} =~ /Sanitizer|runtime error/;
	$run->{proxy}->leave;
	$runs++;
	return;
}

sub start_one
{
	my ($name, $change, @command) = @_;
	my $run = { name => $name, out => '', proxy => proxy($node, change => $change) };

	finish_one() if @running >= $at_a_time;
	$run->{run} = IPC::Run::start(
		[ $dlock, $command[0], '-h', $run->{proxy}{host}, '-p', $run->{proxy}{port}, '--timeout=700ms', @command[ 1 .. $#command ] ],
		'<', \undef, '>&', \$run->{out},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	push @running, $run;
	return;
}

# Each column in turn is what no server of ours says there.
my @columns = ([ 21, 'ls' ], [ 11, 'ls', '--waiters' ], [ 21, 'info', 'k' ], [ 21, 'top', '--once' ], [ 3, 'stats' ], [ 3, 'health' ]);

foreach (@columns)
{
	my ($last, @command) = @$_;

	start_one("@command: column $_ is null", replaces($_, undef), @command) foreach 0 .. $last;
}
foreach my $value ('9223372036854775807', '-9223372036854775808')
{
	start_one("@$_: all numbers are $value", replaces_numbers($value), @$_) foreach @reads, @calls;
}

# Anything may be changed.
foreach my $seed ($first_seed .. $first_seed + $seeds - 1)
{
	start_one("@$_: seed $seed", changes($seed), @$_) foreach @reads, @calls;
}
finish_one() while @running;
is(join("\n", @bad), '', "the command line: $runs runs end as they should");

# The library: locks that are renewed, waits by ticket, several locks, lists.
foreach my $seed ($first_seed .. $first_seed + $seeds - 1)
{
	my $proxy = proxy($node, change => changes($seed));
	my $a = driver(undef, program => "$folder/../../test/lib/client/driver");

	$a->ask('open', conninfo($node, host => $proxy->{host}, port => $proxy->{port}), timeout => 500, ttl => 1000);
	$a->ask('acquire', "own $_", ttl => 600, renew => 1) foreach 1 .. 5;
	$a->ask('all', "x$seed,y$seed", slots => '0,-1', ttl => 600, renew => 1);
	$a->ask('queue', "together $seed", threads => 4, count => 2, ttl => 60000, wait => 300);
	$a->ask('acquire', 'k', wait => 300, owner => "waits $seed");
	$a->ask('acquire', 's', session => 1);
	$a->ask($_, 'k') foreach 'info', 'infos', 'observe', 'check_key', 'refresh_key', 'watch';
	$a->ask($_, '%') foreach 'list', 'waiters';
	$a->ask('check', "own $_") foreach 1 .. 5;
	$a->ask('release_all', "x$seed,y$seed");
	$a->ask('release', "own $_") foreach 1 .. 5;
	unlike($a->finish, qr/Sanitizer|runtime error/, "the library, seed $seed: finds nothing");
	$proxy->leave;
}

is($node->safe_psql('postgres', "SELECT dlock_check('k', owner => 'owner')"), 'preempting', 'the server is as before');

$node->stop;
done_testing();
