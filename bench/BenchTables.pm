# The tables of a report on a run of scripts/bench.

package BenchTables;

use strict;
use warnings FATAL => 'all';

use List::Util qw(min sum);

use BenchAims;
use BenchData qw(factor number percent us);
use BenchLabels qw(named wait_clients @cycles @waits @several
  @counted_cycles @counted_calls %snapshot);

#
# A table is [ heading of the columns, row, ... ], or nothing if it was not
# measured.
#

# Labels down, numbers of clients across; in brackets what dlock is of it.
sub table_matrix
{
	my ($data, $group, $unit, @labels) = @_;
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
		} $data->there($group, @labels)
	];
}

# The times of a cycle, and how steady the rounds were, at one client count.
sub table_latency
{
	my ($data, $group) = @_;
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
		} grep { defined $data->get($group, $_, $n) } $data->there($group, @cycles)
	];
}

sub table_wait
{
	my ($data) = @_;
	my $n = wait_clients($data) // return;

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
		} grep { defined $data->get('wait', $_, $n) } $data->there('wait', @waits)
	];
}

sub table_handover
{
	my ($data) = @_;
	my ($n) = $data->clients('handover') or return;

	return [
		[ 'from release to grant', 'median', '99%', 'worst', 'relative to advisory' ],
		map {
			[
				named($_), us($data->get('handover', $_, $n, 'p50_us')), us($data->get('handover', $_, $n, 'p99_us')),
				us($data->get('handover', $_, $n, 'max_us')),
				factor($data->ratio('handover', $_, 'advisory', $n, 'p50_us'))
			]
		} $data->there('handover', qw(advisory dlock_async dlock zookeeper etcd))
	];
}

# Requests that wait by ticket, beside a session that waits.
sub table_tickets
{
	my ($data) = @_;
	my @rows = (
		[ 'keys', 10_000, '10,000 tickets on 10,000 keys that are released together' ],
		[ 'queue', 1000, '1,000 tickets on one key' ],
		[ 'session', 2, 'a session that waits' ]);

	return unless $data->clients('tickets');
	my ($kb, $waiting, $session_kb) = map { $data->fact($_) } qw(tickets_kb tickets_waiting waiter_kb_dlock);
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

# The portable edition beside what it is compared with; a column for each.
sub table_portable
{
	my ($data) = @_;
	my @labels = $data->there('portable', qw(dlock portable plpgsql advisory)) or return;
	my $seconds = $data->fact('portable_snapshot_seconds');
	my $row = sub {
		my ($what, $group, $n) = @_;
		return [ $what, map { number($data->get("portable$group", $_, $n)) } @labels ];
	};
	my @ends = map { [ $data->ends('portable_snapshot', $_) ] } @labels;

	return [
		[ '', map { named($_) } @labels ],
		$row->('cycles/s, durable, 1 client', '', 1),
		$row->('cycles/s, durable, 8 clients', '', 8),
		$row->('failed tries/s, 1 client', '_try', 1),
		$row->('failed tries/s, 8 clients', '_try', 8),
		$row->('grants/s, 8 clients wait for one key', '_wait', 8),
		[ 'from release to grant, median', map { us($data->get('portable_handover', $_, 2, 'p50_us')) } @labels ],
		defined $seconds
		? [
			"cycles/s of one key beside an old snapshot, after $seconds s relative to the beginning",
			map { $_->[0] ? sprintf('%.2f', $_->[1] / $_->[0]) : '-' } @ends
		  ]
		: ()
	];
}

sub table_batch
{
	my ($data) = @_;

	return unless $data->clients('batch');
	return [
		[ '1 client, 1,000 keys at a time', 'grants/s, acquire only', 'cycles/s, with release', 'relative to one by one' ],
		map {
			my ($who) = /^(.*)_(?:one|pipe|batch)$/;
			[
				named($_, '1,000'), number(BenchAims::grants_a_second($data, $_)),
				number($data->get('batch', $_, 1)), factor($data->ratio('batch', $_, "${who}_one", 1))
			]
		} $data->there('batch', @several)
	];
}

sub table_refresh
{
	my ($data) = @_;

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
		} $data->there('refresh', @several)
	];
}

# Ten keys at a time, and random subsets of a few keys.
sub table_ten
{
	my ($data) = @_;
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
		} $data->there($name, qw(dlock_batch dlock_all));
	}
	return @rows ? [ [ '1 client, 10 keys at a time', 'keys/s, with release', 'time of the acquire', 'relative to one statement' ], @rows ] : undef;
}

