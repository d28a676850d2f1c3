# The nemesis: causes faults (TortureFaults.pm), one after the other.
#
# While one lasts, clients may fail, too.  The cluster is repaired before the next
# fault.

package TortureNemesis;

use strict;
use warnings FATAL => 'all';

use Time::HiRes qw(sleep);

use TortureChance qw(shuffle some);
use TortureCluster;
use TortureFaults;

sub new
{
	my ($class, %params) = @_;
	my $self = bless { injected => {}, failovers => [], timers => [], %params }, $class;

	open $self->{history}, '>>', "$self->{folder}/nemesis.history" or die "could not write the history: $!\n";
	$self->note("mode $self->{mode}");
	return $self;
}

# Write a line of the history.
sub note
{
	my ($self, $line, $at) = @_;

	syswrite $self->{history}, ($at // TortureCluster::microseconds()) . " $line\n";
	return;
}

sub say_so
{
	my ($self, $kind, $text) = @_;

	printf "%7.1f s  %-16s %s\n", TortureCluster::now() - $self->{began}, $kind, $text;
	return;
}

# A fault begins.
sub fault
{
	my ($self, $kind, $where, $text) = @_;

	$self->{injected}{$kind}++;
	$self->note("fault $kind $where");
	$self->say_so($kind, $text // $where);
	return;
}

sub heal
{
	my ($self, $kind, $where) = @_;

	$self->note("heal $kind $where");
	return;
}

# Wait about that long; whatever is due meanwhile is done.
sub pass
{
	my ($self, $seconds) = @_;
	my $until = TortureCluster::now() + $seconds;

	while (1)
	{
		my $now = TortureCluster::now();
		my @due = grep { $_->[0] <= $now } @{ $self->{timers} };

		$self->{timers} = [ grep { $_->[0] > $now } @{ $self->{timers} } ];
		$_->[1]->() foreach @due;
		$self->{clients}->look;
		last if $now >= $until;
		sleep 0.02;
	}
	return;
}

sub later
{
	my ($self, $seconds, $what) = @_;

	push @{ $self->{timers} }, [ TortureCluster::now() + $seconds, $what ];
	return;
}

sub mended
{
	my ($self, $kind, $where) = @_;

	$self->{cluster}->mend or die "after $kind the cluster does not come back\n";
	$self->heal($kind, $where) unless $kind eq 'split-brain';
	return;
}

# One fault after the other, each kind once before any is repeated, for this many
# seconds or faults.
sub rage
{
	my ($self, $seconds, $count, @kinds) = @_;
	my $until = TortureCluster::now() + $seconds;
	my @deck;

	while (TortureCluster::now() < $until && (!defined $count || $count-- > 0))
	{
		@deck = shuffle(@kinds) unless @deck;
		my $kind = shift @deck;

		TortureFaults::accident($self) unless $kind =~ /^client-/ || $self->{quiet};
		TortureFaults::cause($self, $kind);
		$self->{cluster}->mend or die "after $kind the cluster does not come back\n";
		$self->pass(some(0.3, 1.5));
	}
	return;
}

# From here on there are no faults.
sub leave
{
	my ($self) = @_;
	my $clients = $self->{clients};

	$self->{timers} = [];
	foreach my $number (sort keys %{ $clients->{stopped} })
	{
		$clients->continue_one($number);
		$self->heal('client-stop', "client=$number");
	}
	$self->{cluster}->set_clock($_, 0) foreach @{ $self->{cluster}{names} };
	$self->{cluster}->mend or die "at the end the cluster does not come back\n";
	$self->note('healthy');
	$self->say_so('healthy', 'everything is undone');
	return;
}

1;
