# Common parts of the tests of the command line on a terminal.

package DlockTerminal;

use strict;
use warnings FATAL => 'all';

use Encode ();
use Exporter 'import';
use IO::Pty;
use POSIX ();
use Test::More;

use DlockTest;
use DlockCli;

our @EXPORT = qw(
  on_terminal pump sees type ended resize last_frame lines_of columns_of
);

# Run dlock on its own terminal.
sub on_terminal
{
	my ($args, %params) = @_;
	my $pty = IO::Pty->new or die "could not open a terminal: $!";
	my $slave = $pty->slave;

	$pty->set_winsize($params{rows} // 24, $params{columns} // 100);
	my $pid = fork;
	die "could not fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		$pty->make_slave_controlling_terminal;
		close $pty;
		open STDIN, '<&', $slave or die;
		open STDOUT, '>&', $slave or die;
		open STDERR, '>&', $slave or die;
		delete $ENV{NO_COLOR};
		%ENV = (%ENV, dlock_env(), TERM => 'xterm', LC_ALL => 'C.UTF-8', $params{env} ? %{ $params{env} } : ());
		exec dlock_program(), @$args or die;
	}
	$pty->close_slave;
	$pty->blocking(0);
	return { pty => $pty, pid => $pid, out => '' };
}

sub pump
{
	my ($t) = @_;
	my $bytes;

	while (sysread $t->{pty}, $bytes, 65536)
	{
		$t->{out} .= $bytes;
	}
	return;
}

# The next output must match, and is consumed.
sub sees
{
	my ($t, $pattern, $what) = @_;

	wait_until("the terminal shows $what", sub { pump($t); return $t->{out} =~ s/\A.*?($pattern)//s; });
	pass($what);
	return;
}

sub type { my ($t, $keys) = @_; syswrite $t->{pty}, $keys; return; }

# Wait for its end; returns the exit code.
sub ended
{
	my ($t) = @_;
	my $status;

	wait_until('it has ended',
		sub { pump($t); my $got = waitpid $t->{pid}, POSIX::WNOHANG(); $status = $?; return $got == $t->{pid}; });
	pump($t);
	return $status & 127 ? 128 + ($status & 127) : $status >> 8;
}

sub resize
{
	my ($t, $rows, $columns) = @_;

	$t->{pty}->set_winsize($rows, $columns);
	kill 'WINCH', $t->{pid};
	return;
}

# The lines of an output as characters, without colours and the like.
sub lines_of
{
	my ($out) = @_;
	my $text = Encode::decode('UTF-8', $out);

	$text =~ s/\033\[[?0-9;]*[A-Za-z]//g;
	return split /\r*\n/, $text, -1;
}

# What has arrived of the last frame of "dlock top".  Each frame starts at the upper left,
# and its last line comes last.
sub last_frame
{
	my ($t) = @_;

	pump($t);
	my @frames = split /\033\[H/, $t->{out};
	return lines_of($frames[-1] // '');
}

# How many terminal columns a line takes.
sub columns_of
{
	my ($line) = @_;
	my $wide = () = $line =~ /[\p{East_Asian_Width=Wide}\p{East_Asian_Width=Fullwidth}]/g;
	my $none = () = $line =~ /[\p{Mn}\p{Me}]/g;

	return length($line) + $wide - $none;
}

1;
