# The plots of a report on a run of scripts/bench: what they show.  BenchPlot.pm
# draws them.

package BenchCharts;

use strict;
use warnings FATAL => 'all';

use BenchData qw(number);
use BenchLabels qw(kind plain wait_clients @cycles @waits @several
  @counted_cycles @counted_calls %snapshot);
use BenchPlot qw(bars lines);

sub bar
{
	my ($label, $value, $pipe) = @_;

	return defined $value ? [ plain($label, $pipe), $value, kind($label) ] : ();
}

sub plot_cycles
{
	my ($data, $group, $title) = @_;
	my @clients = $data->clients($group) or return;

	return bars(
		$title,
		'cycles/s',
		map {
			my $n = $_;
			{
				title => $n == 1 ? '1 client' : "$n clients",
				bars => [ map { bar($_, $data->get($group, $_, $n)) } $data->there($group, @cycles) ]
			}
		} @clients);
}

sub plot_wait
{
	my ($data) = @_;
	my $n = wait_clients($data) // return;
	my @labels = grep { defined $data->get('wait', $_, $n) } $data->there('wait', @waits);

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
	my ($data) = @_;

	return unless $data->clients('batch') && $data->clients('refresh');
	my @labels = @several;

	return bars(
		'Many at a time, one client',
		'',
		{
			title => '1,000 keys',
			unit => 'cycles/s',
			bars => [ map { bar($_, $data->get('batch', $_, 1), '1,000') } $data->there('batch', @labels) ]
		},
		{
			title => '10,000 leases',
			unit => 'refreshed per second',
			bars => [ map { bar($_, $data->get('refresh', $_, 1), '10,000') } $data->there('refresh', @labels) ]
		});
}

sub plot_snapshot
{
	my ($data) = @_;
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
	my ($data) = @_;
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

sub plot_growth
{
	my ($data) = @_;
	my @panels;

	foreach my $panel ([ 'growth_try', 'a failed try', 'locks' ], [ 'growth_cycle', 'acquire and release', 'locks' ],
		[ 'growth_release', 'a release of a key that is waited for', 'waiters' ], [ 'growth_grant', 'the grant that follows', 'waiters' ])
	{
		my ($group, $title, $of) = @$panel;
		my @sizes = sort { $a <=> $b } $data->labels($group) or next;

		push @panels, { title => $title, bars => [ map { [ number($_) . " $of", $data->get($group, $_, 1) / 1000, 'dlock' ] } @sizes ] };
	}
	return @panels ? bars('Processor time of the server', 'us', @panels) : undef;
}

sub plot_instructions
{
	my ($data) = @_;
	my @bars = map { bar($_, $data->fact("instructions_$_")) } @counted_cycles;
	my @calls = map { bar($_, $data->fact("instructions_$_")) } @counted_calls;

	return unless @bars && @calls;
	return bars(
		'Instructions executed by the server',
		'instructions',
		{ title => 'one cycle', bars => \@bars },
		{ title => 'one call', bars => \@calls });
}

# name, function, and its arguments after the data
my %plots = (
	durable => [ \&plot_cycles, 'durable', 'Acquire and release, durable, 100,000 keys' ],
	async => [ \&plot_cycles, 'async', 'Acquire and release, not durable, 100,000 keys' ],
	wait => [ \&plot_wait ],
	batch => [ \&plot_batch ],
	snapshot => [ \&plot_snapshot ],
	expiry => [ \&plot_expiry ],
	growth => [ \&plot_growth ],
	instructions => [ \&plot_instructions ]);

# plots(data): name and SVG of each that was measured
sub plots
{
	my ($data) = @_;
	my %made;

	foreach my $name (keys %plots)
	{
		my ($make, @arguments) = @{ $plots{$name} };
		my $svg = $make->($data, @arguments);

		$made{$name} = $svg if defined $svg;
	}
	return %made;
}

1;
