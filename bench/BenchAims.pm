# The aims of dlock, and whether a run has reached them.  Ratios are medians of
# the ratios in the interleaved rounds of one run.

package BenchAims;

use strict;
use warnings FATAL => 'all';

use List::Util qw(min max);

# one(what, aim, factor, at least?, values that were measured)
sub line
{
	my ($what, $aim, $reached, $text, @values) = @_;
	my @measured = grep { defined } @values;

	return [ $what, $aim, '-', 'not measured' ] if !@measured || @measured < @values;
	return [ $what, $aim, $text->(@measured), $reached->(@measured) ? 'reached' : '**not reached**' ];
}

sub ratios
{
	return join ', ', map { sprintf '%.2fx', $_ } @_;
}

# all of them at least that, or with "more" more than that
sub at_least
{
	my ($what, $aim, $factor, @values) = @_;

	return line($what, $aim, sub { min(@_) >= $factor }, \&ratios, @values);
}

sub more_than
{
	my ($what, $aim, $factor, @values) = @_;

	return line($what, $aim, sub { min(@_) > $factor }, \&ratios, @values);
}

sub at_most
{
	my ($what, $aim, $factor, @values) = @_;

	return line($what, $aim, sub { max(@_) <= $factor }, \&ratios, @values);
}

sub keys_at_a_time { return $_[0] =~ /_one$/ ? 1 : 1000; }

# The acquires alone: how many in the time that they took.
sub grants_a_second
{
	my ($data, $label) = @_;
	my $us = $data->get('batch', $label, 1, 'acquire_us');

	return $us ? keys_at_a_time($label) * 1e6 / $us : undef;
}

# The grants per second as a multiple of another's.
sub times_the_grants
{
	my ($data, $label, $other) = @_;
	my $times = $data->ratio('batch', $other, $label, 1, 'acquire_us');
	my ($keys, $other_keys) = map { keys_at_a_time($_) } $label, $other;

	return defined $times ? $times * $keys / $other_keys : undef;
}

sub divide
{
	my ($a, $b) = @_;

	return defined $a && $b ? $a / $b : undef;
}

# The instructions of one kind of acquire as a multiple of another's.
sub times_the_instructions
{
	my ($data, $kind, $other) = @_;

	return divide(map { $data->fact("instructions_${_}_acquire") } $kind, $other);
}

# Several keys, all or none: no deadlock and no overlap (these are errors), and
# the client that got the fewest grants got at least half of its share.
sub judge_subsets
{
	my ($data) = @_;
	my ($clients) = $data->clients('subsets') or return;
	my ($errors) = sort { $b <=> $a } $data->values_of('subsets', 'dlock', $clients, 'errors');
	my $share = divide($data->get('subsets', 'dlock', $clients, 'least') * $clients,
		$data->get('subsets', 'dlock', $clients) * $data->fact('subsets_seconds'));

	return line("$clients clients want random subsets of the same keys", 'no error, and the last client has half of its share',
		sub { $_[0] == 0 && $_[1] >= 0.5 }, sub { sprintf '%d errors, %.2f', @_ }, $errors, $share);
}