sub table_subsets
{
	my ($data) = @_;
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
		} $data->there('subsets', qw(dlock dlock_async))
	];
}

sub table_million
{
	my ($data) = @_;

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

# group, title, unit of a figure, and how many of it are one unit
my @grown = (
	[ 'growth_try', 'a failed try', 'us', 1000 ],
	[ 'growth_cycle', 'acquire and release, not durable', 'us', 1000 ],
	[ 'growth_page', 'a list of the first 1,000 keys', 'ms', 1 ],
	[ 'growth_expiry', 'from the end of a lease to the removal of its row', 'ms', 1 ],
	[ 'growth_release', 'a release, until the next holder is seen', 'us', 1000 ],
	[ 'growth_grant', 'the grant that follows', 'us', 1000 ]);
my @grown_facts = (
	[ 'growth_reaper', 'the reaper, when nothing expires', '% of a core', 0.01 ],
	[ 'growth_first_pass', 'the first pass after a restart', 's', 1 ],
	[ 'growth_idle', 'sessions that only wait', '% of a core', 0.01 ]);

# One row for each figure and each number of locks or waiters.
sub table_growth
{
	my ($data) = @_;
	my @rows;

	foreach my $row (@grown)
	{
		my ($group, $what, $unit, $scale) = @$row;
		my @sizes = sort { $a <=> $b } $data->labels($group) or next;
		my $smallest = $data->get($group, $sizes[0], 1);

		push @rows, [ $what, number($_), sprintf('%.1f %s', $data->get($group, $_, 1) / $scale, $unit),
			factor($data->get($group, $_, 1) / $smallest) ] foreach @sizes;
	}
	foreach my $row (@grown_facts)
	{
		my ($name, $what, $unit, $scale) = @$row;

		push @rows, [ $what, number($_), sprintf('%.1f %s', $data->fact("${name}_$_") / $scale, $unit), '' ]
		  foreach grep { defined $data->fact("${name}_$_") } map { 10**$_ } 1 .. 7;
	}
	return @rows ? [ [ 'processor time, or time', 'locks or waiters', 'figure', 'ratio to the smallest' ], @rows ] : undef;
}

sub table_memory
{
	my ($data) = @_;
	my @rows;
	my $fact = sub { $data->fact($_[0]) };

	push @rows, [ 'a lock, in the table', number($fact->('lock_heap_bytes')) . ' bytes' ],
	  [ 'a lock, in the index', number($fact->('lock_index_bytes')) . ' bytes' ]
	  if defined $fact->('lock_heap_bytes');
	push @rows, [ 'a lock in Redis', number($fact->('redis_lock_bytes')) . ' bytes' ]
	  if defined $fact->('redis_lock_bytes');
	push @rows,
	  [ 'shared memory of dlock without tickets, with `max_connections = ' . $fact->('max_connections') . '`', number($fact->('shared_bytes') / 1024) . ' kB' ],
	  [ 'of which the queue, for each possible backend', number($fact->('shared_waiters_bytes') / $fact->('max_backends')) . ' bytes' ],
	  [
		'shared memory that is reserved for tickets, with `dlock.max_tickets = ' . $fact->('max_tickets') . '`',
		number($fact->('shared_tickets_bytes') / 1024) . ' kB'
	  ]
	  if defined $fact->('shared_tickets_bytes');
	push @rows, [ 'private memory of a waiting session', number($fact->('waiter_kb_dlock')) . ' kB' ]
	  if defined $fact->('waiter_kb_dlock');
	push @rows,
	  [ 'the same, waiting in `pg_advisory_lock`', number($fact->('waiter_kb_advisory')) . ' kB' ]
	  if defined $fact->('waiter_kb_advisory');
	return @rows ? [ [ 'memory', 'size' ], @rows ] : undef;
}

my @churned = (
	[ 1, 'one key' ],
	[ 1000, '1,000 keys' ],
	[ 'shared', 'readers of one key' ],
	[ 'semaphore', 'a semaphore' ]);

sub table_snapshot
{
	my ($data) = @_;
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
	my ($data, $label) = @_;
	my $at = $data->fact('expiry_at') // return;

	foreach my $point (@{ $data->series('expiry_left', $label) // [] })
	{
		return $point->[0] if $point->[0] > $at && $point->[1] <= $data->fact('expiry_locks') / 1000;
	}
	return;
}

sub table_expiry
{
	my ($data) = @_;
	my $at = $data->fact('expiry_at') // return;
	my @rows;

	foreach my $label (qw(dlock redis))
	{
		my $points = $data->series('expiry', $label) or next;
		my $gone = gone_at($data, $label);
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

sub table_instructions
{
	my ($data) = @_;
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
	my ($data) = @_;
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
	my ($data) = @_;
	my @aims = BenchAims::judge($data) or return;

	return [ [ 'what', 'aim', 'measured', 'result' ], @aims ];
}

# name, title, function, and its arguments after the data
my @tables = (
	[ 'aims', 'Aims', \&table_aims ],
	[ 'durable', 'Cycles/s, durable, 100,000 keys', \&table_matrix, 'durable', 'cycles/s', @cycles ],
	[ 'durable-latency', 'Time of a cycle, durable', \&table_latency, 'durable' ],
	[ 'async', 'Cycles/s, not durable, 100,000 keys', \&table_matrix, 'async', 'cycles/s', @cycles ],
	[ 'async-latency', 'Time of a cycle, not durable', \&table_latency, 'async' ],
	[
		'try', 'Failed tries on a held key',
		\&table_matrix, 'try', 'calls/s', qw(dlock plpgsql advisory redis etcd zookeeper select_once)
	],
	[ 'wait', 'Waiting for one key, and retrying', \&table_wait ],
	[
		'wait-clients', 'Waiting for one key',
		\&table_matrix, 'wait', 'grants/s', qw(dlock dlock_async advisory zookeeper etcd)
	],
	[ 'handover', 'Handover to a waiter', \&table_handover ],
	[
		'threads-durable', 'Threads of one process on one handle of libdlock, durable',
		\&table_matrix, 'threads_durable', 'cycles/s', qw(dlock calls handles connections redis_aof redis_aof_threads)
	],
	[
		'threads-slow', 'Threads of one process on one handle of libdlock, durable, a flush takes 1 ms longer',
		\&table_matrix, 'threads_slow', 'cycles/s', qw(dlock calls handles connections redis_aof redis_aof_threads)
	],
	[
		'threads-async', 'Threads of one process on one handle of libdlock, not durable',
		\&table_matrix, 'threads_async', 'cycles/s', qw(dlock calls handles connections redis redis_threads)
	],
	[ 'tickets', 'From a release to the next grant', \&table_tickets ],
	[ 'batch', 'Many keys at a time', \&table_batch ],
	[ 'refresh', 'Refreshing many leases', \&table_refresh ],
	(
		map {
			my ($kind, $name) = @$_;
			my @rows = qw(dlock exclusive redis_aof redis zookeeper);

			(
				[ "$kind-durable", "$name, durable", \&table_matrix, "${kind}_durable", 'cycles/s', @rows ],
				[ "$kind-async", "$name, not durable", \&table_matrix, "${kind}_async", 'cycles/s', @rows ])
		} [ 'shared', 'Readers of one key beside 1,000 others' ],
		[ 'semaphore', 'A semaphore of 200 places beside 100 others' ]),
	[ 'ten', 'Ten keys or none', \&table_ten ],
	[ 'subsets', 'Random subsets of 20 keys, up to 5 at a time, all or none', \&table_subsets ],
	[
		'rates-durable', 'Permits of a rate, durable',
		\&table_matrix, 'rates_durable', 'permits/s', qw(dlock redis_aof redis_aof_counter)
	],
	[
		'rates-async', 'Permits of a rate, not durable',
		\&table_matrix, 'rates_async', 'permits/s', qw(dlock redis redis_counter)
	],
	[ 'million', 'A million live locks', \&table_million ],
	[ 'growth', 'More locks, more waiters', \&table_growth ],
	[ 'memory', 'Memory', \&table_memory ],
	[ 'expiry', 'Very many locks expire at once', \&table_expiry ],
	[ 'snapshot', 'While another session holds an old snapshot', \&table_snapshot ],
	[ 'portable', 'The portable edition', \&table_portable ],
	[ 'instructions', 'Server instructions, by callgrind', \&table_instructions ],
	[ 'kinds', 'Server instructions of an acquire and of a release', \&table_kinds ]);

# tables(data): [ name, title, table ] for each that was measured
sub tables
{
	my ($data) = @_;
	my @made;

	foreach my $entry (@tables)
	{
		my ($name, $title, $make, @arguments) = @$entry;
		my $table = $make->($data, @arguments) or next;

		push @made, [ $name, $title, $table ];
	}
	return @made;
}

1;
