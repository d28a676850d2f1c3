# Runs the checker of torture histories, and compares what it finds.

package DlockChecker;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;

use DlockHistory qw(write_history);

our @EXPORT = qw(check run_check parse legal violates border);

my ($source) = grep { -f "$_/check.c" } map { "$_/test/torture" } '.', '..';
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

#
# Small histories
#

# The lines that every history has are added.  A star marks the lines of the minimal
# history, which must have no others.

# The lines of a text, and those with a star.
sub parse
{
	my ($text, %params) = @_;
	my (@lines, @stars, %clients, %gone);
	my $last = 0;

	foreach my $line (split /\n/, $text)
	{
		my ($star, $time, $what) = $line =~ /^(\* )?(\d+) (.*)$/ or die "bad line: $line";

		push @stars, "$time $what" if $star;
		push @lines, [ $time, $what, 'nemesis' ];
		$last = $time if $time > $last;
		if ($what =~ /^(?:call|lost|owns|renewed|end) (\d+)/)
		{
			$lines[-1][2] = "client-$1";
			$clients{$1} = 1;
		}
		$lines[-1][2] = "client-$1" if $what =~ /^done (\d+)/;
		$gone{$1} = 1 if $what =~ /client-kill client=(\d+)/ || $what =~ /^end (\d+)/;
	}
	unshift @lines, map { [ 0, "begin $_", "client-$_" ] } grep { $text !~ / begin $_$/m } sort keys %clients;
	unshift @lines, [ 0, 'mode ' . ($params{mode} // 'sync'), 'nemesis' ];
	push @lines, map { [ $last + 1, "end $_", "client-$_" ] } grep { !$gone{$_} && !$params{endless} } sort keys %clients;
	push @lines, [ $last + 2, 'final end', 'final' ];
	return (\@lines, \@stars);
}

sub legal
{
	my ($name, $text, %params) = @_;
	my ($lines) = parse($text, %params);
	my ($status, $out) = check($lines, '--quiet', @{ $params{options} // [] });

	is("$status$out", '0', "legal: $name");
	return;
}

sub violates
{
	my ($property, $name, $text, %params) = @_;
	my ($lines, $stars) = parse($text, %params);
	my ($status, $out) = check($lines, '--quiet', @{ $params{options} // [] });
	my @shown = map { /^    (.*)$/ } split /\n/, $out;
	my @found = map { /^violation of (\w+):$/ } split /\n/, $out;

	is("$status @found", "1 $property", "$property: $name") or diag($out);
	is(join("\n", sort @shown), join("\n", sort @$stars), "$property: $name: the lines that show it");
	return;
}

# Both variants: the difference is in brackets, the legal one first.
sub border
{
	my ($property, $name, $text, %params) = @_;

	(my $legal = $text) =~ s/\[([^|\]]*)\|([^\]]*)\]/$1/g;
	$legal =~ s/^\* //mg;
	$text =~ s/\[([^|\]]*)\|([^\]]*)\]/$2/g;
	legal($name, $legal, %params);
	violates($property, $name, $text, %params);
	return;
}

1;
