# The logic of the benchmark: from made-up figures to tables, aims and plots; and its load
# generator, briefly, against a server.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../lib";

use File::Copy;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use DlockClient;
use DlockTest;

my $root = "$FindBin::RealBin/../../..";
my $dir = PostgreSQL::Test::Utils::tempdir();

sub command_output
{
	my (@command) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$err);
	return ($? >> 8, $out, $err);
}

#
# Figures
#

my %lines;

# Three rounds; the middle one counts.
sub result
{
	my ($section, $group, $label, $clients, $rate, %also) = @_;
	my %value = (
		mean_us => 100, p50_us => 90, p99_us => 900, max_us => 250, acquire_us => 50,
		grants => 1000, busy => 0, errors => 0, left => 0, least => 1, cpu => 0.25,
		%also);

	foreach my $round (1 .. 3)
	{
		push @{ $lines{$section} }, join "\t", 'result', $group, $label, $clients, $round,
		  $rate * (0.8 + 0.1 * ($round == 3 ? 4 : $round)),
		  @value{qw(mean_us p50_us p99_us max_us acquire_us grants busy errors left least cpu)};
	}
	return;
}

sub fact
{
	my ($section, $name, $value) = @_;

	push @{ $lines{$section} }, "fact\t$name\t$value";
	return;
}

sub series
{
	my ($section, $group, $label, $rate, $last) = @_;

	push @{ $lines{$section} }, "series\t$group\t$label\t$_\t" . ($_ > 90 ? $last : $rate)
	  foreach 1 .. 100;
	return;
}

sub write_figures
{
	my ($folder) = @_;

	mkdir $folder;
	foreach my $section (keys %lines)
	{
		open my $fh, '>', "$folder/$section.tsv" or die $!;
		print $fh "$_\n" foreach @{ $lines{$section} };
		close $fh;
	}
	return $folder;
}

# every fact that a full run records about itself
fact('about', @$_)
  foreach [ date => '2026-01-01' ], [ commit => 'abc' ], [ postgres => '15.1' ], [ redis => '7.0' ],
  [ etcd => '3.4' ], [ zookeeper => '3.8' ], [ cores => 2 ], [ cpu => 'a <fast> & "good" one' ],
  [ memory_gb => 8 ], [ kernel => '6.1' ], [ filesystem => 'ext4' ], [ load => '0.10' ],
  [ repeats => 3 ], [ seconds => 3 ];

# dlock makes 1200 cycles; 1.2x and 2x are just reached, and 1x of etcd is not exceeded
foreach my $n (1, 8, 32, 64)
{
	my %rate = (
		dlock => 1200, dlock_pipe => 5000, plpgsql => 600, commit => 1000, select => 9000,
		redis_aof => $n < 32 ? 1100 : 2001, redis_aof_pipe => 20000, etcd => 1200,
		zookeeper => 300, hot_update => 900);

	result('cycles', 'durable', $_, $n, $rate{$_}) foreach sort keys %rate;
	result('cycles', 'async', $_->[0], $n, $_->[1])
	  foreach [ dlock => 1600 ], [ plpgsql => 1000 ], [ advisory => 2000 ], [ commit => 1900 ], [ redis => 8000 ];
}
result('try', 'try', 'dlock', 8, 900);
result('try', 'try', 'select_once', 8, 1000);
result('wait', 'wait', 'dlock', 32, 5000, mean_us => 100, max_us => 300);
result('wait', 'wait', "redis_aof_retry_$_->[0]", 32, $_->[1], busy => 3000) foreach [ 0, 9000 ], [ 10, 2000 ], [ 100, 1000 ];
result('wait', 'handover', 'advisory', 2, 100, p50_us => 100);
result('wait', 'handover', 'dlock', 2, 100, p50_us => 250);
fact('memory', @$_) foreach [ waiter_kb_dlock => 1500 ], [ waiter_kb_advisory => 1400 ],
  [ shared_waiters_bytes => 500_000 ], [ shared_bytes => 2_048_000 ], [ shared_tickets_bytes => 51_200_000 ],
  [ max_tickets => 10_000 ], [ max_connections => 200 ], [ max_backends => 250 ];
