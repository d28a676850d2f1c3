# libdlock for the TAP tests: its test programs, and a driver that executes commands
# (test/lib/client/driver.c).

package DlockClient;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IO::Select;
use IO::Socket::UNIX;
use IPC::Run;
use POSIX ();
use Test::More;

use PostgreSQL::Test::Utils;

our @EXPORT = qw(client_build client_copy client_dir conninfo driver proxy);

my ($dir, @drivers);

sub client_dir
{
	($dir) = grep { -f "$_/dlock.h" } map { "$_/client/c" } '.', '..' unless $dir;
	die 'there is no client/c/dlock.h' unless $dir;
	return $dir;
}

# Nothing to do if they have been built.
sub client_build
{
	my (@targets) = @_;

	@targets = ('tests', 'examples') unless @targets;
	system_or_bail('make', '-s', '-C', client_dir(), @targets);
	return;
}

# The sources of library, tests and command line, in a folder of their own; returns that of the library.
sub client_copy
{
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my $source = client_dir() . '/..';

	system_or_bail('mkdir', '-p', "$folder/client", "$folder/test/unit", "$folder/test/lib");
	system_or_bail('cp', "$source/../dlock.control", $folder);
	system_or_bail('cp', '-r', "$source/c", "$source/cli", "$folder/client");
	system_or_bail('cp', '-r', "$source/../test/$_/client", "$folder/test/$_") foreach 'unit', 'lib';
	system_or_bail('make', '-s', '-C', "$folder/client/c", 'clean');
	return "$folder/client/c";
}

