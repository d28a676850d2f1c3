# The cluster of a torture run: servers, the links between them, and what a high
# availability manager does: promote, rewind, attach again.
#
# Servers listen on Unix sockets only.  Everything else reaches them through
# links (links.c), which have loopback ports that the kernel chose: one for each
# pair of servers, and one for each pair of client group and server.
#
# In mode sync the manager follows these rules, and so loses nothing that was
# acknowledged:
#
#	- {sync} names the standby that may be promoted.  It is set only when the
#	  primary waits for that standby with every commit, and the standby has all
#	  that was written before.
# 	- A primary continues alone only after {sync} was cleared.
# 	- A promoted server begins alone, because its old primary is gone.

package TortureCluster;

use strict;
use warnings FATAL => 'all';

use IO::Handle;
use IPC::Open2 qw(open2);
use POSIX ();
use Time::HiRes qw(clock_gettime sleep CLOCK_MONOTONIC);

use constant GROUPS => 2;    # of clients, with links of their own

sub now { return clock_gettime(CLOCK_MONOTONIC); }
sub microseconds { return int(now() * 1e6); }

# bindir: of PostgreSQL; programs: the folder of links and nospace.so; work: a
# folder with a short name; nodes, mode, clock and disk: the kind of run.
sub new
{
	my ($class, %params) = @_;
	my $self = bless {%params}, $class;
	my @names = ('a' .. 'z')[ 0 .. $self->{nodes} - 1 ];

	$self->{names} = \@names;
	$self->{primary} = $names[0];
	mkdir "$self->{work}/$_" foreach @names, 'sock', 'log';
	mkdir "$self->{work}/sock/$_" foreach @names;
	$self->start_links;
	return $self;
}

#
# Commands
#

# Run a command for at most this many seconds: (exit status, output).
sub run
{
	my ($self, $seconds, @command) = @_;
	my $pid = open(my $out, '-|') // die "could not fork: $!";

	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDERR, '>&', \*STDOUT;
		exec 'timeout', '-k', '2', $seconds, @command or POSIX::_exit(127);
	}
	local $/ = undef;
	my $said = <$out> // '';

	close $out;
	return ($? >> 8, $said);
}

sub run_or_die
{
	my ($self, $seconds, @command) = @_;
	my ($status, $said) = $self->run($seconds, @command);

	die "@command: exit status $status\n$said\n" if $status != 0;
	return $said;
}

# What a server answers, or undef.
sub ask
{
	my ($self, $node, $sql, $seconds) = @_;
	my ($status, $said) = $self->run(
		$seconds // 10, "$self->{bindir}/psql", '-X', '-A', '-t', '-q', '-v', 'ON_ERROR_STOP=1',
		'-d', "host=$self->{work}/sock/$node dbname=postgres user=postgres application_name=nemesis options='-c client_min_messages=error'", '-c', $sql);

	chomp $said;
	return $status == 0 ? $said : undef;
}

# Ask until it is true; false after that time.
sub until_true
{
	my ($self, $seconds, $condition) = @_;
	my $until = now() + $seconds;

	while (1)
	{
		return 1 if $condition->();
		return 0 if now() >= $until;
		sleep 0.05;
	}
}

