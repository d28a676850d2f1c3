# Runs the checker of torture histories.

package DlockChecker;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Utils;

use DlockHistory qw(write_history);

our @EXPORT = qw(check run_check);

my ($source) = grep { -f "$_/check.c" } map { "$_/torture" } '.', '..';
system_or_bail('make', '-s', '-C', $source, 'check');

# Runs the checker on lines [time, text, file]; returns exit status and output.
sub check
{
	my ($lines, @options) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir();

	write_history($folder, @$lines);
	return run_check(@options, $folder);
}

# There are hundreds of runs, and IPC::Run would be too slow.
sub run_check
{
	my (@arguments) = @_;
	my $pid = open(my $out, '-|') // die "could not fork: $!";

	if ($pid == 0)
	{
		open(STDERR, '>&', \*STDOUT) or die;
		exec "$source/check", @arguments or die;
	}
	my $text = join '', <$out>;

	close $out;
	return ($? & 127 ? "signal $?" : $? >> 8, $text);
}

1;
