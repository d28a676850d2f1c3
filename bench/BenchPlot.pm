# Plots as SVG: bars and lines in panels.
#
# They are shown on light and dark pages, so there is no background, text and
# axes are grey, and only dlock has a colour that stands out.

package BenchPlot;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use List::Util qw(max);

use BenchData qw(short);

our @EXPORT_OK = qw(bars lines);

my %fill = (
	dlock => 'fill="#2f81c7"',
	peer => 'fill="#8a8a8a"',
	bare => 'fill="#8a8a8a" fill-opacity="0.4"');
my @strokes = ('#2f81c7', '#d0722c', '#8a8a8a', '#4c9a5a');
my $grey = '#7d7d7d';
my $font = 'font-family="Helvetica, Arial, sans-serif"';

sub escape
{
	my ($text) = @_;

	$text =~ s/&/&amp;/g;
	$text =~ s/</&lt;/g;
	$text =~ s/>/&gt;/g;
	$text =~ s/"/&quot;/g;
	return $text;
}

sub text
{
	my ($x, $y, $text, %options) = @_;
	my $attributes = '';

	$attributes .= qq( text-anchor="$options{anchor}") if $options{anchor};
	$attributes .= ' font-weight="bold"' if $options{bold};
	$attributes .= qq( transform="rotate(-90 $x $y)") if $options{upright};
	return sprintf qq(<text x="%.1f" y="%.1f" font-size="%d" fill="%s"%s>%s</text>\n),
	  $x, $y, $options{size} // 12, $options{colour} // $grey, $attributes, escape($text);
}