foreach my $n (1, 64)
{
	result('threads', 'threads_durable', $_->[0], $n, $_->[1])
	  foreach [ dlock => 10_000 ], [ calls => 20_000 ], [ handles => 2000 ], [ connections => 2500 ], [ redis_aof => 8000 ],
	  [ redis_aof_threads => 5000 ];
	result('threads', 'threads_slow', $_->[0], $n, $_->[1])
	  foreach [ dlock => 5000 ], [ calls => 6000 ], [ handles => 1000 ], [ connections => 1250 ], [ redis_aof => 2500 ],
	  [ redis_aof_threads => 2400 ];
	result('threads', 'threads_async', $_->[0], $n, $_->[1])
	  foreach [ dlock => 20_000 ], [ handles => 4000 ], [ connections => 5000 ], [ redis => 40_000 ];
}
result('threads', 'tickets', 'keys', 10_000, 9000, p50_us => 400, p99_us => 900);
result('threads', 'tickets', 'queue', 1000, 1000, p50_us => 700, p99_us => 1500);
result('threads', 'tickets', 'session', 2, 2000, p50_us => 350, p99_us => 800);
result('threads', 'threads_durable', 'calls', 1000, 50_000);
fact('threads', @$_) foreach [ tickets_kb => 20_000 ], [ tickets_waiting => 10_000 ];
result('batch', 'batch', 'dlock_one', 1, 1000, acquire_us => 500);
result('batch', 'batch', 'dlock_batch', 1, 20_000, acquire_us => 20_000);
result('batch', 'batch', 'redis_aof_pipe', 1, 40_000, acquire_us => 10_000);
result('batch', 'refresh', 'dlock_one', 1, 1000);
result('batch', 'refresh', 'dlock_batch', 1, 9_990);
result('million', 'million_cycle', $_->[0], 8, $_->[1]) foreach [ bench => 1000 ], [ million => 900 ];
result('million', 'million_refresh', $_->[0], 8, $_->[1]) foreach [ bench => 1000 ], [ million => 800 ];
foreach my $size (100_000, 1_000_000)
{
	result('growth', $_, $size, 1, $size == 100_000 ? 1000 : 1050) foreach 'growth_try', 'growth_cycle', 'growth_page';
	result('growth', 'growth_expiry', $size, 1, 1500);
	fact('growth', "growth_reaper_$size", 0.01);
}
foreach my $size (100, 10_000)
{
	result('growth', $_, $size, 1, $size == 100 ? 1000 : 1600) foreach 'growth_release', 'growth_grant';
}
fact('growth', growth_idle_1000 => 0.004);
fact('million', @$_) foreach [ lock_heap_bytes => 250.5 ], [ lock_index_bytes => 70 ], [ reaper_cpu => 0.04 ], [ million_locks => 1_000_000 ];
foreach my $kind (qw(shared semaphore))
{
	result('kinds', "${kind}_durable", $_->[0], 8, $_->[1])
	  foreach [ dlock => 800 ], [ exclusive => 1600 ], [ redis_aof => 1000 ], [ zookeeper => 400 ];
	result('kinds', "${kind}_async", $_->[0], 8, $_->[1]) foreach [ dlock => 1500 ], [ exclusive => 2000 ], [ redis => 6000 ];
}
result('kinds', 'ten', 'dlock_batch', 1, 10_000, acquire_us => 1000);
result('kinds', 'ten', 'dlock_all', 1, 9000, acquire_us => 1200);
# 16 clients share 1600 grants/s for 3 s
result('kinds', 'subsets', 'dlock', 16, 1600, least => 150, mean_us => 9000, max_us => 30_000);
fact('kinds', subsets_seconds => 3);
series('snapshot', 'snapshot_1', 'dlock', 1000, 810);
series('snapshot', 'snapshot_1', 'plpgsql', 1000, 100);
series('snapshot', 'snapshot_1000', 'dlock', 1000, 790);
series('snapshot', 'snapshot_semaphore', 'dlock', 1000, 50);
result('portable', 'portable', $_->[0], 8, $_->[1]) foreach [ dlock => 3000 ], [ portable => 1000 ], [ plpgsql => 1500 ];
result('portable', 'portable_handover', 'portable', 2, 20, p50_us => 7000);
series('portable', 'portable_snapshot', 'portable', 1000, 250);
fact('portable', portable_snapshot_seconds => 100);
series('expiry', 'expiry', 'dlock', 3000, 3000);
series('expiry', 'expiry_left', 'dlock', 1_000_000, 0);
fact('expiry', @$_) foreach [ expiry_at => 20 ], [ expiry_locks => 1_000_000 ];
fact('instructions', "instructions_$_->[0]", $_->[1])
  foreach [ select => 45_000 ], [ dlock => 100_000 ], [ select_once => 22_000 ], [ try => 29_000 ],
  map { ([ "$_->[0]_acquire" => $_->[1] ], [ "$_->[0]_acquire_function" => $_->[1] - 30_000 ], [ "$_->[0]_release" => 40_000 ]) }
  [ exclusive => 50_000 ], [ reader_1 => 75_000 ], [ reader_1000 => 76_000 ], [ semaphore_100 => 90_000 ],
  [ semaphore_last => 100_000 ], [ ten => 40_000 ], [ ten_all => 50_000 ];

