# Clusters that fail over by themselves, for the tests and scripts/failover-time: the
# common part of pg_auto_failover (DlockAutoFailover), Patroni (DlockPatroni) and plain
# streaming replication (DlockStreaming).
#
# A cluster has members: name => { port, data, log, pid of the manager }.  Everything
# listens on 127.0.0.1, on ports that are chosen for each run.

package DlockHa;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use File::Basename qw(basename);
use IPC::Run ();
use POSIX ();
use Test::More;
use Time::HiRes qw(usleep);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

use DlockTest qw(wait_until);

my @clusters;

sub new
{
	my ($class, $name, %params) = @_;
	my $self = bless {
		name => $name,
		params => \%params,
		members => {},
		user => scalar getpwuid($<),
		folder => PostgreSQL::Test::Utils::tempdir_short(),
		base => abs_path(PostgreSQL::Test::Utils::tempdir($name)),
		log => $PostgreSQL::Test::Utils::log_path,
	}, $class;

	push @clusters, $self;
	return $self;
}

# The programs of the PostgreSQL that the tests use, which has dlock.
sub bindir
{
	my ($bindir) = grep { -x "$_/pg_ctl" } split /:/, $ENV{PATH};

	die 'there is no pg_ctl in PATH' unless $bindir;
	return $bindir;
}

# Why a kind of cluster cannot be tested here, or nothing.
sub missing
{
	my (@programs) = @_;
	my @missing = grep {
		my $program = $_;
		!grep { -x "$_/$program" } split /:/, $ENV{PATH}
	} @programs;

	return @missing ? join(', ', @missing) . ' is not installed' : undef;
}

sub new_member
{
	my ($self, $name) = @_;

	return {
		name => $name,
		port => PostgreSQL::Test::Cluster::get_free_port(),
		data => "$self->{base}/$name",
		log => "$self->{log}/" . basename($0, '.pl') . "_$self->{name}_$name.log",
	};
}

sub add_member { my ($self, $name) = @_; return $self->{members}{$name} = $self->new_member($name); }