sub until_sql
{
	my ($self, $node, $sql, $seconds) = @_;

	return $self->until_true($seconds, sub { return ($self->ask($node, $sql) // '') eq 't' });
}

#
# Links
#

sub start_links
{
	my ($self) = @_;
	my @names = @{ $self->{names} };

	$self->{links_pid} = open2($self->{links_out}, $self->{links_in}, "$self->{programs}/links");
	foreach my $to (@names)
	{
		foreach my $from (@names, map { "g$_" } 0 .. GROUPS - 1)
		{
			next if $from eq $to;
			$self->{ports}{"$from$to"} = $self->link_command("add $from$to $self->{work}/sock/$to/.s.PGSQL.5432");
		}
	}
	return;
}

sub link_command
{
	my ($self, $command) = @_;
	my $answer;

	$self->{links_in}->printflush("$command\n");
	$answer = readline $self->{links_out};
	die "links: no answer to $command\n" unless defined $answer;
	chomp $answer;
	die "links: $command: $answer\n" unless $answer =~ /^(ok|\d+)$/;
	return $answer;
}

sub links
{
	my ($self, $command, @links) = @_;

	foreach my $link (@links)
	{
		my ($verb, @more) = split / /, $command;

		$self->link_command(join ' ', $verb, $link, @more);
	}
	return;
}

# The links of clients to a server.
sub client_links
{
	my ($self, $to) = @_;

	return map { "g$_$to" } 0 .. GROUPS - 1;
}

# The links between a server and the others, in both directions.
sub node_links
{
	my ($self, $node) = @_;

	return map { ("$node$_", "$_$node") } grep { $_ ne $node } @{ $self->{names} };
}

sub heal_links
{
	my ($self) = @_;

	$self->links('heal', sort keys %{ $self->{ports} });
	$self->links('delay 0', sort keys %{ $self->{ports} });
	return;
}

# Where a group of clients finds the servers, in order.
sub client_ports
{
	my ($self, $group) = @_;

	return map { $self->{ports}{"g$group$_"} } @{ $self->{names} };
}

#
# Servers
#

sub data { return "$_[0]{work}/$_[1]"; }
sub log_file { return "$_[0]{work}/log/$_[1].log"; }

sub write_file
{
	my ($path, $text) = @_;

	open my $fh, '>', "$path.new" or die "could not create $path: $!\n";
	print $fh $text;
	close $fh;
	rename "$path.new", $path or die "could not rename $path: $!\n";
	return;
}

sub configure
{
	my ($self, $node) = @_;
	my $preload = $self->{preload} ? 'dlock' : '';

	write_file($self->data($node) . '/postgresql.conf', <<"END");
listen_addresses = ''
unix_socket_directories = '$self->{work}/sock/$node'
port = 5432
shared_preload_libraries = '$preload'
dlock.reap_interval = '100ms'
# only processes fail here, not power
fsync = off
# the next start in the folder finds what a killed server leaves
dynamic_shared_memory_type = mmap
shared_buffers = '16MB'
max_connections = 300
max_wal_senders = 8
wal_level = replica
wal_log_hints = on
wal_keep_size = '256MB'
min_wal_size = '2MB'
wal_sender_timeout = '3s'
wal_receiver_timeout = '3s'
wal_retrieve_retry_interval = '100ms'
wal_receiver_status_interval = '1s'
hot_standby = on
restart_after_crash = on
log_line_prefix = '%m [%p] %a '
dlock.max_ttl = '15s'
dlock.default_ttl = '10s'
include_if_exists = 'roles.conf'
END
	$self->set_roles($node);
	return;
}

# Which server this one follows, and for which it waits.
sub set_roles
{
	my ($self, $node) = @_;
	my $follows = $self->{follows}{$node};
	my $waits = $self->{waits}{$node} // '';
	my $conninfo = '';

	$conninfo = "host=127.0.0.1 port=$self->{ports}{\"$node$follows\"} user=postgres application_name=$node connect_timeout=2"
	  if $follows;
	write_file($self->data($node) . '/roles.conf',
		"primary_conninfo = '$conninfo'\nsynchronous_standby_names = '$waits'\n");
	return;
}

sub reload
{
	my ($self, $node) = @_;
	my $pid = $self->postmaster($node);

	$self->set_roles($node);
	kill 'HUP', $pid if $pid;
	return;
}

sub create_primary
{
	my ($self) = @_;
	my $node = $self->{primary};

	$self->run_or_die(120, "$self->{bindir}/initdb", '-D', $self->data($node), '-U', 'postgres',
		'-A', 'trust', '-N', '--wal-segsize=1', '--no-locale', '-E', 'UTF8');
	$self->configure($node);
	$self->start($node);
	$self->until_sql($node, 'SELECT true', 60) or die "server $node does not start\n";
	return;
}

sub create_standby
{
	my ($self, $node) = @_;

	$self->run_or_die(120, 'rm', '-rf', $self->data($node));
	$self->run_or_die(120, "$self->{bindir}/pg_basebackup", '-D', $self->data($node), '-c', 'fast', '-N',
		'-d', "host=$self->{work}/sock/$self->{primary} user=postgres");
	$self->{follows}{$node} = $self->{primary};
	$self->{waits}{$node} = '';
	$self->configure($node);
	write_file($self->data($node) . '/standby.signal', '');
	$self->start($node);
	return;
}

# The faults of a server's clock and disk.
sub environment
{
	my ($self, $node) = @_;
	my @preload;
	my @variables = ('LC_ALL=C');

	if ($self->{clock})
	{
		my ($faketime) = glob '/usr/lib/*/faketime/libfaketime.so.1';

		die "libfaketime is missing (Debian package faketime)\n" unless $faketime;
		$self->set_clock($node, $self->{offset}{$node} // 0);
		push @preload, $faketime;
		push @variables, 'FAKETIME_DONT_FAKE_MONOTONIC=1', 'FAKETIME_DONT_RESET=1',
		  'FAKETIME_CACHE_DURATION=1', "FAKETIME_TIMESTAMP_FILE=$self->{work}/$node.clock";
	}
	if ($self->{disk})
	{
		push @preload, "$self->{programs}/nospace.so";
		push @variables, 'NOSPACE_DIR=' . $self->data($node) . '/', "NOSPACE_FLAG=$self->{work}/$node.full";
	}
	push @variables, 'LD_PRELOAD=' . join ':', @preload if @preload;
	return @variables;
}

sub set_clock
{
	my ($self, $node, $seconds) = @_;

	$self->{offset}{$node} = $seconds;
	write_file("$self->{work}/$node.clock", sprintf "%+d\n", $seconds);
	return;
}

sub set_full
{
	my ($self, $node, $full) = @_;
	my $flag = "$self->{work}/$node.full";

	if ($full) { write_file($flag, ''); }
	else { unlink $flag; }
	return;
}

# Waits until it has begun, not until it is up: before that it looks as if it were
# dead, and the next start would take its file away.
sub start
{
	my ($self, $node) = @_;

	# Of one that was killed.  Its process id may be in use again, by another
	# server of this user: PostgreSQL would take that for it.
	unlink $self->data($node) . '/postmaster.pid', "$self->{work}/sock/$node/.s.PGSQL.5432.lock"
	  unless $self->postmaster($node);
	my @command = ('env', $self->environment($node), "$self->{bindir}/pg_ctl", '-D', $self->data($node),
		'-l', $self->log_file($node), '-s', '-W', 'start');

	# Its programs may end before they have said a word: libfaketime shares memory with
	# pg_ctl, which does not wait.
	for (1 .. 3)
	{
		# one that is just being started has an empty file for a moment
		my ($status, $said) = (1, 'is empty');
		for (my $i = 0; $i < 100 && $status != 0 && $said =~ /is empty/; $i++)
		{
			sleep 0.1 if $i > 0;
			($status, $said) = $self->run(30, @command);
		}
		die "@command: exit status $status\n$said\n" if $status != 0;
		last if $self->until_true(5, sub { return $self->postmaster($node) });
	}
	return;
}

sub postmaster
{
	my ($self, $node) = @_;

	open my $fh, '<', $self->data($node) . '/postmaster.pid' or return 0;
	my $pid = <$fh> // 0;

	close $fh;
	chomp $pid;
	return 0 unless $pid =~ /^\d+$/ && is_ours($pid, $self->{bindir});
	$self->{postmasters}{$pid} = 1;
	return $pid;
}

# A process id may have been reused by now.
sub is_ours
{
	my ($pid, $bindir) = @_;
	my $program = readlink "/proc/$pid/exe";

	return defined $program && $program =~ m{^\Q$bindir\E/};
}

sub is_up
{
	my ($self, $node) = @_;

	return $self->postmaster($node) && defined $self->ask($node, 'SELECT 1', 5);
}

sub children
{
	my ($self, $parent) = @_;
	my @children;

	foreach my $stat (glob '/proc/[0-9]*/stat')
	{
		open my $fh, '<', $stat or next;
		my $line = <$fh> // '';

		close $fh;
		push @children, $1 if $line =~ /^(\d+) \(.*\) \S (\d+) / && $2 == $parent;
	}
	return @children;
}

# kill -9 of all processes of the server.
sub kill_node
{
	my ($self, $node) = @_;
	my $postmaster = $self->postmaster($node) or return;
	my @all;

	# a stopped process starts no new children while we look
	kill 'STOP', $postmaster;
	@all = ($postmaster, $self->children($postmaster));
	kill 'KILL', @all;
	$self->until_true(30, sub { return !grep { is_ours($_, $self->{bindir}) } @all })
	  or die "server $node does not die\n";
	return;
}

sub stop_node
{
	my ($self, $node, $how) = @_;

	return unless $self->postmaster($node);
	kill 'CONT', $self->postmaster($node);
	$self->run(30, "$self->{bindir}/pg_ctl", '-D', $self->data($node), '-s', '-w', '-t', '20', '-m', $how, 'stop');
	$self->kill_node($node);
	return;
}

#
# The manager
#

sub standbys
{
	my ($self) = @_;

	return grep { $_ ne $self->{primary} } @{ $self->{names} };
}

# From now on, wait for the standby with every commit.
sub make_sync
{
	my ($self, $standby) = @_;
	my $primary = $self->{primary};
	my $lsn;

	$self->{waits}{$primary} = $standby;
	$self->reload($primary);
	$self->until_sql($primary,
		"SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = '$standby' AND state = 'streaming' AND sync_state = 'sync'",
		30)
	  or return 0;
	# The checkpointer tells the others that there are synchronous standbys;
	# when it has made a checkpoint it has seen the file.
	defined $self->ask($primary, 'CHECKPOINT', 30) or return 0;
	$lsn = $self->ask($primary, 'SELECT pg_current_wal_insert_lsn()') // return 0;
	$self->until_sql($primary,
		"SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = '$standby' AND flush_lsn >= '$lsn'", 30)
	  or return 0;
	$self->{sync} = $standby;
	return 1;
}

sub make_alone
{
	my ($self) = @_;

	$self->{sync} = undef;
	$self->{waits}{ $self->{primary} } = '';
	$self->reload($self->{primary});
	return;
}

# The standby becomes the primary.  Only the standby itself is told.
sub promote
{
	my ($self, $standby) = @_;

	$self->{sync} = undef;
	$self->{primary} = $standby;
	$self->{follows}{$standby} = undef;
	$self->{waits}{$standby} = '';
	$self->reload($standby);
	$self->run_or_die(70, "$self->{bindir}/pg_ctl", '-D', $self->data($standby), '-s', '-w', '-t', '60', 'promote');
	return;
}

sub streams
{
	my ($self, $standby, $seconds) = @_;

	return $self->until_sql($self->{primary},
		"SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = '$standby' AND state = 'streaming'",
		$seconds);
}

# A server becomes a standby of the primary, whatever it was before.
sub attach
{
	my ($self, $node) = @_;
	my $status = 1;
	my $said;

	$self->stop_node($node, 'fast');
	# what the source has done since its promotion must be in its control file
	$self->ask($self->{primary}, 'CHECKPOINT', 30);
	$self->{waits}{$node} = '';
	$self->{follows}{$node} = undef;
	$self->configure($node);
	($status, $said) = $self->run(90, "$self->{bindir}/pg_rewind", '-D', $self->data($node), '-N',
		'--source-server', "host=$self->{work}/sock/$self->{primary} user=postgres dbname=postgres");
	$self->{follows}{$node} = $self->{primary};
	if ($status == 0)
	{
		$self->configure($node);
		write_file($self->data($node) . '/standby.signal', '');
		$self->start($node);
		return 'rewound' if $self->streams($node, 20);
		$self->stop_node($node, 'immediate');
	}
	$self->create_standby($node);
	$self->streams($node, 60) or die "server $node does not follow $self->{primary}\n";
	return 'copied';
}

# Repair everything, whatever was done: true, or false.
sub mend
{
	my ($self) = @_;
	my $primary = $self->{primary};

	$self->heal_links;
	foreach my $node (@{ $self->{names} })
	{
		$self->set_full($node, 0);
		# it may be stopping or starting
		$self->until_true(
			60,
			sub {
				return 1 if $self->is_up($node);
				$self->start($node) unless $self->postmaster($node);
				sleep 0.1;
				return 0;
			}) or return 0;
	}
	($self->ask($primary, 'SELECT pg_is_in_recovery()') // '') eq 'f' or return 0;
	foreach my $node ($self->standbys)
	{
		$self->attach($node) unless ($self->{follows}{$node} // '') eq $primary && $self->streams($node, 10);
	}
	if ($self->{mode} eq 'sync' && !$self->{sync})
	{
		my @standbys = $self->standbys;

		$self->make_sync($standbys[ int rand @standbys ]) or return 0;
	}
	# a transaction succeeds
	return defined $self->ask($primary, 'UPDATE alive SET at = clock_timestamp()', 30);
}

sub stop
{
	my ($self) = @_;

	foreach my $node (@{ $self->{names} })
	{
		my $pid = $self->postmaster($node) or next;

		kill 'CONT', $self->children($pid), $pid;
		$self->stop_node($node, 'immediate');
	}
	# libfaketime's, of servers that were killed
	unlink map { ("/dev/shm/faketime_shm_$_", "/dev/shm/sem.faketime_sem_$_") } keys %{ $self->{postmasters} };
	if ($self->{links_pid})
	{
		close $self->{links_in};
		close $self->{links_out};
		waitpid $self->{links_pid}, 0;
		$self->{links_pid} = 0;
	}
	return;
}

1;
