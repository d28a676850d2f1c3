# Chance, which depends only on the seed of a run.

package TortureChance;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';

our @EXPORT_OK = qw(one_of shuffle some);

# A number between these.
sub some
{
	my ($from, $to) = @_;

	return $from + rand($to - $from);
}

sub one_of { return @_ ? $_[ int rand @_ ] : undef; }

# not List::Util's, which does not use our seed
sub shuffle
{
	my (@list) = @_;

	for (my $i = $#list; $i > 0; $i--)
	{
		my $j = int rand($i + 1);

		@list[ $i, $j ] = @list[ $j, $i ];
	}
	return @list;
}

1;