sub member { return $_[0]->{members}{ $_[1] } // die "there is no $_[1]"; }
sub names { my @names = sort keys %{ $_[0]->{members} }; return @names; }
sub other { my ($self, $name) = @_; return (grep { $_ ne $name } $self->names)[0]; }

# Settings of every server.  The reaper is off, so that only the test writes.  Processes
# are killed, not machines, so nothing needs to be flushed.
sub server_conf
{
	my ($self) = @_;

	return {
		shared_preload_libraries => 'dlock',
		'dlock.reap_interval' => 0,
		autovacuum => 'off',
		log_statement => 'none',
		fsync => $self->{params}{durable} ? 'on' : 'off',
		%{ $self->{params}{conf} // {} }
	};
}

#
# Processes
#

# Start a program in its own session; its output goes to a file.
sub spawn
{
	my ($self, $log, $env, @command) = @_;
	my $pid = fork // die "could not fork: $!";

	if ($pid == 0)
	{
		eval {
			POSIX::setsid();
			open STDIN, '<', '/dev/null' or die;
			open STDOUT, '>>', $log or die;
			open STDERR, '>&', \*STDOUT or die;
			POSIX::close($_) foreach 3 .. 255;		# pipes of the test
			delete @ENV{qw(PGHOST PGPORT PGDATABASE PGAPPNAME)};		# the test's
			%ENV = (%ENV, %$env);
			exec { $command[0] } @command;
		};
		POSIX::_exit(127);
	}
	return $pid;
}

# Run a program to its end.
sub run
{
	my ($self, $log, $env, @command) = @_;
	my $pid = $self->spawn($log, $env, @command);

	waitpid $pid, 0;
	my $status = $?;
	$? = 0;
	return if $status == 0;
	diag($_) foreach (split /\n/, slurp_file($log))[ -20 .. -1 ];
	die "@command: exit status $status, see $log";
}

# The postmaster of a member, from its pid file; 0 if there is none.
sub postmaster
{
	my ($member) = @_;

	open my $fh, '<', "$member->{data}/postmaster.pid" or return 0;
	my $pid = <$fh> // 0;
	$pid =~ s/\s+//g;
	return 0 unless $pid =~ /^\d+$/ && ((readlink "/proc/$pid/cwd") // '') eq $member->{data};
	return $pid;
}

# Processes and all their descendants, parents first.
sub family
{
	my @found = grep { $_ && -d "/proc/$_" } @_;
	my %children;

	foreach my $file (glob '/proc/[0-9]*/stat')
	{
		open my $fh, '<', $file or next;
		my $line = <$fh> // next;

		push @{ $children{$2} }, $1 if $line =~ /^(\d+) \(.*\) \S (\d+) /s;
	}
	for (my $i = 0; $i < @found; $i++)
	{
		foreach my $child (@{ $children{ $found[$i] } // [] })
		{
			push @found, $child unless grep { $_ == $child } @found;
		}
	}
	return @found;
}

sub processes { my ($self, $name) = @_; my $member = $self->member($name); return family($member->{pid}, postmaster($member)); }

# Is none left, not even a zombie?  PostgreSQL would take the pid in a lock file as that
# of a running server.
sub gone
{
	my (@pids) = @_;
	local ($?, $!);

	waitpid $_, POSIX::WNOHANG() foreach @pids;		# those that are ours
	return !grep { -d "/proc/$_" } @pids;
}

# Like wait_until, but it gives up at once if a program that we started has ended by itself.
sub await
{
	my ($self, $what, $condition) = @_;

	wait_until(
		$what,
		sub {
			return 1 if $condition->();
			foreach my $member (values %{ $self->{members} }, @{ $self->{services} // [] })
			{
				next unless $member->{pid} && gone($member->{pid});
				diag($_) foreach grep { defined } (split /\n/, slurp_file($member->{log}))[ -20 .. -1 ];
				die "$member->{name} has ended, see $member->{log}";
			}
			return 0;
		});
	return;
}

# Simulate the loss of a machine: all its processes end at once.
sub strike
{
	my ($self, $name) = @_;
	my @pids = $self->processes($name);

	die "$name does not run" unless @pids;
	kill 'KILL', @pids;
	$self->member($name)->{pid} = 0;
	return @pids;
}

sub kill9
{
	my ($self, $name) = @_;
	my @pids = $self->strike($name);

	wait_until("$name is dead", sub { return gone(@pids) });
	return;
}

# Stop or continue everything of a member, or what was given.
sub pause { my ($self, $name, @pids) = @_; @pids = $self->processes($name) unless @pids; kill 'STOP', @pids; return @pids; }
sub resume { my ($self, @pids) = @_; kill 'CONT', @pids; return; }

# End everything, whatever state it is in: managers first, or they would start their
# servers again, and servers by SIGQUIT, so that they remove their shared memory.
sub stop
{
	my ($self) = @_;
	my @members = (values %{ $self->{members} }, @{ $self->{services} // [] });
	my (@managers, @servers, @rest);

	foreach my $member (@members)
	{
		my $postmaster = $member->{data} ? postmaster($member) : 0;
		my @server = family($postmaster);
		my %server = map { $_ => 1 } @server;

		push @servers, $postmaster if $postmaster;
		push @rest, @server;
		push @managers, grep { !$server{$_} } family($member->{pid});
		$member->{pid} = 0;
	}
	kill 'KILL', @managers;
	kill 'QUIT', @servers;
	kill 'CONT', @servers, @rest;
	for (1 .. 200)
	{
		last if gone(@managers, @servers, @rest);
		usleep(50_000);
	}
	kill 'KILL', @servers, @rest;
	return;
}

END
{
	my $status = $?;

	eval { $_->stop; 1 } or warn $@ foreach @clusters;
	$? = $status;
}

#
# SQL
#

sub conninfo
{
	my ($self, $name, %params) = @_;

	return $self->multi_conninfo([ $self->member($name)->{port} ], %params);
}

# All members; by default the one that accepts writes.
sub all_conninfo
{
	my ($self, %params) = @_;

	return $self->multi_conninfo([ map { $self->member($_)->{port} } $self->names ],
		target_session_attrs => 'read-write', %params);
}

sub multi_conninfo
{
	my ($self, $ports, %params) = @_;
	my %words = (
		host => join(',', map { '127.0.0.1' } @$ports),
		port => join(',', @$ports),
		user => $self->{user},
		dbname => 'postgres',
		connect_timeout => 5,
		sslmode => 'disable',
		gssencmode => 'disable',
		%params);

	return join ' ', map { "$_=$words{$_}" } grep { defined $words{$_} } sort keys %words;
}

# Statements are passed by -c: if psql cannot connect, it does not read them, and a pipe
# would break.
sub psql_command
{
	my ($conninfo) = @_;

	return ('psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose', '-d', $conninfo);
}

# Exit status, output and messages of psql.
sub psql
{
	my ($self, $conninfo, $sql) = @_;
	my ($out, $err) = ('', '');

	my $ran = eval {
		IPC::Run::run([ psql_command($conninfo), '-c', $sql ],
			'<', \undef, '>', \$out, '2>', \$err,
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	};

	die "psql: $@" unless defined $ran;
	chomp($out, $err);
	return ($ran ? 0 : 1, $out, $err);
}

sub answer
{
	my ($self, $conninfo, $sql) = @_;
	my ($failed, $out, $err) = $self->psql($conninfo, $sql);

	die "$sql: $err" if $failed;
	return $out;
}

# The same for one member.
sub ask { my ($self, $name, $sql) = @_; return $self->answer($self->conninfo($name), $sql); }

# Does the query return true on a member?  One that does not answer counts as no.
sub says
{
	my ($self, $name, $sql, $expected) = @_;
	my ($failed, $out) = $self->psql($self->conninfo($name), $sql);

	return !$failed && $out eq ($expected // 't');
}

sub until_says
{
	my ($self, $name, $sql, $expected, $what) = @_;

	wait_until($what // "$name says $sql", sub { return $self->says($name, $sql, $expected) });
	return;
}

# The member that accepts writes, if any.
sub primary
{
	my ($self) = @_;

	return (grep { $self->says($_, 'SELECT pg_is_in_recovery()', 'f') } $self->names)[0];
}

# Wait until a member is primary and has a synchronous standby.
sub until_synchronous
{
	my ($self, $name) = @_;

	$self->until_says($name, q{
SELECT NOT pg_is_in_recovery() AND current_setting('synchronous_standby_names') <> ''
       AND count(*) > 0
  FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')},
		't', "$name is primary and has a synchronous standby");
	return;
}

1;
