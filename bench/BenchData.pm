# The figures of a run of scripts/bench: reading, medians, number formats.
# bench/sections.sh describes the files.

package BenchData;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use List::Util qw(max min sum);

our @EXPORT_OK = qw(factor median number percent short us);

my @metrics = qw(rate mean_us p50_us p99_us max_us acquire_us grants busy
  errors left least cpu);

sub new
{
	my ($class, $folder) = @_;
	my $self = bless { result => {}, series => {}, fact => {} }, $class;
	my @files = sort glob "$folder/*.tsv";

	die "no figures in $folder\n" unless @files;
	$self->_read($_) foreach @files;
	return $self;
}

sub _read
{
	my ($self, $file) = @_;

	open my $fh, '<', $file or die "could not open $file: $!\n";
	while (my $line = <$fh>)
	{
		chomp $line;
		my ($kind, @field) = split /\t/, $line, -1;

		if ($kind eq 'fact' && @field == 2)
		{
			$self->{fact}{ $field[0] } = $field[1];
		}
		elsif ($kind eq 'series' && @field == 4)
		{
			push @{ $self->{series}{ $field[0] }{ $field[1] } },
			  [ @field[ 2, 3 ] ];
		}
		elsif ($kind eq 'result' && @field == 4 + @metrics)
		{
			my ($group, $label, $clients, $round, @values) = @field;
			my %value = (round => $round);

			@value{@metrics} = @values;
			push @{ $self->{result}{$group}{$label}{$clients} }, \%value;
		}
		else
		{
			die "$file:$.: not a line of figures: $line\n";
		}
	}
	close $fh;
	return;
}

sub fact
{
	my ($self, $name) = @_;

	return $self->{fact}{$name};
}

sub series
{
	my ($self, $group, $label) = @_;

	return ($self->{series}{$group} // {})->{$label};
}

# The numbers of clients that a group was measured with.
sub clients
{
	my ($self, $group) = @_;
	my %seen;

	foreach my $label (values %{ $self->{result}{$group} // {} })
	{
		$seen{$_} = 1 foreach keys %$label;
	}
	my @sorted = sort { $a <=> $b } keys %seen;

	return @sorted;
}

# All labels of a group.
sub labels
{
	my ($self, $group) = @_;

	return keys %{ $self->{result}{$group} // {} };
}

# Those of the labels that a group has.
sub there
{
	my ($self, $group, @labels) = @_;

	return grep { ($self->{result}{$group} // {})->{$_} } @labels;
}

sub _rounds
{
	my ($self, $group, $label, $clients) = @_;

	# a lookup must not create the entry
	return @{ (($self->{result}{$group} // {})->{$label} // {})->{$clients} // [] };
}

sub _by_round
{
	my ($self, $group, $label, $clients, $metric) = @_;

	return map { $_->{round} => $_->{$metric} } $self->_rounds($group, $label, $clients);
}

sub values_of
{
	my ($self, $group, $label, $clients, $metric) = @_;

	return map { $_->{$metric} } $self->_rounds($group, $label, $clients);
}

# The median of the rounds; undef if it was not measured.
sub get
{
	my ($self, $group, $label, $clients, $metric) = @_;

	return median($self->values_of($group, $label, $clients, $metric // 'rate'));
}

# For two labels in one group: the median of the ratios in each round, because
# there the two were measured within seconds of each other.
sub ratio
{
	my ($self, $group, $label, $other, $clients, $metric) = @_;
	my %a = $self->_by_round($group, $label, $clients, $metric // 'rate');
	my %b = $self->_by_round($group, $other, $clients, $metric // 'rate');

	return median(map { $a{$_} / $b{$_} } grep { $b{$_} } keys %a);
}

# The spread of the rounds relative to their median.
sub spread
{
	my ($self, $group, $label, $clients) = @_;
	my @values = $self->values_of($group, $label, $clients, 'rate');
	my $median = median(@values);

	return @values > 1 && $median ? (max(@values) - min(@values)) / $median : undef;
}

# Over everything that was measured more than once.
sub spreads
{
	my ($self) = @_;
	my @all;

	foreach my $group (sort keys %{ $self->{result} })
	{
		foreach my $label (sort keys %{ $self->{result}{$group} })
		{
			push @all, $self->spread($group, $label, $_)
			  foreach keys %{ $self->{result}{$group}{$label} };
		}
	}
	@all = sort { $a <=> $b } grep { defined } @all;
	return @all;
}

# Errors, and the largest share of a core that a generator used.
sub checks
{
	my ($self) = @_;
	my ($errors, $left, $cpu) = (0, 0, 0);

	foreach my $group (values %{ $self->{result} })
	{
		foreach my $row (map { @$_ } map { values %$_ } values %$group)
		{
			$errors += $row->{errors};
			$left += $row->{left};
			$cpu = max($cpu, $row->{cpu});
		}
	}
	return ($errors, $left, $cpu);
}

# The mean rate of the first and of the last seconds of a series.
sub ends
{
	my ($self, $group, $label) = @_;
	my $points = $self->series($group, $label) or return;
	my $n = min(10, int(@$points / 4));

	return if $n < 1;
	return map { sum(@$_) / $n } [ map { $_->[1] } @$points[ 0 .. $n - 1 ] ],
	  [ map { $_->[1] } @$points[ -$n .. -1 ] ];
}

sub median
{
	my @sorted = sort { $a <=> $b } @_;

	return undef unless @sorted;    # one value, in a list too
	return ($sorted[ $#sorted / 2 ] + $sorted[ @sorted / 2 ]) / 2;
}

# 12345.6 as 12,346, 0.1234 as 0.12
sub number
{
	my ($value) = @_;

	return '-' unless defined $value;
	return sprintf '%.2f', $value if abs($value) < 10;
	my $text = sprintf '%.0f', $value;
	1 while $text =~ s/^(-?\d+)(\d{3})/$1,$2/;
	return $text;
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

# 12345 as 12.3k, for plots
sub short
{
	my ($value) = @_;

	foreach my $unit ([ 1e6, 'M' ], [ 1e3, 'k' ])
	{
		my ($size, $letter) = @$unit;

		next if $value < $size;
		my $text = sprintf $value < 100 * $size ? '%.1f' : '%.0f', $value / $size;

		$text =~ s/\.0$//;
		return $text . $letter;
	}
	return $value == int $value ? $value : sprintf $value < 10 ? '%.1f' : '%.0f', $value;
}

1;