sub line
{
	my ($x1, $y1, $x2, $y2, $extra) = @_;

	return sprintf
	  qq(<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" %s/>\n),
	  $x1, $y1, $x2, $y2, $grey, $extra // 'stroke-width="1"';
}

sub document
{
	my ($width, $height, $title, $body) = @_;

	return
	  qq(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $width $height" width="$width" height="$height" $font role="img">\n)
	  . '<title>' . escape($title) . "</title>\n"
	  . text(10, 22, $title, size => 16, bold => 1)
	  . $body
	  . "</svg>\n";
}

sub legend
{
	my ($x, $y, @entries) = @_;
	my $svg = '';

	foreach my $entry (@entries)
	{
		my ($swatch, $name) = @$entry;

		$svg .= sprintf qq(<rect x="%d" y="%d" width="12" height="12" %s/>\n), $x, $y - 10, $swatch;
		$svg .= text($x + 17, $y, $name);
		$x += 40 + 6.5 * length $name;
	}
	return $svg;
}

# bars(title, unit, panel...): a panel is { title, bars => [ [ name, value,
# kind ], ... ] }, where the kind is dlock, peer or bare (no lock at all).
sub bars
{
	my ($title, $unit, @panels) = @_;
	my ($columns, $panel_width, $name_width, $row) = (2, 500, 255, 19);
	my %there = map { $_->[2] => 1 } map { @{ $_->{bars} } } @panels;
	my $svg = legend(
		10, 46,
		map { [ $fill{ $_->[0] }, $_->[1] ] }
		  grep { $there{ $_->[0] } }[ dlock => 'dlock' ],
		[ peer => 'other locks' ],
		[ bare => 'no lock: what it rests on' ]);
	my $top = 62;

	while (my @line = splice @panels, 0, $columns)
	{
		my $rows = max map { scalar @{ $_->{bars} } } @line;

		foreach my $i (0 .. $#line)
		{
			my $panel = $line[$i];
			my $left = 10 + $i * ($panel_width + 20);
			my $most = max(map { $_->[1] } @{ $panel->{bars} }) || 1;
			my $scale = ($panel_width - $name_width - 45) / $most;
			my $y = $top + 20;

			$svg .= text($left + $name_width, $y, "$panel->{title}, " . ($panel->{unit} // $unit), bold => 1);
			foreach my $bar (@{ $panel->{bars} })
			{
				my ($name, $value, $kind) = @$bar;
				my $length = max(1, $value * $scale);

				$y += $row;
				$svg .= text($left + $name_width - 6, $y, $name,
					anchor => 'end', bold => $kind eq 'dlock');
				$svg .= sprintf qq(<rect x="%d" y="%d" width="%.1f" height="13" %s/>\n),
				  $left + $name_width, $y - 11, $length, $fill{$kind};
				$svg .= text($left + $name_width + $length + 5, $y, short($value));
			}
		}
		$top += 20 + $rows * $row + 24;
	}
	return document($columns * ($panel_width + 20), $top, $title, $svg);
}

# A step for about four lines: 1, 2 or 5 times a power of ten.
sub step
{
	my ($range) = @_;
	my $raw = $range / 4;
	my $power = 10**int(log($raw) / log(10) + ($raw < 1 ? -1 : 0));

	foreach my $factor (1, 2, 5, 10)
	{
		return $factor * $power if $factor * $power >= $raw;
	}
	return 10 * $power;
}

# lines(title, panel...): a panel is { title, x, y, marks => [ [ x, text ] ],
# lines => [ [ name, points ], ... ] }; x and y name the axes.
sub lines
{
	my ($title, @panels) = @_;
	my ($panel_width, $height, $left, $top) = (490, 240, 62, 72);
	my $svg = '';

	foreach my $i (0 .. $#panels)
	{
		my $panel = $panels[$i];
		my $x0 = 10 + $left + $i * ($panel_width + 20);
		my $width = $panel_width - $left - 10;
		my @points = map { @{ $_->[1] } } @{ $panel->{lines} };
		my $x_most = max(map { $_->[0] } @points) || 1;
		my $y_most = max(map { $_->[1] } @points) || 1;
		my $bottom = $top + $height;
		my $n = 0;
		my @legend;

		$svg .= text($x0, $top - 26, $panel->{title}, bold => 1);
		my $y_step = step($y_most);
		for (my $y = 0; $y <= $y_most; $y += $y_step)
		{
			my $at = $bottom - $y / $y_most * $height;

			$svg .= line($x0, $at, $x0 + $width, $at, 'stroke-width="0.5" stroke-opacity="0.5"');
			$svg .= text($x0 - 5, $at + 4, short($y), anchor => 'end');
		}
		my $x_step = step($x_most);
		for (my $x = 0; $x <= $x_most; $x += $x_step)
		{
			$svg .= text($x0 + $x / $x_most * $width, $bottom + 17, short($x), anchor => 'middle');
		}
		$svg .= text($x0 + $width / 2, $bottom + 35, $panel->{x}, anchor => 'middle');
		$svg .= text($x0 - $left + 14, $top + $height / 2, $panel->{y}, anchor => 'middle', upright => 1);
		foreach my $mark (@{ $panel->{marks} // [] })
		{
			my $at = $x0 + $mark->[0] / $x_most * $width;

			$svg .= line($at, $top, $at, $bottom, 'stroke-width="1" stroke-dasharray="4 3"');
			$svg .= text($at + 4, $top + 12, $mark->[1]);
		}
		foreach my $line (@{ $panel->{lines} })
		{
			my ($name, $points) = @$line;
			my $stroke = $strokes[ $n++ % @strokes ];
			my $path = join ' ', map {
				sprintf '%.1f,%.1f', $x0 + $_->[0] / $x_most * $width,
				  $bottom - $_->[1] / $y_most * $height
			} @$points;

			$svg .= qq(<polyline points="$path" fill="none" stroke="$stroke" stroke-width="2"/>\n);
			push @legend, [ qq(fill="$stroke"), $name ];
		}
		$svg .= legend($x0, $top - 8, @legend);
	}
	return document(@panels * ($panel_width + 20), $top + $height + 46, $title, $svg);
}

1;
