# A process between clients and a server, by TCP, which loses things.
#
#   my $proxy = DlockProxy->new($node->port);
#   $proxy->port
#   $proxy->stop, $proxy->go      nothing is forwarded, nobody is disconnected
#   $proxy->to($port)             from here on, new connections lead there
#   $proxy->eat($text)            the next request that contains this text is executed and committed; its
#   $proxy->eaten                 answer is lost, with the connection; eaten() waits until that has happened
#
# DlockClient has one for unix sockets, which JDBC does not have.  The process ends with the object.

package DlockProxy;

use strict;
use warnings FATAL => 'all';

use IO::Select;
use IO::Socket::INET;
use POSIX ();
use Socket;

use PostgreSQL::Test::Utils;

sub new
{
	my ($class, $port) = @_;
	my $listener = IO::Socket::INET->new(
		LocalAddr => '127.0.0.1',
		Listen => 300) or die "could not listen: $!";
	socketpair(my $ours, my $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die "could not make a socketpair: $!";
	my $self = bless { port => $listener->sockport, control => $ours }, $class;

	$self->{pid} = fork // die "could not fork: $!";
	if ($self->{pid} == 0)
	{
		local $SIG{PIPE} = 'IGNORE';
		close $ours;
		eval { forward($listener, $theirs, $port); 1 } or print STDERR "proxy: $@";
		POSIX::_exit(0);
	}
	close $listener;
	close $theirs;
	return $self;
}

sub port { return $_[0]{port}; }

sub stop { return kill 'STOP', $_[0]{pid}; }

sub go { return kill 'CONT', $_[0]{pid}; }

sub to { return $_[0]->command("to $_[1]"); }

sub eat { return $_[0]->command("eat $_[1]"); }

# Send a command, and wait until it is in force.
sub command
{
	my ($self, $command) = @_;

	syswrite $self->{control}, "$command\n" or die "the proxy is gone: $!";
	return $self->reply;
}

sub eaten { return $_[0]->reply; }

sub reply
{
	my ($self) = @_;

	IO::Select->new($self->{control})->can_read($PostgreSQL::Test::Utils::timeout_default)
	  or die 'the proxy does not answer';
	sysread $self->{control}, my $reply, 1 or die "the proxy is gone: $!";
	return;
}

# Write it all; false if the reader is gone.
sub pass
{
	my ($to, $bytes) = @_;

	while (length $bytes)
	{
		my $written = syswrite $to, $bytes or return 0;
		substr $bytes, 0, $written, '';
	}
	return 1;
}

sub forward
{
	my ($listener, $control, $port) = @_;
	my $select = IO::Select->new($listener, $control);
	my (%other, %hungry, $eat);
	my $disconnect = sub {
		my @both = ($_[0], $other{ $_[0] });

		$select->remove(@both);
		delete @other{@both};
		close $_ foreach @both;
	};

	for (;;)
	{
		foreach my $from ($select->can_read)
		{
			if ($from == $control)
			{
				sysread $control, my $command, 1000 or return;
				$port = $1 if $command =~ /^to (.*)$/;
				$eat = $1 if $command =~ /^eat (.*)$/;
				syswrite $control, '.';
				next;
			}
			if ($from == $listener)
			{
				my $client = $listener->accept or next;
				my $server = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port);

				if (!$server) { close $client; next; }
				$other{$client} = $server;
				$other{$server} = $client;
				$select->add($client, $server);
				next;
			}
			my $to = $other{$from} or next;

			if (!sysread $from, my $bytes, 65536) { $disconnect->($from); }
			elsif (exists $hungry{$from})
			{
				# ReadyForQuery: it is committed
				$hungry{$from} .= $bytes;
				if ($hungry{$from} =~ /Z\0\0\0\x05[ITE]\z/)
				{
					delete $hungry{$from};
					$disconnect->($from);
					syswrite $control, '.';
				}
			}
			elsif (!pass($to, $bytes)) { $disconnect->($from); }
			elsif (defined $eat && index($bytes, $eat) >= 0)
			{
				$hungry{$to} = '';
				$eat = undef;
			}
		}
	}
	return;
}

sub DESTROY
{
	my ($self) = @_;
	local $?;

	return unless $self->{pid};
	kill 'KILL', $self->{pid};
	waitpid $self->{pid}, 0;
	return;
}

1;