#
# Tables
#

my $figures = write_figures("$dir/figures");
my ($code, $out, $err) = command_output("$root/scripts/bench", '--report', $figures);
is($code, 0, 'a report') or diag $err;
is($err, '', 'nothing to complain of');
my %aim = map { /^(.*?\S)  +(\S.*?)  +(\S.*?)  +(not reached|reached|not measured)$/ ? ("$1: $2" => "$3: $4") : () }
  split /\n/, $out;
my $durable = 'durable, 1, 8, 32, 64 clients';
my $async = 'not durable, 8, 32, 64 clients';
my $waiting = 'waiting on a hot key, 32 clients, durable';
is_deeply(
	\%aim,
	{
		"$durable: faster than ZooKeeper" => '4.00x, 4.00x, 4.00x, 4.00x: reached',
		"$durable: faster than etcd" => '1.00x, 1.00x, 1.00x, 1.00x: not reached',
		"$durable: 1.2x of two bare durable commits" => '1.20x, 1.20x, 1.20x, 1.20x: reached',
		"$durable: 2x the plpgsql lock" => '2.00x, 2.00x, 2.00x, 2.00x: reached',
		'durable, up to 8 clients: faster than Redis, fsync always' => '1.09x, 1.09x: reached',
		'durable, 32 and 64 clients: 0.6x of Redis, fsync always, one by one' => '0.60x, 0.60x: not reached',
		'the same, with a pipeline: faster than Redis, fsync always, one by one' => '2.50x, 2.50x: reached',
		"$async: 0.85x of two bare asynchronous commits" => '0.84x, 0.84x, 0.84x: not reached',
		"$async: 0.75x of advisory locks" => '0.80x, 0.80x, 0.80x: reached',
		"$async: 1.6x the plpgsql lock" => '1.60x, 1.60x, 1.60x: reached',
		'failed try on a hot key, 8 clients: 0.85x of SELECT 1' => '0.90x: reached',
		"$waiting: 5x the grants/s of Redis, fsync always, retry 100 ms" => '5.00x: reached',
		"$waiting: worst wait within 3x of the mean" => '3.00x: reached',
		'64 threads on one handle of libdlock, durable: 5x of a handle for each thread' => '5.00x: reached',
		'64 threads on one handle of libdlock, durable: 1.5x of Redis, fsync always, one by one' => '1.25x: not reached',
		'64 threads on one handle of libdlock, durable: 1.5x of Redis, fsync always, a thread for each connection' => '2.00x: reached',
		'64 threads on one handle of libdlock, durable, a flush takes 1 ms longer: 1.5x of Redis, fsync always, one by one' => '2.00x: reached',
		'64 calls of an event loop, durable: 1.5x of Redis, fsync always, one by one' => '2.50x: reached',
		'release to grant, 1,000 tickets on one key, median: within 3x of a session that waits' => '2.00x: reached',
		'batch of 1,000 keys: more grants/s than Redis pipelined, fsync always' => '0.50x: not reached',
		'batch of 1,000 keys: 10x one by one' => '25.00x: reached',
		'refresh of 10,000 leases in one statement: 10x one by one' => '9.99x: not reached',
		'16 clients want random subsets of the same keys: no error, and the last client has half of its share' => '0 errors, 0.50: reached',
		'instructions of an acquire, reader beside 1 and 1,000 others: at most 1.5x of an exclusive one' => '1.50x, 1.52x: not reached',
		'instructions of an acquire, semaphore with 100 places taken, of 200 and of 101: at most 2x of an exclusive one' =>
		  '1.80x, 2.00x: reached',
		'instructions of an acquire, dlock_acquire_all of 10 keys: at most 1.3x of ten acquires in one statement' => '1.25x: reached',
		'old snapshot, hot key: last 10 s 0.8x of the first 10 s' => '0.81x: reached',
		'old snapshot, 1,000 keys: last 10 s 0.8x of the first 10 s' => '0.79x: not reached',
		'1,000,000 live rows, acquire and release: costs at most 1.15x of an empty table' => '1.11x: reached',
		'1,000,000 live rows, refresh: costs at most 1.15x of an empty table' => '1.25x: not reached',
		'1,000,000 locks, a failed try: at most 1.1x the processor time of 100,000' => '1.05x: reached',
		'1,000,000 locks, acquire and release: at most 1.1x the processor time of 100,000' => '1.05x: reached',
		'10,000 waiters, a release to a waiter: at most 1.5x the processor time of 100' => '1.60x: not reached',
		'10,000 waiters, the grant that follows: at most 1.5x the processor time of 100' => '1.60x: not reached',
		'1,000,000 locks, an expired row: is removed within 2 s' => '1500 ms: reached',
		'1,000,000 locks, the reaper: below 5 % of one core when nothing expires' => '1.0 %: reached',
		'1,000 sessions that only wait: below 1 % of one core' => '0.4 %: reached',
		'1,000,000 live rows, the reaper: below 5 % of one core when nothing expires' => '4.0 %: reached'
	},
	'every aim is judged');
