#!/usr/bin/perl
# Prints the results of scripts/bench: tables, the aims, and plots.
#
#	bench/report.pl [--format=text|markdown] [--docs=FOLDER] FOLDER
#
# With --docs, the tables replace the text between <!-- bench:NAME --> and
# <!-- /bench:NAME --> in FOLDER/benchmarks.md, and plots and figures go to
# FOLDER/bench/.  What was not measured stays unchanged there.

use strict;
use warnings FATAL => 'all';

use File::Basename;
use File::Copy;
use File::Path;
use FindBin;
use Getopt::Long;
use List::Util qw(max min sum);
use Text::Wrap qw(wrap);

use lib $FindBin::RealBin;
use BenchAims;
use BenchData qw(median number);
use BenchPlot qw(bars lines);

my ($format, $docs) = ('text', '');
GetOptions('format=s' => \$format, 'docs=s' => \$docs)
  && @ARGV == 1
  && $format =~ /^(?:text|markdown)$/
  or die "usage: report.pl [--format=text|markdown] [--docs=FOLDER] FOLDER\n";
my $data = BenchData->new($ARGV[0]);

my %name = (
	dlock => 'dlock',
	dlock_async => 'dlock, grants not flushed',
	dlock_pipe => 'dlock, pipeline of 16',
	dlock_one => 'dlock, one by one',
	dlock_batch => 'dlock, one statement',
	plpgsql => 'plpgsql upsert',
	plpgsql_one => 'plpgsql upsert, one by one',
	plpgsql_batch => 'plpgsql upsert, one statement',
	advisory => 'advisory lock',
	redis => 'Redis',
	redis_one => 'Redis, one by one',
	redis_pipe => 'Redis, pipeline of 16',
	redis_aof => 'Redis, fsync always',
	redis_aof_one => 'Redis, fsync always, one by one',
	redis_aof_pipe => 'Redis, fsync always, pipeline of 16',
	etcd => 'etcd',
	zookeeper => 'ZooKeeper',
	commit => 'two bare commits',
	xid => 'two transaction ids, no WAL',
	guarded => 'dlock, durable, which serves some shards',
	routed => 'dlock, durable, through a router: in the router',
	routed_cluster => 'the same: in the cluster',
	hot_update => 'one HOT update',
	select => '`SELECT 1` twice',
	select_once => '`SELECT 1`',
	try => 'dlock, failed try',
	refresh => 'dlock, refresh',
	exclusive => 'an exclusive lock of dlock, with keys of its own',
	dlock_all => 'dlock, `dlock_acquire_all`',
	marked => 'dlock, exclusive, the key was shared before',
	reader_1 => 'dlock, reader, 1 other',
	reader_1000 => 'dlock, reader, 1,000 others',
	reader_head => 'dlock, reader, 1 other, the key has had a writer',
	semaphore_1 => 'dlock, semaphore of 200, 1 other',
	semaphore_100 => 'dlock, semaphore of 200, 100 others',
	semaphore_last => 'dlock, semaphore of 101, 100 others',
	handles => 'libdlock, a handle for each thread',
	calls => 'libdlock, one thread with an event loop',
	redis_aof_threads => 'Redis, fsync always, a thread for each connection',
	redis_threads => 'Redis, a thread for each connection',
	connections => 'a connection for each client, prepared statements',
	ten => 'dlock, ten acquires in one statement',
	ten_all => 'dlock, `dlock_acquire_all` of ten keys');
foreach my $who (qw(dlock plpgsql redis redis_aof))
{
	$name{"${who}_retry_$_"} =
	  $name{$who} . ', retry ' . ($_ ? "$_ ms" : 'at once')
	  foreach 0, 10, 100;
}

my @cycles = qw(dlock dlock_pipe plpgsql advisory redis redis_pipe redis_aof
  redis_aof_pipe etcd zookeeper hot_update commit select);
my @waits = (qw(dlock dlock_async advisory zookeeper etcd),
	map { my $who = $_; map { "${who}_retry_$_" } 0, 10, 100 } qw(dlock plpgsql redis redis_aof));

