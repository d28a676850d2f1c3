# The clients of a torture run (client.c).  Each has a number that is never
# reused.

package TortureClients;

use strict;
use warnings FATAL => 'all';

use POSIX qw(:sys_wait_h);
use Time::HiRes qw(sleep);

use TortureCluster;

sub new
{
	my ($class, %params) = @_;

	return bless { next => 1, pids => {}, stopped => {}, failed => [], %params }, $class;
}

sub start
{
	my ($self) = @_;
	my $number = $self->{next}++;
	my $group = $number % TortureCluster::GROUPS;
	my $pid = fork // die "could not fork: $!\n";

	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>>', "$self->{folder}/clients.out";
		open STDERR, '>&', \*STDOUT;
		exec "$self->{programs}/client", $number, $self->{seed} * 1000 + $number,
		  "$self->{folder}/client-$number.history", join(',', $self->{cluster}->client_ports($group)),
		  'dbname=postgres user=postgres'
		  or POSIX::_exit(127);
	}
	$self->{pids}{$number} = $pid;
	return $number;
}

# A client that is neither stopped nor gone.
sub any
{
	my ($self) = @_;
	my @numbers = sort { $a <=> $b } grep { !$self->{stopped}{$_} } keys %{ $self->{pids} };

	return @numbers ? $numbers[ int rand @numbers ] : undef;
}

# kill -9, and start another one in its place.
sub replace
{
	my ($self, $number) = @_;

	$self->continue_one($number) if $self->{stopped}{$number};
	kill 'KILL', $self->{pids}{$number};
	waitpid $self->{pids}{$number}, 0;
	delete $self->{pids}{$number};
	return $self->start;
}

sub stop_one
{
	my ($self, $number) = @_;

	kill 'STOP', $self->{pids}{$number};
	$self->{stopped}{$number} = 1;
	return;
}

sub continue_one
{
	my ($self, $number) = @_;

	kill 'CONT', $self->{pids}{$number};
	delete $self->{stopped}{$number};
	return;
}

# No client must end before it is told to.
sub look
{
	my ($self) = @_;

	foreach my $number (keys %{ $self->{pids} })
	{
		next unless waitpid($self->{pids}{$number}, WNOHANG) > 0;
		delete $self->{pids}{$number};
		push @{ $self->{failed} }, "client $number ended by itself, with wait status $?";
	}
	return;
}

# Let all clients end; those that do not are killed and reported.
sub finish
{
	my ($self, $seconds) = @_;
	my $until = TortureCluster::now() + $seconds;

	$self->continue_one($_) foreach keys %{ $self->{stopped} };
	kill 'TERM', values %{ $self->{pids} };
	while (%{ $self->{pids} } && TortureCluster::now() < $until)
	{
		foreach my $number (keys %{ $self->{pids} })
		{
			next unless waitpid($self->{pids}{$number}, WNOHANG) > 0;
			push @{ $self->{failed} }, "client $number ended with wait status $?" if $?;
			delete $self->{pids}{$number};
		}
		sleep 0.02;
	}
	push @{ $self->{failed} }, "client $_ does not end" foreach sort keys %{ $self->{pids} };
	$self->kill_all;
	return;
}

sub kill_all
{
	my ($self) = @_;

	foreach my $pid (values %{ $self->{pids} })
	{
		kill 'KILL', $pid;
		waitpid $pid, 0;
	}
	$self->{pids} = {};
	return;
}

1;
