# The results of a torture run: read from its histories, shown as a table, and
# written to a file "summary" with lines "what name... value".

package TortureReport;

use strict;
use warnings FATAL => 'all';

sub new
{
	my ($class, $folder) = @_;
	my $self = bless { folder => $folder, operations => {}, grants => [], written => {} }, $class;

	$self->read_client($_) foreach glob "$folder/client-*.history";
	$self->read_final;
	$self->{grants} = [ sort { $a->[1] <=> $b->[1] } @{ $self->{grants} } ];
	return $self;
}

sub read_client
{
	my ($self, $file) = @_;
	my (%called, %kinds);

	open my $fh, '<', $file or die "could not read $file: $!\n";
	while (my $line = <$fh>)
	{
		my ($at, $word, $client, $number, $operation, $outcome) = split ' ', $line;

		if ($word eq 'call')
		{
			$called{$number} = $at;
			$kinds{$number} = [ kinds($line) ] if $operation eq 'acquire';
		}
		elsif ($word eq 'lost') { $self->{operations}{event}{lost}++; }
		elsif ($word eq 'renewed') { $self->{operations}{event}{renewed}++; }
		next unless $word eq 'done';
		$self->{operations}{$operation}{$outcome}++;
		if ("$operation $outcome" eq 'acquire granted')
		{
			push @{ $self->{grants} }, [ $called{$number}, $at ];
			$self->{operations}{kind}{$_}++ foreach @{ $kinds{$number} };
		}
		$self->{written}{"$client $number"} = 1 if "$operation $outcome" eq 'write ok';
	}
	close $fh;
	return;
}

# What an acquire asks for.
sub kinds
{
	my ($line) = @_;
	my %asked = $line =~ / (slots|with|at_least|delay|lazy)=(\d+)/g;
	my $slots = $asked{slots} // 1;
	my @kinds = ($slots == 0 ? 'reader' : $slots == 1 ? 'exclusive' : 'place');

	push @kinds, 'set' if $asked{with};
	push @kinds, grep { $asked{$_} } qw(at_least delay lazy);
	return @kinds;
}

# Leaves in {written} the acknowledged writes that are missing.
sub read_final
{
	my ($self) = @_;

	open my $fh, '<', "$self->{folder}/final.history" or die "could not read the end of the history: $!\n";
	while (my $line = <$fh>)
	{
		delete $self->{written}{"$1 $2"} if $line =~ / final register .* client=(\d+) op=(\d+)$/;
	}
	close $fh;
	return;
}

sub lost_writes { return scalar keys %{ $_[0]{written} }; }

sub total
{
	my ($self) = @_;
	my $total = 0;

	foreach my $operation (grep { $_ ne 'event' && $_ ne 'kind' } keys %{ $self->{operations} })
	{
		$total += $_ foreach values %{ $self->{operations}{$operation} };
	}
	return $total;
}

# Milliseconds from each loss of a primary to the first grant by the new one:
# called after the loss, and answered after the promotion began.  Not if the old
# primary may still grant.
sub first_grants
{
	my ($self, @failovers) = @_;
	my @times;

	foreach my $failover (grep { $_->{kind} ne 'split-brain' } @failovers)
	{
		my ($first) = grep { $_->[0] >= $failover->{from} && $_->[1] >= $failover->{promoting} } @{ $self->{grants} };

		push @times, int(($first->[1] - $failover->{from}) / 1000) if $first;
	}
	return @times;
}

sub median
{
	my @sorted = sort { $a <=> $b } @_;

	return $sorted[ $#sorted / 2 ];
}

sub seconds { return sprintf '%.2f s', $_[0] / 1000; }

sub show
{
	my ($self, %run) = @_;
	my %operations = %{ $self->{operations} };
	my %faults = %{ $run{faults} };
	my @times = @{ $run{first_grants} };
	my @sorted = sort { $a <=> $b } @times;

	print "\nOperations\n";
	foreach my $operation (grep { $operations{$_} } qw(acquire kind refresh release write check event))
	{
		my %outcomes = %{ $operations{$operation} };
		my @parts = map { "$_ $outcomes{$_}" } sort { $outcomes{$b} <=> $outcomes{$a} || $a cmp $b } keys %outcomes;

		printf "    %-10s %s\n", $operation, join ', ', @parts;
	}
	printf "    %-10s %d\n", 'total', $self->total;
	printf "    %-10s %d\n", 'of the writes that were acknowledged, failovers lost', $self->lost_writes if $run{mode} eq 'async';
	print "Faults\n";
	printf "    %-18s %5d\n", $_, $faults{$_} foreach sort keys %faults;
	if (@times)
	{
		print "Time to the first new grant, of each failover\n";
		printf "    %s\n", join ' ', map { seconds($_) } @times;
		printf "    min %s, median %s, max %s\n", seconds($sorted[0]), seconds(median(@times)), seconds($sorted[-1]);
	}
	return;
}

sub write_summary
{
	my ($self, %run) = @_;

	open my $fh, '>', "$self->{folder}/summary" or die "could not write the summary: $!\n";
	print $fh "$_ $run{$_}\n" foreach qw(mode seed took clients nodes violations);
	print $fh 'lost_writes ' . $self->lost_writes . "\n";
	foreach my $operation (sort keys %{ $self->{operations} })
	{
		my %outcomes = %{ $self->{operations}{$operation} };

		print $fh "operation $operation $_ $outcomes{$_}\n" foreach sort keys %outcomes;
	}
	print $fh "fault $_ $run{faults}{$_}\n" foreach sort keys %{ $run{faults} };
	print $fh "first_grant_ms $_\n" foreach @{ $run{first_grants} };
	close $fh;
	return;
}

1;