# The figures of the largest number of locks or waiters beside those of the smallest.
sub judge_growth
{
	my ($data) = @_;
	my @lines;
	my $most = 0;

	foreach my $aim ([ 'growth_try', 'a failed try', 1.1 ], [ 'growth_cycle', 'acquire and release', 1.1 ],
		[ 'growth_release', 'a release to a waiter', 1.5 ], [ 'growth_grant', 'the grant that follows', 1.5 ])
	{
		my ($group, $what, $factor) = @$aim;
		my ($first, @others) = sort { $a <=> $b } $data->labels($group) or next;

		next unless @others;
		$most = $others[-1] if $group eq 'growth_try';
		push @lines, at_most(BenchData::number($others[-1]) . ($factor < 1.5 ? ' locks, ' : ' waiters, ') . $what,
			"at most ${factor}x the processor time of " . BenchData::number($first), $factor,
			divide(map { $data->get($group, $_, 1) } $others[-1], $first));
	}
	return @lines unless $most;
	push @lines, line(BenchData::number($most) . ' locks, an expired row', 'is removed within 2 s',
		sub { $_[0] <= 2000 }, sub { sprintf '%.0f ms', $_[0] }, $data->get('growth_expiry', $most, 1));
	push @lines, line(BenchData::number($most) . ' locks, the reaper', 'below 5 % of one core when nothing expires',
		sub { $_[0] < 0.05 }, sub { sprintf '%.1f %%', 100 * $_[0] }, $data->fact("growth_reaper_$most"));
	push @lines, line('1,000 sessions that only wait', 'below 1 % of one core',
		sub { $_[0] < 0.01 }, sub { sprintf '%.1f %%', 100 * $_[0] }, $data->fact('growth_idle_1000'));
	return @lines;
}