like($out, qr/^dlock +1,200 +1,200 +1,200 +1,200$/m, 'medians, not means');
like($out, qr/^etcd +1,200 \(1\.00x\)/m, 'beside dlock');
like($out, qr/^Redis, fsync always, pipeline of 16 +20,000 \(0\.25x\)/m, 'a pipeline is beside a pipeline');
like($out, qr/differ by 30 % of their median/, 'the spread of the rounds');
like($out, qr/Errors: 0\. Locks left behind: 0\. The busiest load generator took 25 % of one core/, 'checks');
like($out, qr/^an exclusive lock of dlock, with keys of its own +1,600 \(0\.50x\)$/m, 'readers beside an exclusive lock');
like($out, qr/^libdlock, a handle for each thread +2,000 \(5\.00x\) +2,000 \(5\.00x\) +-$/m, 'threads of one process');
like($out, qr/^libdlock, one thread with an event loop +20,000 \(0\.50x\) +20,000 \(0\.50x\) +50,000 \(.*\)$/m, 'one thread');
like($out, qr/^Redis, fsync always, a thread for each connection +5,000 \(2\.00x\)/m, 'threads beside threads');
like($out, qr/^1,000 tickets on one key +700 us +1,500 us +1,000 +two +2,048 bytes$/m, 'tickets');
like($out, qr/^a session that waits +350 us .* 1,500 kB$/m, 'and their memory');
like($out, qr/^shared memory of dlock without tickets, with max_connections = 200 +2,000 kB$/m, 'shared memory');
like($out, qr/^of which the queue, for each possible backend +2,000 bytes$/m, 'not for each connection');
like($out, qr/^shared memory that is reserved for tickets, with dlock\.max_tickets = 10000 +50,000 kB$/m, 'and that of tickets');
like($out, qr/^dlock, dlock_acquire_all +9,000 +1,200 us +1\.20x$/m, 'ten keys or none');
like($out, qr/^dlock +1,600 +9,000 us +900 us +30 ms +150 +300 +0$/m, 'subsets: the last client, and the mean');
like($out, qr/^cycles\/s, durable, 8 clients +3,000 +1,000 +1,500$/m, 'the portable edition');
like($out, qr/^from release to grant, median +- +7,000 us +-$/m, 'its handover');
like($out, qr/after 100 s relative to the beginning +- +0\.25 +-$/m, 'and an old snapshot');
like($out, qr/^dlock, a semaphore +1,000 +50 +0\.05$/m, 'a semaphore under an old snapshot');
like($out, qr/^dlock, semaphore of 101, 100 others +100,000 +2\.00x +70,000 +40,000$/m, 'the instructions of an acquire');
like($out, qr/^dlock, dlock_acquire_all of ten keys +500,000 +1\.25x +200,000 +400,000$/m, 'of ten keys');
like($out, qr/^dlock +3,000 \(3,000\) +3,000 \(3,000\) +3,000 \(3,000\) +71 s$/m, 'how long the removal took');

