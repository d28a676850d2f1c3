# What the tests of the command line share.

package DlockCli;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename qw(dirname);
use IO::Select;
use IO::Socket::UNIX;
use IPC::Run ();
use JSON::PP;
use POSIX ();
use Test::More;
use Time::HiRes qw(usleep);

use PostgreSQL::Test::Utils;

use DlockTest;

our @EXPORT = qw(
  dlock_program server_is dlock_env dlock dlock_is dlock_json dlock_json_code start_dlock end_dlock
  group_members slurp file_has temp_file start_proxy script_file
);

my $program = $ENV{DLOCK} // abs_path(dirname(__FILE__) . '/../../client/cli') . '/dlock';
my %env;
my @started;

sub dlock_program
{
	die "there is no $program; build the client first" unless -x $program;
	return $program;
}

# The server that dlock connects to from here on, unless it is told otherwise.
sub server_is
{
	my ($node) = @_;

	%env = (PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres');
	return;
}

# For tests that run it themselves.
sub dlock_env { return %env; }

# Run it; returns exit code (or 128 + signal), stdout, stderr.
sub dlock
{
	my @args = @_;
	my %params = ref $args[-1] eq 'HASH' ? %{ pop @args } : ();
	my ($in, $out, $err) = ($params{stdin} // '', '', '');
	local %ENV = (%ENV, %env, $params{env} ? %{ $params{env} } : ());
	my $h = IPC::Run::start([ dlock_program(), @args ],
		'<', \$in, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

	IPC::Run::finish($h);
	return (code_of($h), $out, $err);
}

sub code_of
{
	my ($h) = @_;
	my $status = $h->full_result(0);

	return $status & 127 ? 128 + ($status & 127) : $status >> 8;
}

# Check the exit code, and stdout and stderr against patterns.
sub dlock_is
{
	my ($args, $code, $stdout, $stderr, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($is, $out, $err) = dlock(@$args);

	is($is, $code, "$what: exit code $code");
	like($out, $stdout, "$what: output");
	like($err, $stderr, "$what: messages");
	return $out;
}

# What it prints as JSON, and the exit code.
sub dlock_json_code
{
	my @args = @_;
	my ($code, $out, $err) = dlock(@args);
	my $json = eval { decode_json($out) };

	diag("not JSON: $out\n$err") unless defined $json;
	return ($json, $code);
}

sub dlock_json { return (dlock_json_code(@_))[0]; }

# Run it in the background.
sub start_dlock
{
	my @args = @_;
	my %params = ref $args[-1] eq 'HASH' ? %{ pop @args } : ();
	my $run = { out => '', err => '', in => '' };
	local %ENV = (%ENV, %env, $params{env} ? %{ $params{env} } : ());

	$run->{h} = IPC::Run::start([ dlock_program(), @args ],
		'<', \$run->{in}, '>', \$run->{out}, '2>', \$run->{err},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$run->{pid} = $run->{h}{KIDS}[0]{PID};
	push @started, $run;
	return $run;
}

# Wait for its end; returns exit code, stdout, stderr.
sub end_dlock
{
	my ($run) = @_;

	IPC::Run::finish($run->{h});
	$run->{ended} = 1;
	return (code_of($run->{h}), $run->{out}, $run->{err});
}

# The live processes of a process group, without zombies, which do nothing any more.
sub group_members
{
	my ($group) = @_;
	my @members;

	foreach my $file (glob '/proc/[0-9]*/stat')
	{
		open my $fh, '<', $file or next;
		my $line = <$fh> // next;
		my ($pid, $state, $its) = $line =~ /^(\d+) \(.*\) (\S) \d+ (\d+)/s or next;

		push @members, $pid if $its == $group && $state !~ /[ZX]/;
	}
	return @members;
}

my ($temp, $files);

sub temp_file
{
	$temp //= PostgreSQL::Test::Utils::tempdir();
	return "$temp/file" . ++$files;
}

sub slurp
{
	my ($file) = @_;

	open my $fh, '<', $file or return '';
	local $/ = undef;
	return <$fh> // '';
}

# Wait until a file has a line that matches; returns its first group.
sub file_has
{
	my ($file, $pattern) = @_;
	my $found;

	wait_until(
		"$file has $pattern",
		sub {
			return 0 unless slurp($file) =~ $pattern;
			$found = $1;
			return 1;
		});
	return $found;
}

# A shell script, which may use the names of files as "$1", "$2"...
sub script_file
{
	my ($text) = @_;
	my $file = temp_file();

	open my $fh, '>', $file or die "could not create $file: $!";
	print $fh "#!/bin/sh\n$text";
	close $fh;
	chmod 0755, $file;
	return $file;
}

# A process between dlock and the server that can be stopped, which makes the server a
# black hole.  Returns its pid and the folder of its socket; the port is that of the
# server.
sub start_proxy
{
	my ($node) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir_short();
	my $port = $node->port;
	my $to = $node->host . "/.s.PGSQL.$port";
	my $server = IO::Socket::UNIX->new(Local => "$dir/.s.PGSQL.$port", Listen => 20)
	  or die "could not listen: $!";
	my $pid = fork;

	die "could not fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		my $select = IO::Select->new($server);
		my %peer;

		$SIG{PIPE} = 'IGNORE';
		$SIG{TERM} = 'DEFAULT';
		for (;;)
		{
			foreach my $fh ($select->can_read)
			{
				if ($fh == $server)
				{
					my $client = $server->accept or next;
					my $backend = IO::Socket::UNIX->new(Peer => $to);

					if (!$backend) { close $client; next; }
					$peer{$client} = $backend;
					$peer{$backend} = $client;
					$select->add($client, $backend);
					next;
				}
				my $other = $peer{$fh} or next;
				my $got = sysread $fh, my $bytes, 65536;

				if (!$got)
				{
					$select->remove($fh, $other);
					delete @peer{ $fh, $other };
					close $_ foreach $fh, $other;
					next;
				}
				syswrite $other, $bytes;
			}
		}
	}
	push @started, { pid => $pid, child => 1 };
	return ($pid, $dir);
}

# Nothing is left running, even if a test dies.
END
{
	my $status = $?;

	foreach my $run (@started)
	{
		next if $run->{ended};
		kill 'CONT', $run->{pid};
		kill 'KILL', $run->{pid};
		waitpid $run->{pid}, 0 if $run->{child};
	}
	$? = $status;
}

1;