sub judge
{
	my ($data) = @_;
	my @lines;
	my @durable = $data->clients('durable');
	my @async = grep { $_ >= 8 } $data->clients('async');

	if (@durable)
	{
		my $where = 'durable, ' . join(', ', @durable) . ' clients';
		my $beside = sub {
			my ($other, $label, @clients) = @_;
			return map { $data->ratio('durable', $label, $other, $_) } @clients;
		};
		my @few = grep { $_ <= 8 } @durable;
		my @many = grep { $_ >= 32 } @durable;

		push @lines, more_than($where, 'faster than ZooKeeper', 1, $beside->('zookeeper', 'dlock', @durable));
		push @lines, more_than($where, 'faster than etcd', 1, $beside->('etcd', 'dlock', @durable));
		push @lines, at_least($where, '1.2x of two bare durable commits', 1.2, $beside->('commit', 'dlock', @durable));
		push @lines, at_least($where, '2x the plpgsql lock', 2, $beside->('plpgsql', 'dlock', @durable));
		push @lines, more_than('durable, up to 8 clients', 'faster than Redis, fsync always', 1,
			$beside->('redis_aof', 'dlock', @few));
		push @lines, at_least('durable, 32 and 64 clients', '0.6x of Redis, fsync always, one by one', 0.6,
			$beside->('redis_aof', 'dlock', @many));
		push @lines, more_than('the same, with a pipeline', 'faster than Redis, fsync always, one by one', 1,
			$beside->('redis_aof', 'dlock_pipe', @many));
	}
	if (@async)
	{
		my $where = 'not durable, ' . join(', ', @async) . ' clients';

		foreach my $aim (
			[ 'commit', 0.85, '0.85x of two bare asynchronous commits' ],
			[ 'advisory', 0.75, '0.75x of advisory locks' ],
			[ 'plpgsql', 1.6, '1.6x the plpgsql lock' ])
		{
			my ($other, $factor, $text) = @$aim;

			push @lines, at_least($where, $text, $factor,
				map { $data->ratio('async', 'dlock', $other, $_) } @async);
		}
	}
	if (my @clients = $data->clients('try'))
	{
		push @lines, at_least('failed try on a hot key, ' . join(', ', @clients) . ' clients', '0.85x of `SELECT 1`', 0.85,
			map { $data->ratio('try', 'dlock', 'select_once', $_) } @clients);
	}
	foreach my $n (grep { $_ == 32 } $data->clients('wait'))
	{
		my $where = "waiting on a hot key, $n clients, durable";

		push @lines, at_least($where, '5x the grants/s of Redis, fsync always, retry 100 ms', 5,
			$data->ratio('wait', 'dlock', 'redis_aof_retry_100', $n));
		push @lines, at_most($where, 'worst wait within 3x of the mean', 3,
			divide(map { $data->get('wait', 'dlock', $n, $_) } qw(max_us mean_us)));
	}
	if ($data->clients('threads_durable'))
	{
		my $where = '64 threads on one handle of libdlock, durable';

		push @lines, at_least($where, '5x of a handle for each thread', 5,
			$data->ratio('threads_durable', 'dlock', 'handles', 64));
		push @lines, at_least($where, '1.5x of Redis, fsync always, one by one', 1.5,
			$data->ratio('threads_durable', 'dlock', 'redis_aof', 64));
		push @lines, at_least($where, '1.5x of Redis, fsync always, a thread for each connection', 1.5,
			$data->ratio('threads_durable', 'dlock', 'redis_aof_threads', 64));
		push @lines, at_least("$where, a flush takes 1 ms longer", '1.5x of Redis, fsync always, one by one', 1.5,
			$data->ratio('threads_slow', 'dlock', 'redis_aof', 64));
		push @lines, at_least('64 calls of an event loop, durable', '1.5x of Redis, fsync always, one by one', 1.5,
			$data->ratio('threads_durable', 'calls', 'redis_aof', 64));
		push @lines, at_most('release to grant, 1,000 tickets on one key, median', 'within 3x of a session that waits', 3,
			divide($data->get('tickets', 'queue', 1000, 'p50_us'), $data->get('tickets', 'session', 2, 'p50_us')));
	}
	if ($data->clients('batch'))
	{
		my $where = 'batch of 1,000 keys';

		push @lines, more_than($where, 'more grants/s than Redis pipelined, fsync always', 1,
			times_the_grants($data, 'dlock_batch', 'redis_aof_pipe'));
		push @lines, at_least($where, '10x one by one', 10,
			times_the_grants($data, 'dlock_batch', 'dlock_one'));
	}
	if ($data->clients('refresh'))
	{
		push @lines, at_least('refresh of 10,000 leases in one statement', '10x one by one', 10,
			$data->ratio('refresh', 'dlock_batch', 'dlock_one', 1));
	}
	push @lines, judge_subsets($data);
	if (defined $data->fact('instructions_exclusive_acquire'))
	{
		foreach my $aim (
			[ 'reader beside 1 and 1,000 others', 1.5, 'an exclusive one', 'exclusive', 'reader_1', 'reader_1000' ],
			[ 'semaphore with 100 places taken, of 200 and of 101', 2, 'an exclusive one', 'exclusive', 'semaphore_100', 'semaphore_last' ],
			[ '`dlock_acquire_all` of 10 keys', 1.3, 'ten acquires in one statement', 'ten', 'ten_all' ])
		{
			my ($what, $factor, $text, $other, @kinds) = @$aim;

			push @lines, at_most("instructions of an acquire, $what", "at most ${factor}x of $text", $factor,
				map { times_the_instructions($data, $_, $other) } @kinds);
		}
	}
	foreach my $keys (1, 1000)
	{
		my ($first, $last) = $data->ends("snapshot_$keys", 'dlock') or next;

		push @lines, at_least('old snapshot, ' . ($keys == 1 ? 'hot key' : '1,000 keys'),
			'last 10 s 0.8x of the first 10 s', 0.8, divide($last, $first));
	}
	my $live = BenchData::number($data->fact('million_locks')) . ' live rows';
	foreach my $what ([ 'acquire and release', 'million_cycle' ], [ 'refresh', 'million_refresh' ])
	{
		my ($text, $group) = @$what;
		my @clients = $data->clients($group) or next;

		push @lines, at_most("$live, $text", 'costs at most 1.15x of an empty table', 1.15,
			map { $data->ratio($group, 'bench', 'million', $_) } @clients);
	}
	push @lines, judge_growth($data);
	if (defined(my $cpu = $data->fact('reaper_cpu')))
	{
		push @lines, line("$live, the reaper", 'below 5 % of one core when nothing expires',
			sub { $_[0] < 0.05 }, sub { sprintf '%.1f %%', 100 * $_[0] }, $cpu);
	}
	return @lines;
}

1;