sub conninfo
{
	my ($node, %params) = @_;

	return join ' ', 'host=' . ($params{host} // $node->host),
	  'port=' . ($params{port} // $node->port), 'dbname=' . ($params{dbname} // 'postgres'),
	  $params{more} // '';
}

# A driver, with its handle open.
sub driver
{
	my ($conninfo, %params) = @_;
	my $self = bless { in => '', out => '', err => '', answers => [], events => [] }, __PACKAGE__;

	$self->{timer} = IPC::Run::timer($PostgreSQL::Test::Utils::timeout_default);
	delete local $ENV{PGAPPNAME};		# the library has a name of its own
	$self->{run} = IPC::Run::start(
		[ @{ $params{under} // [] }, $params{program} // client_dir() . '/../../test/lib/client/driver' ],
		'<', \$self->{in}, '>', \$self->{out}, '2>', \$self->{err}, $self->{timer});
	push @drivers, $self;
	my %open = %{ $params{open} // {} };
	is($self->ask('open', $conninfo, %open)->{status}, 'ok', 'opened') if defined $conninfo;
	return $self;
}

# Send a command: a key, and options.
sub send
{
	my ($self, $command, $key, %options) = @_;

	$self->{in} .= join("\t", $command, $key // '', map { "$_=$options{$_}" } sort keys %options) . "\n";
	$self->{run}->pump_nb;
	return;
}

sub digest
{
	my ($self) = @_;

	while ($self->{out} =~ s/^([^\n]*)\n//)
	{
		my $line = $1;

		note $line;
		if ($line =~ /^= (\w+) (.*?) ?sqlstate=(\w*) message=(.*) hint=(.*)$/)
		{
			my %answer = (status => $1, sqlstate => $3, message => $4, hint => $5);
			my $more = $2;

			$answer{$1} = $2 while $more =~ /(\w+)=(\S*)/g;
			push @{ $self->{answers} }, \%answer;
		}
		elsif ($line =~ /^! (\w+) (.*?) version=(\d+) reason=(\w+) left=(\d+) owner=(\d) nested=(\w+)$/)
		{
			push @{ $self->{events} },
			  {
				event => $1,
				key => $2,
				version => $3,
				reason => $4,
				left => $5,
				owner => $6,
				nested => $7
			  };
		}
		else
		{
			die "the driver said: $line";
		}
	}
	return;
}

sub await
{
	my ($self, $what, $condition) = @_;

	$self->{timer}->start($PostgreSQL::Test::Utils::timeout_default);
	for (;;)
	{
		$self->digest;
		last if $condition->();
		die "the driver is gone while waiting for $what: $self->{err}" unless $self->{run}->pumpable;
		eval { $self->{run}->pump; 1 } or die "waiting for $what: $@ $self->{err}";
	}
	$self->{timer}->reset;
	return;
}

# The answer to the last command.
sub answer
{
	my ($self) = @_;

	$self->await('an answer', sub { return @{ $self->{answers} } > 0 });
	return shift @{ $self->{answers} };
}

sub ask
{
	my ($self, @command) = @_;

	$self->send(@command);
	return $self->answer;
}

# The events so far, as "lost key deadline"; they are forgotten.
sub events
{
	my ($self) = @_;

	$self->{run}->pump_nb if $self->{run}->pumpable;
	$self->digest;
	my @events = map { "$_->{event} $_->{key}" . ($_->{reason} eq 'none' ? '' : " $_->{reason}") } @{ $self->{events} };
	$self->{events} = [];
	return join ', ', @events;
}

# Wait for an event of a key, and return it; earlier ones are forgotten.
sub event
{
	my ($self, $event, $key) = @_;
	my $found;

	$self->await(
		"event $event of $key",
		sub {
			while (my $next = shift @{ $self->{events} })
			{
				if ($next->{event} eq $event && $next->{key} eq $key)
				{
					$found = $next;
					return 1;
				}
			}
			return 0;
		});
	return $found;
}

sub signal
{
	my ($self, $signal) = @_;

	$self->{run}->signal($signal);
	return;
}

# The end; returns what it wrote to stderr.
sub finish
{
	my ($self) = @_;

	# a server may have inherited its standard input and keep it open
	$self->{in} .= "quit\n";
	$self->{timer}->start($PostgreSQL::Test::Utils::timeout_default);
	$self->{run}->finish;
	$self->{finished} = 1;
	$self->digest;
	is($self->{run}->result(0), 0, 'the driver came to a good end');
	return $self->{err};
}

# A process between the client and a server, to be stopped; the sockets of both are files.
# cut => the first request that matches is answered, and then the connection breaks before
# its commit.  swallow => a request that matches gets lost, "times" times.  change => a
# function of a connection and of what the server said there; its result is sent instead.
sub proxy
{
	my ($to, %params) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir_short();
	my $self = bless { host => $folder, port => 5432 }, 'DlockClient::Proxy';
	my $listener = IO::Socket::UNIX->new(
		Local => "$folder/.s.PGSQL.5432",
		Type => SOCK_STREAM(),
		Listen => 100) or die "could not listen: $!";

	$self->{pid} = fork // die "could not fork: $!";
	if ($self->{pid} == 0)
	{
		local $SIG{PIPE} = 'IGNORE';
		eval { forward($listener, $to->host . '/.s.PGSQL.' . $to->port, %params); };
		POSIX::_exit(0);
	}
	close $listener;
	return $self;
}

sub forward
{
	my ($listener, $to, %params) = @_;
	my $select = IO::Select->new($listener);
	my (%other, %cut, %is_server);

	for (;;)
	{
		foreach my $from ($select->can_read)
		{
			if ($from == $listener)
			{
				my $client = $listener->accept or next;
				my $server = IO::Socket::UNIX->new(Peer => $to, Type => SOCK_STREAM());

				if (!$server) { close $client; next; }
				$other{$client} = $server;
				$other{$server} = $client;
				$is_server{$server} = 1;
				$select->add($client, $server);
				next;
			}
			next unless $other{$from};
			my $bytes;
			my $to_other = $other{$from};
			my $n = sysread $from, $bytes, 65536;

			# a Flush instead of the Sync: the answer comes, the commit does not
			if ($params{cut} && $n && $bytes =~ $params{cut} && $bytes =~ s/S\0\0\0\x04\z/H\0\0\0\x04/)
			{
				delete $params{cut};
				$cut{$to_other} = 1;
			}
			my $last = $cut{$from} && $n && $bytes =~ /C\0\0\0.[A-Z]+[ 0-9]*\0\z/s;

			$bytes = $params{change}->($from, $bytes) if $params{change} && $n && $is_server{$from};

			# a request that never arrives
			if ($params{swallow} && $n && $bytes =~ $params{swallow} && $params{times}-- > 0) { $bytes = ''; }

			while ($n && length $bytes)
			{
				my $written = syswrite $to_other, $bytes;

				if (!$written) { $n = 0; last; }
				substr $bytes, 0, $written, '';
			}
			if (!$n || $last)
			{
				$select->remove($from, $to_other);
				delete @other{ $from, $to_other };
				close $from;
				close $to_other;
			}
		}
	}
	return;
}

# A driver may be in the middle of a long call when a test dies.
END
{
	my $status = $?;

	foreach my $self (grep { !$_->{finished} } @drivers)
	{
		kill 'CONT', map { $_->{PID} } @{ $self->{run}{KIDS} };
		eval { $self->{run}->kill_kill(grace => 0); };
	}
	$? = $status;
}

package DlockClient::Proxy;

sub stop { return kill 'STOP', $_[0]->{pid}; }
sub go { return kill 'CONT', $_[0]->{pid}; }

sub leave
{
	my ($self) = @_;

	return unless $self->{pid};
	kill 'KILL', $self->{pid};
	waitpid $self->{pid}, 0;
	$self->{pid} = 0;
	return;
}

sub DESTROY
{
	local $?;
	$_[0]->leave;
	return;
}

1;