# Those of the labels that a group has.
sub there
{
	my ($group, @labels) = @_;

	return grep { ($data->{result}{$group} // {})->{$_} } @labels;
}

sub named
{
	my ($label, $pipe) = @_;
	my $text = $name{$label} // $label;

	$text =~ s/pipeline of 16/pipeline of $pipe/ if $pipe;
	return $text =~ /^dlock/ ? "**$text**" : $text;
}

sub factor
{
	my ($ratio) = @_;

	return defined $ratio ? sprintf('%.2fx', $ratio) : '-';
}

sub us
{
	my ($us) = @_;

	return '-' unless defined $us;
	return $us < 10_000 ? number($us) . ' us' : number($us / 1000) . ' ms';
}

sub percent
{
	my ($part) = @_;

	return defined $part ? sprintf('%.0f %%', 100 * $part) : '-';
}

#
# Tables: [ heading of the columns, row, ... ], or nothing
#

# Labels down, numbers of clients across; in brackets what dlock is of it.
sub table_matrix
{
	my ($group, $unit, @labels) = @_;
	my @clients = $data->clients($group) or return;

	return [
		[ "$unit (ratio of dlock)", map { $_ == 1 ? '1 client' : ($_ < 1000 ? $_ : number($_)) . ' clients' } @clients ],
		map {
			my $label = $_;
			[
				named($label),
				map {
					my $rate = $data->get($group, $label, $_);
					my $text = number($rate);
					my $beside = $label =~ /_pipe$/ ? 'dlock_pipe' : 'dlock';

					$text .= ' (' . factor($data->ratio($group, $beside, $label, $_)) . ')'
					  if defined $rate && $label !~ /^dlock/;
					$text
				} @clients
			]
		} there($group, @labels)
	];
}

# The times of a cycle, and how steady the rounds were, at one client count.
sub table_latency
{
	my ($group) = @_;
	my @clients = $data->clients($group) or return;
	my ($n) = (grep({ $_ == 8 } @clients), $clients[0]);

	return [
		[ "one cycle, $n clients", qw(mean median 99% worst), 'spread of rounds', 'load generator' ],
		map {
			my $label = $_;
			[
				named($label),
				(map { us($data->get($group, $label, $n, $_)) } qw(mean_us p50_us p99_us max_us)),
				percent($data->spread($group, $label, $n)),
				percent($data->get($group, $label, $n, 'cpu'))
			]
		} grep { defined $data->get($group, $_, $n) } there($group, @cycles)
	];
}

# The one with the retries, or else the last.
sub wait_clients
{
	my @clients = $data->clients('wait') or return;
	my ($n) = (grep({ $_ == 32 } @clients), $clients[-1]);

	return $n;
}

sub table_wait
{
	my $n = wait_clients() // return;

	return [
		[ "one key, $n clients", 'grants/s', 'ratio of dlock', 'mean wait', '99%', 'worst', 'worst / mean', 'tries per grant' ],
		map {
			my $label = $_;
			my ($mean, $worst, $grants, $busy) =
			  map { $data->get('wait', $label, $n, $_) } qw(mean_us max_us grants busy);
			[
				named($label), number($data->get('wait', $label, $n)),
				factor($data->ratio('wait', 'dlock', $label, $n)),
				us($mean), us($data->get('wait', $label, $n, 'p99_us')), us($worst),
				$mean ? sprintf('%.1f', $worst / $mean) : '-',
				$label =~ /retry/ && $grants ? sprintf('%.1f', ($busy + $grants) / $grants) : ''
			]
		} grep { defined $data->get('wait', $_, $n) } there('wait', @waits)
	];
}

sub table_handover
{
	my ($n) = $data->clients('handover') or return;

	return [
		[ 'from release to grant', 'median', '99%', 'worst', 'relative to advisory' ],
		map {
			[
				named($_), us($data->get('handover', $_, $n, 'p50_us')), us($data->get('handover', $_, $n, 'p99_us')),
				us($data->get('handover', $_, $n, 'max_us')),
				factor($data->ratio('handover', $_, 'advisory', $n, 'p50_us'))
			]
		} there('handover', qw(advisory dlock_async dlock zookeeper etcd))
	];
}

# Requests that wait by ticket, beside a session that waits.
sub table_tickets
{
	my @rows = (
		[ 'keys', 10_000, '10,000 tickets on 10,000 keys that are released together' ],
		[ 'queue', 1000, '1,000 tickets on one key' ],
		[ 'session', 2, 'a session that waits' ]);

	return unless $data->clients('tickets');
	my ($kb, $waiting, $session_kb) = map { $data->fact($_) } qw(tickets_kb tickets_waiting session_kb);
	my %memory = (
		keys => $waiting ? number($kb * 1024 / $waiting) . ' bytes' : '-',
		session => defined $session_kb ? number($session_kb) . ' kB' : '-');

	$memory{queue} = $memory{keys};
	return [
		[ 'release to grant', 'median', '99%', 'grants/s', 'connections', 'server memory for each' ],
		map {
			my ($label, $n, $text) = @$_;
			my $get = sub { $data->get('tickets', $label, $n, $_[0]) };

			[ $text, us($get->('p50_us')), us($get->('p99_us')), number($get->('rate')), $label eq 'session' ? 'one each' : 'two', $memory{$label} ]
		} @rows
	];
}

sub table_batch
{
	return unless $data->clients('batch');
	return [
		[ '1 client, 1,000 keys at a time', 'grants/s, acquire only', 'cycles/s, with release', 'relative to one by one' ],
		map {
			my ($who) = /^(.*)_(?:one|pipe|batch)$/;
			[
				named($_, '1,000'), number(BenchAims::grants_a_second($data, $_)),
				number($data->get('batch', $_, 1)), factor($data->ratio('batch', $_, "${who}_one", 1))
			]
		} there('batch', map { ("${_}_one", "${_}_pipe", "${_}_batch") } qw(dlock plpgsql redis_aof redis))
	];
}

sub table_refresh
{
	return unless $data->clients('refresh');
	return [
		[ '1 client, 10,000 leases', 'leases/s', 'relative to one by one', 'total time' ],
		map {
			my ($who) = /^(.*)_(?:one|pipe|batch)$/;
			my $rate = $data->get('refresh', $_, 1);
			[
				named($_, '10,000'), number($rate), factor($data->ratio('refresh', $_, "${who}_one", 1)),
				$rate ? us(1e6 * 10_000 / $rate) : '-'
			]
		} there('refresh', map { ("${_}_one", "${_}_pipe", "${_}_batch") } qw(dlock plpgsql redis_aof redis))
	];
}

# Ten keys at a time, and random subsets of a few keys.
sub table_ten
{
	my @rows;

	foreach my $group ([ 'ten', '' ], [ 'ten_async', ', grants not flushed' ])
	{
		my ($name, $more) = @$group;

		push @rows, map {
			[
				named($_) =~ s/\*\*$/$more**/r, number($data->get($name, $_, 1)),
				us($data->get($name, $_, 1, 'acquire_us')),
				factor($data->ratio($name, $_, 'dlock_batch', 1, 'acquire_us'))
			]
		} there($name, qw(dlock_batch dlock_all));
	}
	return @rows ? [ [ '1 client, 10 keys at a time', 'keys/s, with release', 'time of the acquire', 'relative to one statement' ], @rows ] : undef;
}

sub table_subsets
{
	my ($n) = $data->clients('subsets') or return;

	return [
		[ "$n clients", 'grants/s', 'mean wait', '99%', 'worst', 'fewest grants of a client', 'mean of all', 'errors' ],
		map {
			my $label = $_;
			my $get = sub { $data->get('subsets', $label, $n, $_[0]) };
			[
				named($label), number($get->('rate')), (map { us($get->($_)) } qw(mean_us p99_us max_us)),
				sprintf('%.0f', $get->('least')), sprintf('%.0f', $get->('rate') * $data->fact('subsets_seconds') / $n),
				sprintf('%d', $get->('errors'))
			]
		} there('subsets', qw(dlock dlock_async))
	];
}

sub table_million
{
	return unless $data->clients('million_cycle');
	return [
		[ 'not durable, calls/s', 'clients', 'empty table', number($data->fact('million_locks')) . ' live locks', 'cost ratio' ],
		map {
			my ($group, $what) = @$_;
			map {
				[
					$what, $_, number($data->get($group, 'bench', $_)),
					number($data->get($group, 'million', $_)),
					factor($data->ratio($group, 'bench', 'million', $_))
				]
			} $data->clients($group)
		} [ 'million_cycle', 'acquire and release' ],
		[ 'million_refresh', 'refresh' ]
	];
}

sub table_memory
{
	my @rows;
	my ($waiters, $connections) = map { $data->fact($_) } qw(shared_waiters_bytes max_connections);

	push @rows, [ 'a lock, in the table', number($data->fact('lock_heap_bytes')) . ' bytes' ],
	  [ 'a lock, in the index', number($data->fact('lock_index_bytes')) . ' bytes' ]
	  if defined $data->fact('lock_heap_bytes');
	push @rows, [ 'a lock in Redis', number($data->fact('redis_lock_bytes')) . ' bytes' ]
	  if defined $data->fact('redis_lock_bytes');
	push @rows,
	  [ 'shared memory of dlock in total, with `max_connections = ' . $connections . '`', number($data->fact('shared_bytes') / 1024) . ' kB' ],
	  [ 'of which the queue, per connection', number($waiters / $connections) . ' bytes' ]
	  if defined $waiters;
	push @rows, [ 'private memory of a waiting session', number($data->fact('waiter_kb_dlock')) . ' kB' ]
	  if defined $data->fact('waiter_kb_dlock');
	push @rows,
	  [ 'the same, waiting in `pg_advisory_lock`', number($data->fact('waiter_kb_advisory')) . ' kB' ]
	  if defined $data->fact('waiter_kb_advisory');
	return @rows ? [ [ 'memory', 'size' ], @rows ] : undef;
}

my %snapshot = (
	dlock => 'dlock',
	plpgsql => 'plpgsql upsert',
	dlock_free => 'dlock, without the snapshot');

my @churned = (
	[ 1, 'one key' ],
	[ 1000, '1,000 keys' ],
	[ 'shared', 'readers of one key' ],
	[ 'semaphore', 'a semaphore' ]);

sub table_snapshot
{
	my @rows;

	foreach my $churned (@churned)
	{
		my ($keys, $what) = @$churned;

		foreach my $label (qw(dlock dlock_free plpgsql))
		{
			my ($first, $last) = $data->ends("snapshot_$keys", $label) or next;

			push @rows,
			  [ "$snapshot{$label}, $what",
				number($first), number($last), $first ? sprintf('%.2f', $last / $first) : '-' ];
		}
	}
	my $n = min(10, int(($data->fact('snapshot_seconds') // 0) / 4));
	return @rows ? [ [ 'cycles/s, not durable', "first $n s", "last $n s", 'last / first' ], @rows ] : undef;
}

# When the last of the expired locks was gone.
sub gone_at
{
	my ($label) = @_;
	my $at = $data->fact('expiry_at') // return;

	foreach my $point (@{ $data->series('expiry_left', $label) // [] })
	{
		return $point->[0] if $point->[0] > $at && $point->[1] <= $data->fact('expiry_locks') / 1000;
	}
	return;
}

sub table_expiry
{
	my $at = $data->fact('expiry_at') // return;
	my @rows;

	foreach my $label (qw(dlock redis))
	{
		my $points = $data->series('expiry', $label) or next;
		my $gone = gone_at($label);
		my $mean = sub {
			my ($from, $until) = @_;
			my @rates = map { $_->[1] } grep { $_->[0] > $from && $_->[0] <= $until } @$points;

			return @rates ? number(sum(@rates) / @rates) . ' (' . number(min @rates) . ')' : '-';
		};

		push @rows,
		  [
			named($label), $mean->(0, $at), $mean->($at, $gone // 1e9),
			defined $gone ? $mean->($gone, 1e9) : '-', defined $gone ? sprintf('%.0f s', $gone - $at) : 'longer'
		  ];
	}
	return unless @rows;
	return [
		[ 'cycles/s, 8 clients, not durable (worst second)', 'before', 'during the removal', 'after it', 'all removed after' ],
		@rows
	];
}

my @counted_cycles = qw(select advisory xid commit hot_update dlock_async dlock guarded routed routed_cluster plpgsql);
my @counted_calls = qw(select_once try refresh);

sub table_instructions
{
	my @rows;

	foreach my $labels (\@counted_cycles, \@counted_calls)
	{
		my $bare = $data->fact("instructions_$labels->[0]");

		foreach my $label (@$labels)
		{
			my $count = $data->fact("instructions_$label") // next;

			push @rows, [ named($label), number($count),
				defined $bare && $label ne $labels->[0] ? '+' . number($count - $bare) : '' ];
		}
	}
	return @rows ? [ [ 'cycle or call', 'instructions', 'more than `SELECT 1`' ], @rows ] : undef;
}

# Acquire and release by themselves, beside those of an exclusive lock, and what
# of it the function takes.
sub table_kinds
{
	my @rows;

	foreach my $group ([ 'exclusive', qw(exclusive marked reader_1 reader_head reader_1000 semaphore_1 semaphore_100 semaphore_last) ],
		[ 'ten', qw(ten ten_all) ])
	{
		my ($other, @labels) = @$group;
		my %times = map { $_ => $other eq 'ten' ? 10 : 1 } @labels;

		foreach my $label (@labels)
		{
			my ($acquire, $alone, $release) =
			  map { $data->fact("instructions_${label}_$_") } qw(acquire acquire_function release);

			next unless defined $acquire;
			push @rows,
			  [
				$label eq 'exclusive' ? '**dlock, exclusive**' : named($label),
				number($acquire * $times{$label}), factor(BenchAims::times_the_instructions($data, $label, $other)),
				number($alone * $times{$label}), number($release * $times{$label})
			  ];
		}
	}
	return @rows ? [ [ 'instructions', 'acquire', 'relative', 'of which the function', 'release' ], @rows ] : undef;
}

sub table_aims
{
	my @aims = BenchAims::judge($data) or return;

	return [ [ 'what', 'aim', 'measured', 'result' ], @aims ];
}

my @tables = (
	[ 'aims', 'Aims', \&table_aims ],
	[ 'durable', 'Cycles/s, durable, 100,000 keys', sub { table_matrix('durable', 'cycles/s', @cycles) } ],
	[ 'durable-latency', 'Time of a cycle, durable', sub { table_latency('durable') } ],
	[ 'async', 'Cycles/s, not durable, 100,000 keys', sub { table_matrix('async', 'cycles/s', @cycles) } ],
	[ 'async-latency', 'Time of a cycle, not durable', sub { table_latency('async') } ],
	[
		'try', 'Failed tries on a held key',
		sub { table_matrix('try', 'calls/s', qw(dlock plpgsql advisory redis etcd zookeeper select_once)) }
	],
	[ 'wait', 'Waiting for one key, and retrying', \&table_wait ],
	[
		'wait-clients', 'Waiting for one key',
		sub { table_matrix('wait', 'grants/s', qw(dlock dlock_async advisory zookeeper etcd)) }
	],
	[ 'handover', 'Handover to a waiter', \&table_handover ],
	[
		'threads-durable', 'Threads of one process on one handle of libdlock, durable',
		sub { table_matrix('threads_durable', 'cycles/s', qw(dlock calls handles connections redis_aof redis_aof_threads)) }
	],
	[
		'threads-async', 'Threads of one process on one handle of libdlock, not durable',
		sub { table_matrix('threads_async', 'cycles/s', qw(dlock calls handles connections redis redis_threads)) }
	],
	[ 'tickets', 'From a release to the next grant', \&table_tickets ],
	[ 'batch', 'Many keys at a time', \&table_batch ],
	[ 'refresh', 'Refreshing many leases', \&table_refresh ],
	(
		map {
			my ($kind, $name) = @$_;
			my @rows = qw(dlock exclusive redis_aof redis zookeeper);

			(
				[ "$kind-durable", "$name, durable", sub { table_matrix("${kind}_durable", 'cycles/s', @rows) } ],
				[ "$kind-async", "$name, not durable", sub { table_matrix("${kind}_async", 'cycles/s', @rows) } ])
		} [ 'shared', 'Readers of one key beside 1,000 others' ],
		[ 'semaphore', 'A semaphore of 200 places beside 100 others' ]),
	[ 'ten', 'Ten keys or none', \&table_ten ],
	[ 'subsets', 'Random subsets of 20 keys, up to 5 at a time, all or none', \&table_subsets ],
	[ 'million', 'A million live locks', \&table_million ],
	[ 'memory', 'Memory', \&table_memory ],
	[ 'expiry', 'Very many locks expire at once', \&table_expiry ],
	[ 'snapshot', 'While another session holds an old snapshot', \&table_snapshot ],
	[ 'instructions', 'Server instructions, by callgrind', \&table_instructions ],
	[ 'kinds', 'Server instructions of an acquire and of a release', \&table_kinds ]);

# Columns of figures are aligned to the right.
sub rights
{
	my (undef, @rows) = @_;

	return map {
		my $i = $_;
		$i > 0 && !grep { ($_->[$i] // '') !~ /^(?:[-+\d]|$)/ } @rows
	} 0 .. $#{ $rows[0] };
}

sub as_text
{
	my ($table) = @_;
	my @right = rights(@$table);
	my @rows = map { [ map { s/[*`]//gr } @$_ ] } @$table;
	my @widths = map {
		my $i = $_;
		max map { length($_->[$i] // '') } @rows
	} 0 .. $#{ $rows[0] };

	return join '', map {
		my $row = $_;
		my $line = join '  ', map {
			sprintf $right[$_] ? '%*s' : '%-*s', $widths[$_], $row->[$_] // ''
		} 0 .. $#widths;
		$line =~ s/ +$//r . "\n"
	} @rows;
}

sub as_markdown
{
	my ($table) = @_;
	my ($head, @rows) = @$table;
	my $line = sub { '| ' . join(' | ', @_) . " |\n" };

	return $line->(@$head) . join('', map { $_ ? '|---:' : '|---' } rights(@$table)) . "|\n" . join '', map { $line->(@$_) } @rows;
}

# Where and how, and how much to believe.
sub about
{
	my $fact = sub { $data->fact($_[0]) // '?' };
	my @spreads = $data->spreads;
	my ($errors, $left, $cpu) = $data->checks;
	my @peers = map { defined $data->fact($_->[0]) ? "$_->[1] " . $data->fact($_->[0]) : () }
	  [ redis => 'Redis' ], [ etcd => 'etcd' ], [ zookeeper => 'ZooKeeper' ];
	my $text = sprintf "%s, dlock %s, PostgreSQL %s%s. %d cores (%s), %s GB, Linux %s, %s; load at the start: %s.\n",
	  map { ref $_ ? $_->() : $fact->($_) } 'date', 'commit', 'postgres',
	  sub { join '', map { ", $_" } @peers },
	  qw(cores cpu memory_gb kernel filesystem load);

	$text .= sprintf "Medians of %s interleaved rounds of %s s each. ", $fact->('repeats'), $fact->('seconds');
	$text .= sprintf "The rounds of one measurement differ by %s of their median (median of all measurements), at most by %s. ",
	  percent(median(@spreads)), percent($spreads[-1])
	  if @spreads;
	$text .= sprintf "Errors: %d. Locks left behind: %d. The busiest load generator took %s of one core.\n",
	  $errors, $left, percent($cpu);
	$text .= "This was a quick run. It shows that everything works, but its figures prove little.\n"
	  if $fact->('repeats') eq '1';
	return $text;
}

#
# Plots
#

sub plain
{
	my ($label, $pipe) = @_;

	return named($label, $pipe) =~ s/[*`]//gr;
}

sub kind
{
	my ($label) = @_;

	return 'dlock' if $label =~ /^(?:dlock|try|refresh)/;
	return $label =~ /^(?:select|commit|xid|hot_update)/ ? 'bare' : 'peer';
}

sub bar
{
	my ($label, $value, $pipe) = @_;

	return defined $value ? [ plain($label, $pipe), $value, kind($label) ] : ();
}

sub plot_cycles
{
	my ($group, $title) = @_;
	my @clients = $data->clients($group) or return;

	return bars(
		$title,
		'cycles/s',
		map {
			my $n = $_;
			{
				title => $n == 1 ? '1 client' : "$n clients",
				bars => [ map { bar($_, $data->get($group, $_, $n)) } there($group, @cycles) ]
			}
		} @clients);
}

sub plot_wait
{
	my $n = wait_clients() // return;
	my @labels = grep { defined $data->get('wait', $_, $n) } there('wait', @waits);

	return bars(
		"One key, $n clients",
		'',
		{ title => 'grants', unit => 'per second', bars => [ map { bar($_, $data->get('wait', $_, $n)) } @labels ] },
		{
			title => 'the longest wait',
			unit => 'ms',
			bars => [ map { bar($_, $data->get('wait', $_, $n, 'max_us') / 1000) } @labels ]
		});
}

sub plot_batch
{
	return unless $data->clients('batch') && $data->clients('refresh');
	my @labels = map { ("${_}_one", "${_}_pipe", "${_}_batch") } qw(dlock plpgsql redis_aof redis);

	return bars(
		'Many at a time, one client',
		'',
		{
			title => '1,000 keys',
			unit => 'cycles/s',
			bars => [ map { bar($_, $data->get('batch', $_, 1), '1,000') } there('batch', @labels) ]
		},
		{
			title => '10,000 leases',
			unit => 'refreshed per second',
			bars => [ map { bar($_, $data->get('refresh', $_, 1), '10,000') } there('refresh', @labels) ]
		});
}

sub plot_snapshot
{
	my @panels;

	foreach my $keys (1, 1000)
	{
		my @lines = map {
			my $points = $data->series("snapshot_$keys", $_);
			$points ? [ $snapshot{$_}, $points ] : ()
		} qw(dlock plpgsql dlock_free);

		push @panels,
		  {
			title => $keys == 1 ? 'One key, 1 client' : '1,000 keys, 8 clients',
			x => 'seconds since the snapshot was taken',
			y => 'cycles/s',
			lines => \@lines
		  } if @lines;
	}
	return unless @panels;
	return lines('Throughput while another session holds an old snapshot', @panels);
}

sub plot_expiry
{
	my $at = $data->fact('expiry_at') // return;
	my @panels;

	foreach my $panel ([ 'expiry', 'Cycles, 8 clients', 'cycles/s' ],
		[ 'expiry_left', 'Locks not yet removed', 'locks' ])
	{
		my ($group, $title, $y) = @$panel;
		my @lines = map {
			my $points = $data->series($group, $_);
			$points ? [ plain($_), $points ] : ()
		} qw(dlock redis);

		push @panels,
		  { title => $title, x => 'seconds', y => $y, lines => \@lines, marks => [ [ $at, 'all expire' ] ] }
		  if @lines;
	}
	return unless @panels;
	return lines(number($data->fact('expiry_locks')) . ' locks expire at the same instant, not durable', @panels);
}

sub plot_instructions
{
	my @bars = map { bar($_, $data->fact("instructions_$_")) } @counted_cycles;
	my @calls = map { bar($_, $data->fact("instructions_$_")) } @counted_calls;

	return unless @bars && @calls;
	return bars(
		'Instructions executed by the server',
		'instructions',
		{ title => 'one cycle', bars => \@bars },
		{ title => 'one call', bars => \@calls });
}

my %plots = (
	durable => sub { plot_cycles('durable', 'Acquire and release, durable, 100,000 keys') },
	async => sub { plot_cycles('async', 'Acquire and release, not durable, 100,000 keys') },
	wait => \&plot_wait,
	batch => \&plot_batch,
	snapshot => \&plot_snapshot,
	expiry => \&plot_expiry,
	instructions => \&plot_instructions);

sub write_file
{
	my ($file, $content) = @_;

	open my $fh, '>', $file or die "could not write $file: $!\n";
	print $fh $content;
	close $fh or die "could not write $file: $!\n";
	return;
}

sub write_docs
{
	my (%content) = @_;
	my $file = "$docs/benchmarks.md";

	open my $fh, '<', $file or die "could not open $file: $!\n";
	my $text = do { local $/; <$fh> };
	close $fh;
	foreach my $part (sort keys %content)
	{
		$text =~ s{(<!-- bench:\Q$part\E -->\n).*?(<!-- /bench:\Q$part\E -->)}{$1$content{$part}$2}s
		  or die "$file has no place for \"$part\"\n";
	}
	write_file($file, $text);

	mkpath("$docs/bench");
	foreach my $plot (sort keys %plots)
	{
		my $svg = $plots{$plot}->();

		write_file("$docs/bench/$plot.svg", $svg) if defined $svg;
	}
	foreach my $tsv (glob "$ARGV[0]/*.tsv")
	{
		my $copy = "$docs/bench/" . basename($tsv);

		next if -e $copy && (stat _)[1] == (stat $tsv)[1];
		copy($tsv, $copy) or die "could not copy $tsv: $!\n";
	}
	print STDERR "wrote $file and $docs/bench\n";
	return;
}

my $about = about();
local $Text::Wrap::columns = 118;
my %content = (about => wrap('', '', $about =~ s/\n(?=.)/ /gr));

print "\n$about";
foreach my $table (@tables)
{
	my ($id, $title, $make) = @$table;
	my $rows = $make->() or next;

	$content{$id} = as_markdown($rows);
	if ($format eq 'markdown')
	{
		print "\n### $title\n\n$content{$id}";
	}
	else
	{
		print "\n$title\n", '-' x length($title), "\n", as_text($rows);
	}
}
write_docs(%content) if $docs;
