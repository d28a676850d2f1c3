#!/usr/bin/perl
# Prints the results of scripts/bench: tables, the aims, and plots.
#
#	bench/report.pl [--format=text|markdown] [--docs=FOLDER] FOLDER
#
# With --docs, the tables replace the text between <!-- bench:NAME --> and
# <!-- /bench:NAME --> in FOLDER/benchmarks.md, and plots and figures go to
# FOLDER/bench/.  What was not measured stays unchanged there.

use strict;
use warnings FATAL => 'all';

use File::Basename;
use File::Copy;
use File::Path;
use FindBin;
use Getopt::Long;
use List::Util qw(max);
use Text::Wrap qw(wrap);

use lib $FindBin::RealBin;
use BenchCharts;
use BenchData qw(median percent);
use BenchTables;

my ($format, $docs) = ('text', '');
GetOptions('format=s' => \$format, 'docs=s' => \$docs)
  && @ARGV == 1
  && $format =~ /^(?:text|markdown)$/
  or die "usage: report.pl [--format=text|markdown] [--docs=FOLDER] FOLDER\n";
my $data = BenchData->new($ARGV[0]);

# Columns of figures are aligned to the right.
sub rights
{
	my (undef, @rows) = @_;

	return map {
		my $i = $_;
		$i > 0 && !grep { ($_->[$i] // '') !~ /^(?:[-+\d]|$)/ } @rows
	} 0 .. $#{ $rows[0] };
}

sub as_text
{
	my ($table) = @_;
	my @right = rights(@$table);
	my @rows = map { [ map { s/[*`]//gr } @$_ ] } @$table;
	my @widths = map {
		my $i = $_;
		max map { length($_->[$i] // '') } @rows
	} 0 .. $#{ $rows[0] };

	return join '', map {
		my $row = $_;
		my $line = join '  ', map {
			sprintf $right[$_] ? '%*s' : '%-*s', $widths[$_], $row->[$_] // ''
		} 0 .. $#widths;
		$line =~ s/ +$//r . "\n"
	} @rows;
}

sub as_markdown
{
	my ($table) = @_;
	my ($head, @rows) = @$table;
	my $line = sub { '| ' . join(' | ', @_) . " |\n" };

	return $line->(@$head) . join('', map { $_ ? '|---:' : '|---' } rights(@$table)) . "|\n" . join '', map { $line->(@$_) } @rows;
}

# Where and how, and how much to believe.
sub about
{
	my $fact = sub { $data->fact($_[0]) // '?' };
	my @spreads = $data->spreads;
	my ($errors, $left, $cpu) = $data->checks;
	my @peers = map { defined $data->fact($_->[0]) ? "$_->[1] " . $data->fact($_->[0]) : () }
	  [ redis => 'Redis' ], [ etcd => 'etcd' ], [ zookeeper => 'ZooKeeper' ];
	my $text = sprintf "%s, dlock %s, PostgreSQL %s%s. %d cores (%s), %s GB, Linux %s, %s; load at the start: %s.\n",
	  map { ref $_ ? $_->() : $fact->($_) } 'date', 'commit', 'postgres',
	  sub { join '', map { ", $_" } @peers },
	  qw(cores cpu memory_gb kernel filesystem load);

	$text .= sprintf "Medians of %s interleaved rounds of %s s each. ", $fact->('repeats'), $fact->('seconds');
	$text .= sprintf "The rounds of one measurement differ by %s of their median (median of all measurements), at most by %s. ",
	  percent(median(@spreads)), percent($spreads[-1])
	  if @spreads;
	$text .= sprintf "Errors: %d. Locks left behind: %d. The busiest load generator took %s of one core.\n",
	  $errors, $left, percent($cpu);
	$text .= "This was a quick run. It shows that everything works, but its figures prove little.\n"
	  if $fact->('repeats') eq '1';
	return $text;
}

sub write_file
{
	my ($file, $content) = @_;

	open my $fh, '>', $file or die "could not write $file: $!\n";
	print $fh $content;
	close $fh or die "could not write $file: $!\n";
	return;
}

sub write_docs
{
	my (%content) = @_;
	my $file = "$docs/benchmarks.md";
	my %plots = BenchCharts::plots($data);

	open my $fh, '<', $file or die "could not open $file: $!\n";
	my $text = do { local $/; <$fh> };
	close $fh;
	foreach my $part (sort keys %content)
	{
		$text =~ s{(<!-- bench:\Q$part\E -->\n).*?(<!-- /bench:\Q$part\E -->)}{$1$content{$part}$2}s
		  or die "$file has no place for \"$part\"\n";
	}
	write_file($file, $text);

	mkpath("$docs/bench");
	write_file("$docs/bench/$_.svg", $plots{$_}) foreach sort keys %plots;
	foreach my $tsv (glob "$ARGV[0]/*.tsv")
	{
		my $copy = "$docs/bench/" . basename($tsv);

		next if -e $copy && (stat _)[1] == (stat $tsv)[1];
		copy($tsv, $copy) or die "could not copy $tsv: $!\n";
	}
	print STDERR "wrote $file and $docs/bench\n";
	return;
}

my $about = about();
local $Text::Wrap::columns = 118;
my %content = (about => wrap('', '', $about =~ s/\n(?=.)/ /gr));

print "\n$about";
foreach my $table (BenchTables::tables($data))
{
	my ($id, $title, $rows) = @$table;

	$content{$id} = as_markdown($rows);
	if ($format eq 'markdown')
	{
		print "\n### $title\n\n$content{$id}";
	}
	else
	{
		print "\n$title\n", '-' x length($title), "\n", as_text($rows);
	}
}
write_docs(%content) if $docs;