# a ratio is the median of the ratios in each round, not the quotient of medians
require "$root/bench/BenchData.pm";
mkdir "$dir/rounds" or die "could not make a folder: $!";
append_to_file("$dir/rounds/x.tsv",
	join '', map { join("\t", 'result', 'g', @$_, (0) x 11) . "\n" }
	  [ 'a', 1, 1, 10 ], [ 'b', 1, 1, 20 ], [ 'a', 1, 2, 100 ], [ 'b', 1, 2, 50 ],
	  [ 'a', 1, 3, 30 ], [ 'b', 1, 3, 10 ], [ 'a', 1, 4, 7 ]);
is(BenchData->new("$dir/rounds")->ratio('g', 'a', 'b', 1), 2, 'ratios are of one round each');

# errors are reported
result('cycles', 'durable', 'dlock', 16, 1, errors => 2, left => 1);
(undef, $out) = command_output("$root/scripts/bench", '--report', write_figures("$dir/wrong"));
like($out, qr/Errors: 6\. Locks left behind: 3\./, 'errors and leftovers are reported');
like($out, qr/^durable, 1, 8, 16, .*not measured$/m, 'an aim without its figures');
push @{ $lines{cycles} }, 'result	durable	dlock	8';
($code, undef, $err) = command_output("$root/scripts/bench", '--report', write_figures("$dir/broken"));
isnt($code, 0, 'a file that is cut off');
like($err, qr/cycles\.tsv:\d+: not a line of figures/, 'and where');
($code, undef, $err) = command_output("$root/scripts/bench", '--report', "$dir/nowhere");
isnt($code, 0, 'no figures at all');
($code, undef, $err) = command_output("$root/scripts/bench", '--only', 'nonsense');
isnt($code, 0, 'no such section');
like($err, qr/--only takes one of: cycles try/, 'and which there are');

#
# The documentation
#

