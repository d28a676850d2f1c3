# Reading the pages of the documentation: their blocks of code, sections,
# tables, headings and links.  Nothing here runs anything.

package DlockDocs;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';

our @EXPORT = qw(blocks complete pasted anchors links section rows word_count);

# The blocks of code of a page, in order.  Each has its kind (the word after
# the backquotes), the line that it begins at, its text, the "##" section that
# it is in, the number of the database that it is for: a line
# "<!-- new database -->" outside of a block raises it, and its stage: the name in
# a line "<!-- stage: name -->" before it.
sub blocks
{
	my ($name, $text) = @_;
	my ($line, $section, $database, $stage, $block, @blocks) = (0, '', 0);

	foreach my $l (split /\n/, $text)
	{
		$line++;
		if ($block && $l =~ /^```\s*$/)
		{
			push @blocks, $block;
			$block = undef;
		}
		elsif ($block)
		{
			$block->{text} .= "$l\n";
		}
		elsif ($l =~ /^```(\w*)\s*$/)
		{
			$block = {
				kind => $1,
				line => $line,
				text => '',
				section => $section,
				database => $database,
				stage => $stage
			};
			$stage = undef;
		}
		elsif ($l =~ /^## (.*\S)/)
		{
			$section = $1;
		}
		elsif ($l =~ /^<!-- stage: (\w+) -->$/)
		{
			$stage = $1;
		}
		elsif ($l =~ /^<!-- new database -->$/)
		{
			$database++;
		}
	}
	die "$name: a block without an end" if $block;
	return @blocks;
}

# Is a statement complete?  Not within a dollar-quoted body.
sub complete
{
	my ($sql) = @_;
	my $quotes = () = $sql =~ /\$\$/g;

	return $quotes % 2 == 0 && $sql =~ /;\s*(--.*)?$/;
}

# The statements of a text that was pasted into "psql -a", each with what was
# printed for it and what the comments after it say of that.  psql prints each
# line as it reads it, so what is between two lines is the answer to the first.
sub pasted
{
	my ($text, $transcript) = @_;
	my @printed = grep { /\S/ } split /\n/, $transcript;
	my ($sql, @statements) = ('');
	my $answer = sub {
		my ($next) = @_;

		while (@printed && !(defined $next && $printed[0] eq $next))
		{
			my $line = shift @printed;

			die "psql printed \"$line\" before the first statement ended"
			  unless @statements;
			$line =~ s/^psql:<stdin>:\d+: ERROR:\s+/error /;
			push @{ $statements[-1]->{printed} }, $line;
		}
		die "psql did not read: $next" if defined $next && !@printed;
		shift @printed;
	};

	foreach my $line (grep { /\S/ } split /\n/, $text)
	{
		$answer->($line);
		if ($sql eq '' && $line =~ /^-- (?:returns (.*)|(error \w{5}))$/)
		{
			push @{ $statements[-1]->{said} }, $1 // $2;
		}
		elsif ($sql ne '' || $line !~ /^--/)
		{
			$sql .= "$line\n";
			next unless complete($sql);
			push @statements, { sql => $sql, printed => [], said => [] };
			$sql = '';
		}
	}
	$answer->(undef);
	return @statements;
}

# The text without its blocks of code.
sub prose
{
	my ($text) = @_;

	return $text =~ s/^\h*```.*?^\h*```\h*$//msgr;
}

# How many words a reader reads: code, addresses and marks are not among them.
sub word_count
{
	my ($text) = @_;
	my $words = prose($text) =~ s/<!--.*?-->|\]\([^)]*\)//gsr;
	my $n = () = $words =~ /\S*\w\S*/g;

	return $n;
}

# What follows a # in a link to this page, as GitHub and Forgejo make it of
# the headings.
sub anchors
{
	my ($text) = @_;
	my (%anchors, %seen);

	foreach my $heading (prose($text) =~ /^#+\h+(.*\S)/mg)
	{
		my $anchor = lc $heading;

		$anchor =~ s/[^\w\- ]//g;
		$anchor =~ s/ /-/g;
		$anchors{ $seen{$anchor}++ ? "$anchor-" . ($seen{$anchor} - 1) : $anchor } = 1;
	}
	return %anchors;
}

# The links of a page that lead to a place in this repository.
sub links
{
	my ($text) = @_;

	return grep { !/^\w+:/ } prose($text) =~ /\]\(([^)\s]+)\)/g;
}

# A "##" section of a page, without its heading.
sub section
{
	my ($text, $heading) = @_;

	return $text =~ /^## \Q$heading\E\n(.*?)(?=^## |\z)/ms ? $1 : '';
}

# The rows of the tables in a text, each a list of cells, without the headings.
sub rows
{
	my ($text) = @_;

	$text =~ s/^\|.*\n(?=\|[-|]+\|$)//mg;
	return map { [ map { s/^\s+|\s+$//gr } split /(?<!\\)\|/, $_, -1 ] }
	  grep { !/^[-|]+$/ } $text =~ /^\|(.*)\|$/mg;
}

1;