# Elements are closed in order, attributes are quoted, and special characters are escaped.
sub well_formed
{
	my ($text) = @_;
	my @open;

	while ($text =~ /\G(?:<(\/?)([a-z]+)((?:\s+[\w:-]+="[^"<&]*")*)\s*(\/?)>|((?:[^<&]|&(?:amp|lt|gt|quot);)+))/gc)
	{
		my ($closes, $name, $empty) = ($1, $2, $4);

		next unless defined $name;
		if ($closes)
		{
			return "</$name> closes nothing" unless @open && pop(@open) eq $name;
		}
		elsif (!$empty)
		{
			push @open, $name;
		}
	}
	return 'stuck at: ' . substr($text, pos($text) // 0, 40) if (pos($text) // 0) < length $text;
	return "<$open[-1]> is not closed" if @open;
	return 'well-formed';
}

is(well_formed('<a><b/></a>'), 'well-formed', 'the check itself: good');
isnt(well_formed($_), 'well-formed', "the check itself: $_") foreach '<a><b></a>', '<a>&</a>', '<a b=c/>', '<a>';

mkdir "$dir/docs";
copy("$root/docs/dev/benchmarks.md", "$dir/docs") or die $!;
($code, undef, $err) =
  command_output($^X, "$root/bench/report.pl", "--docs=$dir/docs", $figures);
is($code, 0, 'docs/dev/benchmarks.md has a place for every table') or diag $err;
my $docs = slurp_file("$dir/docs/benchmarks.md");
like($docs, qr/<!-- bench:durable -->\n\| cycles\/s .*\n.*\n\| \*\*dlock\*\* \| 1,200 \|/, 'a table in its place');
like($docs, qr/a\s<fast>\s&\s"good"\sone/, 'and what was measured where');
is(scalar(() = $docs =~ /<!-- bench:/g), scalar(() = $docs =~ /<!-- \/bench:/g), 'the marks stay');
is_deeply(
	[ sort $docs =~ /\(bench\/(\w+)\.svg\)/g ],
	[ sort map { /(\w+)\.svg$/ } glob "$dir/docs/bench/*.svg" ],
	'the docs show every plot that there is');
foreach my $plot (glob "$dir/docs/bench/*.svg")
{
	is(well_formed(slurp_file($plot)), 'well-formed', $plot =~ s/.*\///r);
}
my $bars = slurp_file("$dir/docs/bench/durable.svg");
like($bars, qr/32 clients, cycles\/s</, 'a panel says what it is');
# 1.2 of 20 thousand, of 200 pixels
like($bars, qr/width="12\.0" height="13" fill="#2f81c7"/, 'bars are as long as they should be');
ok(-e "$dir/docs/bench/cycles.tsv", 'the figures go with it');

# again from there, as when the text of a table changes
my ($again) = command_output($^X, "$root/bench/report.pl", "--docs=$dir/docs", "$dir/docs/bench");
is($again, 0, 'again from the figures that the docs have');
is(slurp_file("$dir/docs/benchmarks.md"), $docs, 'to the same end');

#
# The load generator
#

my $node = new_node('bench', bare => 1);
my $target = conninfo($node);
system_or_bail('make', '-s', '-C', "$root/bench", 'load-pg');
$node->safe_psql('postgres', slurp_file("$root/bench/setup.sql"));
$node->safe_psql('postgres',
	"SELECT plain_release('lock:' || k, plain_acquire('lock:' || k, '1min')) FROM generate_series(0, 99) k");

# load(exit status, peer, arguments): what it printed
sub load
{
	my ($expected, @arguments) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($code, $out, $err) = command_output("$root/bench/load-pg", @arguments, '--target', $target);
	my %value = $out =~ /(\w+)=(\S+)/g;

	is($code, $expected, "load: @arguments") or diag $out, $err;
	return ({%value}, $out, $err);
}

foreach my $peer (qw(dlock dlock_shared dlock_semaphore dlock_all plpgsql advisory select select_once commit xid hot_update))
{
	my ($value) = load(0, $peer, '--keys', 100, '--clients', 4, '--count', 25);

	is("$value->{cycles} $value->{errors} $value->{left}", '100 0 0', 'as many as were asked for');
}
foreach my $arguments (
	[ '--depth', 10 ],
	[ '--depth', 10, '--batch' ],
	[ '--work', 'try' ],
	[ '--work', 'wait', '--clients', 4 ],
	[ '--work', 'retry', '--clients', 4, '--delay', 0.001 ],
	[ '--work', 'refresh', '--keys', 100, '--clients', 2 ],
	[ '--work', 'refresh', '--keys', 100, '--depth', 50, '--batch' ],
	[ '--work', 'handover' ])
{
	my ($value) = load(0, 'dlock', @$arguments, '--keys', 100, '--seconds', 0.5, '--warmup', 0.1);

	cmp_ok($value->{cycles}, '>', 0, 'it did something');
	cmp_ok($value->{max_us}, '>=', $value->{p50_us}, 'and measured it');
	is($value->{errors}, 0, 'without errors');
}

# readers and semaphores, beside others, and with connections of their own for releases
foreach my $arguments (
	[ 'dlock_shared', '--keys', 1, '--clients', 4, '--beside', 20 ],
	[ 'dlock_semaphore', '--keys', 1, '--clients', 4, '--beside', 20, '--slots', 24 ],
	[ 'dlock_semaphore', '--keys', 2, '--beside', 20, '--slots', 11, '--apart' ],
	[ 'dlock_all', '--keys', 100, '--depth', 10, '--batch', '--apart' ])
{
	my ($value) = load(0, @$arguments, '--count', 50);

	cmp_ok($value->{cycles}, '>=', 50, 'as many as were asked for');
	is("$value->{errors} $value->{left}", '0 0', 'without errors, and nothing is left');
	my $releases = grep { $_ eq '--apart' } @$arguments;
	is(!!$value->{releaser} && $value->{releaser} != $value->{pid}, !!$releases, 'which process releases');
}
my ($full, undef, $refused) = load(1, 'dlock_semaphore', '--keys', 1, '--beside', 20, '--slots', 20, '--seconds', 0.2);
is($full->{cycles}, 0, 'a semaphore that is full grants nothing');
like($refused, qr/a lock that should be free was not granted/, 'and that is an error');

# several keys or none: nobody starves, no deadlock, no overlap
my ($subsets) = load(0, 'dlock_all', '--work', 'subsets', '--clients', 16, '--keys', 8, '--depth', 4, '--count', 30);
is("$subsets->{errors} $subsets->{left} $subsets->{least}", '0 0 30', 'random subsets in random order');
# that nobody overlaps is checked: take the keys away from their holders
my ($printed, $complained) = ('', '');
my $run = IPC::Run::start(
	[
		"$root/bench/load-pg", 'dlock_all', '--target', $target, '--work', 'subsets', '--clients', 4,
		'--keys', 2, '--depth', 2, '--hold', 0.05, '--seconds', 3
	],
	'<', \undef, '>', \$printed, '2>', \$complained);
while ($run->pumpable)
{
	$node->safe_psql('postgres', 'SELECT dlock_force_release(key, \'test\') FROM dlock_locks');
	$run->pump_nb;
}
$run->finish;
like($complained, qr/subsets: two clients hold a key/, 'an overlap is seen');
my (undef, $series) = load(0, 'dlock', '--keys', 100, '--every', 0.2, '--seconds', 1);
cmp_ok(scalar(() = $series =~ /^series\t[\d.]+\t\d+$/mg), '>=', 4, 'throughput over time');

# it does not count what it did not get
$node->safe_psql('postgres', "SELECT dlock_acquire('lock:' || k, '1h') FROM generate_series(0, 9) k");
my ($value, undef, $complaint) = load(1, 'dlock', '--keys', 10, '--seconds', 0.2);
is($value->{cycles}, 0, 'a busy answer does not count as a cycle');
like($complaint, qr/a lock that should be free was not granted/, 'and is an error');
is($value->{left}, 10, 'locks that are left are counted');
load(1, 'nonsense');

$node->stop;
done_testing();
